"""The clock of the driver's machine is set, an hour forth or back: no attempt notices."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.unit.trainers.stage import Stage
from tests.unit.trainers.test_hang_monitor import LIMIT_S, Scene
from tests.unit.trainers.virtual_time import play
from trainers.driver.account import Account
from trainers.driver.attempt import Attempt
from trainers.driver.group import DEADLINE_MARGIN_S
from trainers.driver.members import GroupMembers

HOUR = 3600.0
BOTH_WAYS = pytest.mark.parametrize("by_s", [HOUR, -HOUR], ids=["forth", "back"])


def held(stage: Stage) -> int:
    """How often all ranks were asked for a checkpoint."""
    return len(stage.messages("hold")) // stage.attempt.group.world_size if stage.attempt.group else 0


async def pass_by(stage: Stage, seconds: float) -> None:
    end = stage.loop.time() + seconds
    while stage.loop.time() < end:
        await stage.after(0.5)
        stage.attempt.tick()


@BOTH_WAYS
def test_a_step_under_way_is_no_hang(by_s: float) -> None:
    async def act() -> None:
        at = Scene(2, elastic=False)
        await at.train()
        at.stage.set_by_s = by_s
        await at.after(LIMIT_S - 30.0)
        assert (at.reason, at.stacks) == (None, {})
        await at.after(60.0)
        assert at.reason is not None, "what takes too long is found in time"

    play(act())


@BOTH_WAYS
def test_a_checkpoint_is_asked_for_when_it_is_due(by_s: float) -> None:
    async def act() -> None:
        stage = Stage(2, checkpoint_interval_s=30.0)
        stage.set_by_s = by_s
        await pass_by(stage, 25.0)
        assert held(stage) == 0
        await pass_by(stage, 10.0)
        assert held(stage) == 1

    play(act())


@BOTH_WAYS
def test_a_node_that_goes_is_given_the_time_that_it_has(by_s: float) -> None:
    async def act() -> None:
        stage = Stage(2)
        group = stage.attempt.group
        assert group is not None
        deadline_at = stage.clock() + 30.0
        stage.attempt.request_stop("drain", "A node goes.", deadline_at)
        stage.set_by_s = by_s
        # It is reported over and over, and measured at the first time only.
        stage.attempt.request_stop("drain", "A node goes.", deadline_at)
        await pass_by(stage, 30.0 - DEADLINE_MARGIN_S - 1.0)
        assert not group.is_stopping
        await pass_by(stage, 2.0)
        assert group.is_stopping

    play(act())


@BOTH_WAYS
def test_what_a_loss_cost_is_what_it_took(by_s: float) -> None:
    async def act() -> None:
        stage = Stage(2)
        attempt = stage.attempt
        assert attempt.group is not None
        attempt.group.progress = attempt.group.progress.lose(stage.now())
        stage.set_by_s = by_s
        await stage.after(4.0)
        attempt.receive(0, {"type": "report", "step": 11})
        assert attempt.progress.lost_s == pytest.approx(4.0, abs=0.1)

    play(act())


def test_an_attempt_measures_by_the_monotonic_clock() -> None:
    async def act() -> None:
        stage = Stage(1)
        calls: Any = stage
        assert Attempt(stage.attempt.plan, Account(1 << 20), GroupMembers(calls)).now is time.monotonic

    play(act())
