"""What the processes of one attempt ask of the service about storages, until it has answered.

The service polls for it: drivers reach the service in no other way.  Touched on the actor's event loop only.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from trainers.storage_grants import ANSWERED_S, StorageAnswer, StorageRequest

#: Seconds after which a request is handed out again: the controller that took it may be gone.
_AGAIN_S = 3.0
#: Seconds that a poll waits for a request.
_POLL_S = 20.0
#: Requests that wait, and those of one poll.
_MOST_WAITING, _MOST_AT_ONCE = 10_000, 200


@dataclass
class _Waiting:
    request: StorageRequest
    answer: asyncio.Future[StorageAnswer]
    #: When a poll took it last; None: none has.
    taken_at: float | None = None


class StorageRequests:
    """The requests of one driver's attempt."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        """`now` is monotonic."""
        self._now = now
        self._numbers = itertools.count(1)
        self._waiting: dict[int, _Waiting] = {}
        self._has_new = asyncio.Event()

    async def ask(self, request: StorageRequest) -> StorageAnswer:
        """The answer of the service; a refusal when there is none in time."""
        if len(self._waiting) >= _MOST_WAITING:
            return StorageAnswer(refusal="more requests for storage wait than the service answers")
        number, answer = next(self._numbers), asyncio.get_running_loop().create_future()
        self._waiting[number] = _Waiting(request, answer)
        self._has_new.set()
        try:
            return await asyncio.wait_for(answer, ANSWERED_S)
        except TimeoutError:
            return StorageAnswer(refusal=f"the service has not answered for {ANSWERED_S:g} s")
        finally:
            del self._waiting[number]

    async def poll(self) -> list[tuple[int, StorageRequest]]:
        """Requests that wait for an answer, with their numbers; none after a while without any."""
        until = self._now() + _POLL_S
        while True:
            if (due := self._due()) or (left := until - self._now()) <= 0:
                return due
            self._has_new.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._has_new.wait(), min(left, _AGAIN_S))

    def answer(self, answers: Mapping[int, StorageAnswer]) -> None:
        """Hand answers on; those to requests that are over are dropped."""
        for number, answer in answers.items():
            waiting = self._waiting.get(number)
            if waiting is not None and not waiting.answer.done():
                waiting.answer.set_result(answer)

    def _due(self) -> list[tuple[int, StorageRequest]]:
        now = self._now()
        due: list[tuple[int, StorageRequest]] = []
        for number, one in self._waiting.items():
            is_taken = one.taken_at is not None and now - one.taken_at < _AGAIN_S
            if not is_taken and not one.answer.done() and len(due) < _MOST_AT_ONCE:
                one.taken_at = now
                due.append((number, one.request))
        return due
