"""The status of the workers of a group: each round polls some of them, and all that have reported their end."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Collection, Sequence
from typing import Any

import ray
from ray.train.v2._internal.exceptions import WorkerHealthCheckFailedError, WorkerHealthCheckTimeoutError
from ray.train.v2._internal.execution.worker_group.poll import WorkerStatus

#: Workers that are asked in a second; each takes the driver some tenths of a millisecond.
POLLS_PER_S = 100.0
#: Seconds that count as passed since the round before, at most.
_MOST_S = 1.0


class PollSchedule:
    """Which workers are polled next, round-robin at a limited rate (pure; time is an argument)."""

    def __init__(self) -> None:
        self._first = 0
        self._taken_at: float | None = None
        self._allowance = 0.0

    def take(self, workers: int, now: float) -> list[int]:
        """Places from 0 to `workers` - 1 to ask now; `now` is in seconds of a monotonic clock."""
        passed_s = _MOST_S if self._taken_at is None else min(_MOST_S, now - self._taken_at)
        self._taken_at = now
        self._allowance = min(float(workers), self._allowance + passed_s * POLLS_PER_S)
        count = int(self._allowance)
        self._allowance -= count
        places = [(self._first + number) % workers for number in range(count)]
        self._first = (self._first + count) % max(1, workers)
        return places


class Polls:
    """What workers answered last, by actor."""

    def __init__(self, patience_s: float) -> None:
        """A worker that has not answered for that many seconds counts as dead."""
        self._patience_s = patience_s
        #: Questions under way, and when they were asked.
        self._asked: dict[Any, tuple[Any, float]] = {}
        self._known: dict[Any, WorkerStatus] = {}

    def statuses(
        self, actors: Sequence[Any], due: Collection[int], timeout_s: float | None
    ) -> list[WorkerStatus]:
        """How all of them are, after asking those at the places that are due; waits so long at most."""
        self._forget_others(actors)
        now = time.monotonic()
        for place in due:
            actor = actors[place]
            if actor not in self._asked and self._is_running(actor):
                self._asked[actor] = (actor.poll_status.remote(), now)
        self._collect(timeout_s)
        return [self._status_of(actor) for actor in actors]

    def _forget_others(self, actors: Sequence[Any]) -> None:
        if len(self._known) + len(self._asked) > 2 * len(actors):
            present = set(actors)
            self._known = {actor: one for actor, one in self._known.items() if actor in present}
            self._asked = {actor: one for actor, one in self._asked.items() if actor in present}

    def _is_running(self, actor: Any) -> bool:
        known = self._known.get(actor)
        return known is None or (known.running and known.error is None)

    def _collect(self, timeout_s: float | None) -> None:
        if not self._asked:
            return
        by_answer = {answer: actor for actor, (answer, _) in self._asked.items()}
        done, _ = ray.wait(list(by_answer), num_returns=len(by_answer), timeout=timeout_s)
        for answer in done:
            actor = by_answer[answer]
            del self._asked[actor]
            self._known[actor] = _answered(answer)

    def _status_of(self, actor: Any) -> WorkerStatus:
        if actor in self._asked:
            waited_s = time.monotonic() - self._asked[actor][1]
            if waited_s > self._patience_s:
                text = f"a worker has not answered for {waited_s:.0f} s"
                return WorkerStatus(running=True, error=WorkerHealthCheckTimeoutError(text))
        known = self._known.get(actor)
        if known is None:
            return WorkerStatus(running=True)
        if known.training_report is not None:
            # It is handed on once.
            self._known[actor] = dataclasses.replace(known, training_report=None)
        return known


def _answered(answer: Any) -> WorkerStatus:
    try:
        status: WorkerStatus = ray.get(answer)
    except Exception as error:  # of any kind: the worker is gone, or its answer cannot be read
        failed = WorkerHealthCheckFailedError("a worker could not be asked how it is", failure=error)
        return WorkerStatus(running=False, error=failed)
    return status
