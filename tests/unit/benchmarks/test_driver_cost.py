"""What is measured of a driver is a driver that works: it counts steps, stores lines and hears paces."""

from __future__ import annotations

import pytest

from benchmarks import driver_cost


def test_a_simulated_driver_counts_steps_and_fits_its_goal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_cost, "_SECONDS", 2)
    seen = []
    make = driver_cost._driver
    monkeypatch.setattr(driver_cost, "_driver", lambda *of: seen.append(make(*of)) or seen[-1])
    cost = driver_cost.cost(64)
    (driver,) = seen
    assert driver._attempt.progress.step == 2 * driver_cost._STEPS
    group = driver._attempt.group
    assert group is not None
    assert group.is_cooperative
    assert 0.0 < cost.share < 1.0


def test_calls_between_workers_and_driver_hardly_grow_with_the_ranks() -> None:
    few, many = (driver_cost.cost(ranks).calls_per_s for ranks in (256, 2560))
    # A line a minute of every rank does.
    assert many["delivered"] - few["delivered"] < 200 + 1.1 * (2560 - 256) / 60
    assert few["instructed"] <= 30.0
    assert many["instructed"] <= 130.0
    assert many["asked"] == few["asked"]


def test_lines_of_a_driver_take_little_more_than_their_bytes() -> None:
    assert driver_cost.log_mib() < 24.0
