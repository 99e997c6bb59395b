"""The ratio of step times says what a contestant costs, whatever else the machine did meanwhile."""

from __future__ import annotations

from statistics import median

import pytest

from benchmarks.contest import order
from benchmarks.ratios import ratio, steady, step_time

#: How slow the machine is in each round: it is taken by others for a third of the time, and warms up before.
MACHINE = [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 4.0, 4.0, 4.0, 4.0, 1.5, 1.5]


def blocks(step_s: float, machine: list[float] = MACHINE) -> list[list[float]]:
    """A first step that is always slow, and three even ones."""
    return [[9.0, *[step_s * slowness] * 3] for slowness in machine]


def test_a_machine_that_slows_both_down_changes_nothing() -> None:
    found = ratio(blocks(1.05), blocks(1.0))
    assert (found.figure, found.quartiles) == (1.05, [1.05, 1.05])


def test_a_pair_that_was_met_unequally_is_one_of_many() -> None:
    ours = blocks(1.02)
    for round_ in (2, 7):
        ours[round_] = [9.0, 9.0, 9.0, 9.0]
    assert ratio(ours, blocks(1.0)).figure == 1.02


def test_a_ratio_of_all_steps_medians_would_have_been_led_astray() -> None:
    met_ours = [1.0] * 6 + [2.0] * 6
    met_peer = [1.0] * 5 + [2.0] * 7
    ours, peer = blocks(1.0, met_ours), blocks(1.0, met_peer)
    of_medians = median(map(step_time, ours)) / median(map(step_time, peer))
    assert of_medians == 0.75
    assert ratio(ours, peer).figure == 1.0


def test_quartiles_say_how_far_pairs_differ() -> None:
    peer = [[9.0, 1.0]] * 5
    found = ratio([[9.0, seconds] for seconds in (1.4, 1.0, 1.2, 1.1, 1.3)], peer)
    assert (found.figure, found.quartiles) == (1.2, [1.1, 1.3])


def test_blocks_that_have_no_partner_are_an_error() -> None:
    with pytest.raises(ValueError, match="shorter"):
        ratio(blocks(1.0), blocks(1.0)[1:])


def test_ratios_stand_in_the_document_by_backend() -> None:
    assert steady(mpi=ratio(blocks(1.05), blocks(1.0)), ddp=ratio(blocks(1.0), blocks(1.0))) == {
        "steady_ratio": {"mpi": 1.05, "ddp": 1.0},
        "steady_quartiles": {"mpi": [1.05, 1.05], "ddp": [1.0, 1.0]},
    }


def test_neighbours_train_first_alternately() -> None:
    names = ["torchrun", "remora", "sharded"]
    assert [order(names, number) for number in range(3)] == [names, ["sharded", "remora", "torchrun"], names]
