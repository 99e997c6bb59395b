"""Workers are asked how they are: a fixed number a second, however many there are, and those that end at once."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from ray.train.v2._internal.exceptions import WorkerHealthCheckFailedError, WorkerHealthCheckTimeoutError
from ray.train.v2._internal.execution.worker_group.poll import WorkerStatus

from trainers.ray_train import polls as module
from trainers.ray_train.polls import POLLS_PER_S, Polls, PollSchedule


def asked(workers: int, seconds: float, round_s: float = 0.2) -> Counter[int]:
    """How often each place was asked, in rounds of a fifth of a second."""
    schedule, counted = PollSchedule(), Counter[int]()
    for number in range(int(seconds / round_s)):
        counted.update(schedule.take(workers, number * round_s))
    return counted


@pytest.mark.parametrize("workers", [1, 3, 20, 100, 1024, 8192])
def test_all_workers_together_are_asked_so_often_in_a_second(workers: int) -> None:
    """Each was asked five times a second: 40,960 messages from 8,192."""
    seconds = 200.0
    counted = asked(workers, seconds)
    assert sum(counted.values()) <= (seconds + 1.0) * min(POLLS_PER_S, 5.0 * workers)
    assert set(counted) == set(range(workers)), "no worker is forgotten"
    assert max(counted.values()) <= min(counted.values()) + 1


def test_few_workers_are_asked_in_every_round() -> None:
    assert set(asked(16, 10.0).values()) == {50}


def test_a_round_that_took_long_is_not_made_up_for() -> None:
    schedule = PollSchedule()
    schedule.take(1024, 0.0)
    assert len(schedule.take(1024, 600.0)) <= POLLS_PER_S


class Actor:
    """A worker's process."""

    def __init__(self) -> None:
        self.questions = 0
        self.answer: Any = WorkerStatus(running=True)
        self.poll_status = SimpleNamespace(remote=self._ask)

    def _ask(self) -> Actor:
        self.questions += 1
        return self


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Answers without Ray: an actor whose answer is None has not answered yet."""
    now = [0.0]

    def wait(actors: list[Actor], **_: Any) -> tuple[list[Actor], list[Actor]]:
        done = [one for one in actors if one.answer is not None]
        return done, [one for one in actors if one.answer is None]

    def get(actor: Actor) -> WorkerStatus:
        if isinstance(actor.answer, Exception):
            raise actor.answer
        status: WorkerStatus = actor.answer
        return status

    monkeypatch.setattr(module, "ray", SimpleNamespace(wait=wait, get=get))
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


def test_only_those_that_are_due_are_asked_and_the_others_are_as_they_were(clock: list[float]) -> None:
    actors, polls = [Actor(), Actor(), Actor()], Polls(600.0)
    actors[1].answer = WorkerStatus(running=False, return_value=7)
    assert [one.running for one in polls.statuses(actors, {0, 1}, 0.2)] == [True, False, True]
    assert [one.running for one in polls.statuses(actors, {1, 2}, 0.2)] == [True, False, True]
    assert [one.questions for one in actors] == [1, 1, 1], "one that is through is asked no more"


def test_one_that_is_dead_is_an_error_until_it_is_dropped(clock: list[float]) -> None:
    actors, polls = [Actor(), Actor()], Polls(600.0)
    actors[0].answer = ray.exceptions.RayActorError()
    for _ in range(2):
        first, second = polls.statuses(actors, {0, 1}, 0.2)
        assert isinstance(first.error, WorkerHealthCheckFailedError)
        assert second.error is None
    assert [one.error for one in polls.statuses(actors[1:], {0}, 0.2)] == [None]


def test_one_that_does_not_answer_is_asked_once_and_counts_as_dead_after_a_while(clock: list[float]) -> None:
    actors, polls = [Actor()], Polls(600.0)
    actors[0].answer = None
    for clock[0] in (0.0, 300.0, 600.0):
        (status,) = polls.statuses(actors, {0}, 0.2)
        assert (status.running, status.error) == (True, None)
    clock[0] = 601.0
    (status,) = polls.statuses(actors, {0}, 0.2)
    assert isinstance(status.error, WorkerHealthCheckTimeoutError)
    assert actors[0].questions == 1
