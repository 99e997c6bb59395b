"""Ranks that wait for others: ranks that can still come are waited for, and no others."""

from __future__ import annotations

from typing import Any

import pytest

from remora.states import EndReason
from tests.unit.trainers.stage import Stage
from tests.unit.trainers.virtual_time import play
from trainers.driver.rendezvous import FIRST_S, LAST_S, REPORT_S, SURE_S, is_waiting
from trainers.driver.rendezvous_monitor import RendezvousMonitor
from trainers.driver.stacks import Stacks

WAITING = """Process 7 (sleeping): python train.py
Thread 7 (idle): "MainThread"
    _create_c10d_store (torch/distributed/rendezvous.py:199)
    init_process_group (torch/distributed/distributed_c10d.py:1892)
    <module> (train.py:4)"""
LOADING = """Process 8 (running): python train.py
Thread 8 (active): "MainThread"
    init_process_group (train.py:9)
    <module> (train.py:12)"""
SHELL = "Process 6 (sleeping): bash -c python train.py\nIts stack cannot be read: no Python there"


@pytest.mark.parametrize(
    ("stacks", "waits"),
    [
        (WAITING, True),
        (f"{SHELL}\n\n{WAITING}", True),
        (LOADING, False),
        (f"{WAITING}\n\n{LOADING}", False),
        (f"{WAITING}\n\n3 more processes of this command are left out.", False),
        (SHELL, False),
        ("Its supervisor did not report it within 20 s.", False),
        ("The command does not run any more.", False),
    ],
)
def test_a_rank_waits_when_all_of_its_python_does(stacks: str, waits: bool) -> None:
    assert is_waiting(stacks) is waits


class Scene:
    """A worker group whose scripts have just begun."""

    def __init__(self, *does: str) -> None:
        self.stage = Stage(len(does))
        self.does = dict(enumerate(does))
        self.stage.group_members.elastic.clear()
        assert self.stage.attempt.group is not None
        self.stage.attempt.group.has_reported = False
        self.stacks = Stacks(self.stage.group_members)
        self.monitor = RendezvousMonitor(self.stage.attempt, self.stacks)
        self.stage.watch = self._react

    def _react(self, slot: int, message: dict[str, Any]) -> None:
        if message["type"] == "dump":
            reported = {"type": "stack", "text": self.does[slot]}
            self.stage.loop.call_later(0.1, self.stacks.receive, slot, reported)

    async def after(self, seconds: float) -> None:
        end = self.stage.loop.time() + seconds
        while self.stage.loop.time() < end:
            await self.stage.after(1.0)
            self.monitor.tick()

    def say(self, rank: int, kind: str, **message: Any) -> None:
        self.stage.attempt.receive(rank, {"type": kind, **message})

    @property
    def verdict(self) -> tuple[EndReason, str] | None:
        found = self.stage.attempt.verdict
        return None if found is None else (found.end_reason, found.message)

    @property
    def looks(self) -> int:
        return self.stage.messages("dump").count(0)


def scene(act: Any) -> Any:
    def played() -> None:
        play(act())

    played.__name__ = act.__name__
    return played


@scene
async def test_a_rank_that_ended_without_joining_ends_the_attempt_for_good() -> None:
    at = Scene(WAITING, LOADING)
    await at.after(10.0)
    at.say(1, "exit", exit_code=0)
    await at.after(20.0)
    assert at.verdict is None
    await at.after(30.0)
    assert at.verdict is not None
    reason, message = at.verdict
    assert reason is EndReason.START_FAILED
    assert message.startswith(
        "Rank 1 ended with exit code 0, and the rendezvous (init_process_group) still keeps rank 0"
    )
    assert 0 in at.stage.messages("stop")


@scene
async def test_when_all_ranks_wait_none_is_left_that_could_join() -> None:
    at = Scene(WAITING, WAITING)
    await at.after(FIRST_S + SURE_S - 10.0)
    assert at.verdict is None
    await at.after(30.0)
    assert at.verdict is not None
    assert at.verdict[0] is EndReason.HANG
    assert "All 2 ranks wait" in at.verdict[1]


@scene
async def test_a_rank_that_is_busy_is_waited_for_and_named() -> None:
    at = Scene(WAITING, LOADING)
    await at.after(REPORT_S)
    assert at.stage.events("worker_group.gathering") == []
    await at.after(FIRST_S + 60.0)
    assert at.stage.events("worker_group.gathering") == [{"waiting": [0], "missing": [1]}]
    assert at.stage.events("worker.stack") == [{"rank": 1, "stack": LOADING}]
    at.does[1] = WAITING
    await at.after(SURE_S - 40.0)
    at.does = {0: LOADING, 1: LOADING}
    await at.after(SURE_S * 3)
    assert at.verdict is None, "they met"
    assert len(at.stage.events("worker_group.gathering")) == 1


@scene
async def test_a_worker_group_that_does_steps_is_left_alone() -> None:
    at = Scene(WAITING, WAITING)
    await at.after(FIRST_S + 10.0)
    looks = at.looks
    assert looks == 1
    at.say(0, "report", step=11)
    await at.after(SURE_S * 2)
    assert (at.verdict, at.looks) == (None, looks)


@scene
async def test_scripts_that_report_no_steps_are_looked_at_a_few_times_only() -> None:
    at = Scene(LOADING, LOADING)
    await at.after(LAST_S * 3)
    assert (at.verdict, at.looks) == (None, 5)
