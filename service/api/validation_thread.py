"""Checks of what clients send, in a thread of their own when they may take long, so that the event loop stays free."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from service.api.problem_documents import ApiProblem
from service.garbage_collection import without_collections

T = TypeVar("T")

#: Bytes of what is checked on the event loop: handing it to a thread would take longer.
SHORT = 16 * 1024
#: Checks that may wait for the thread, or be in it, at the same time.
MOST_WAITING = 32


class Checks:
    """One check at a time in a thread that does nothing else.  Used on one event loop only."""

    def __init__(self) -> None:
        # One: more of them would share Python's lock with the event loop, and leave it less of it.
        self._thread = ThreadPoolExecutor(1, "check")
        self._waiting = 0

    async def run(self, work: Callable[[], T], size: int | None) -> T:
        """What `work` returns or raises, for input of this size in bytes; None when it takes long for a short one, too.

        Raises ApiProblem 503 `busy` when too many wait already.  `work` takes a time that its input's size bounds.
        """
        if size is not None and size <= SHORT:
            return work()
        if self._waiting >= MOST_WAITING:
            hint = "try again; what is small is checked meanwhile"
            raise ApiProblem(
                503,
                "busy",
                "too many large requests wait to be checked",
                hint=hint,
                headers={"Retry-After": "1"},
            )
        self._waiting += 1
        done = self._thread.submit(_done, work)
        # Counted until it has left the thread: a client that leaves does not take its check away with it.
        loop = asyncio.get_running_loop()
        done.add_done_callback(lambda _: loop.call_soon_threadsafe(self._leave))
        try:
            return await asyncio.wrap_future(done)
        finally:
            # An error knows this frame, and would keep itself alive through it until the garbage collector comes.
            del done, work

    def _leave(self) -> None:
        self._waiting -= 1

    def close(self) -> None:
        """End the thread; checks that wait are dropped."""
        self._thread.shutdown(wait=False, cancel_futures=True)


def _done(work: Callable[[], T]) -> T:
    # Freed before the garbage collector comes back: what is new and alive is walked at once.
    with without_collections():
        try:
            return work()
        except Exception as error:
            _free_frames(error)
            raise


def _free_frames(error: BaseException) -> None:
    """Empty the frames that an error, and those that it was made of, went through; a log still shows their lines."""
    waiting: list[BaseException | None] = [error]
    seen: set[int] = set()
    while waiting:
        one = waiting.pop()
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            traceback.clear_frames(one.__traceback__)
            waiting += [one.__cause__, one.__context__]
