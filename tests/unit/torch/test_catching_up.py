"""Who gets what from whom when a new group has met."""

from __future__ import annotations

import pytest

from remora.torch.catching_up import CatchUp, Standing, WorkersDiffer, plan_catch_up


def standings(*steps: int, fresh: bool = False) -> list[Standing]:
    return [Standing(step, fresh, 1) for step in steps]


@pytest.mark.parametrize(
    ("given", "plan"),
    [
        (standings(5, 5, 5), CatchUp(5, 0, (), ())),
        (standings(4, 5, 5), CatchUp(5, 1, (0,), ())),
        (standings(5, 4, -1), CatchUp(5, 0, (1,), (2,))),
        (standings(-1, 5), CatchUp(5, 1, (), (0,))),
        (standings(0, 0, 0, fresh=True), CatchUp(0, 0, (), (1, 2))),
        (standings(0, -1, fresh=True), CatchUp(0, 0, (), (1,))),
        ([Standing(0, True, 1), Standing(0, False, 1)], CatchUp(0, 1, (), (0,))),
        ([Standing(0, True, 1), Standing(1, False, 1)], CatchUp(1, 1, (), (0,))),
    ],
)
def test_the_most_advanced_worker_gives_to_those_who_lack(given: list[Standing], plan: CatchUp) -> None:
    assert plan_catch_up(given) == plan


def test_nobody_with_a_state_is_told() -> None:
    with pytest.raises(WorkersDiffer, match="resume from a checkpoint"):
        plan_catch_up(standings(-1, -1))


def test_more_than_a_step_apart_is_told() -> None:
    with pytest.raises(WorkersDiffer, match="more than one step apart"):
        plan_catch_up(standings(3, 5))


def test_different_scripts_are_told_by_rank() -> None:
    with pytest.raises(WorkersDiffer, match="rank 1 runs another model or other settings"):
        plan_catch_up([Standing(0, True, 1), Standing(0, True, 2)])
