"""Figures of the conversion of DeepSpeed's checkpoints."""

from __future__ import annotations

from benchmarks.conversion import figures


def test_speed_ups_are_those_of_conversions_that_ran_after_one_another() -> None:
    taken = {1: [4.0, 8.0, 5.0], 2: [2.0, 4.0, 5.0], 4: [1.0, 4.0, 2.5]}
    found = figures(400_000_000, taken, {"from_load": [3.0, 5.0, 4.0], "from_start": [1.0, 0.5, 0.25]})
    assert found["state_mb"] == 400
    assert found["seconds"] == {"1": 5.0, "2": 4.0, "4": 2.5}
    assert found["mb_per_s"] == {"1": 80, "2": 100, "4": 160}
    assert found["speed_up"] == {"2": 2.0, "4": 2.0}, "a busy moment meets both of a round"
    assert found["waited_s"] == {"from_load": 4.0, "from_start": 0.5}
