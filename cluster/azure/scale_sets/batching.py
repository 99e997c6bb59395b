"""Batches requests that come within a moment, because Azure takes seconds for each change of a scale set."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

#: Seconds for which the first one waits for others; those that come while the lock is held are done together, too.
GATHER_S = 0.05

Item = TypeVar("Item")
Answer = TypeVar("Answer")


@dataclass
class _Batch(Generic[Item, Answer]):
    """Requests that are done together."""

    items: list[Item] = field(default_factory=list)
    done: asyncio.Task[Sequence[Answer | Exception]] | None = None


class RequestBatcher(Generic[Item, Answer]):
    """Does requests of the same key together, under a lock; for one event loop.

    `act` is given a key and its requests, and answers each with a value or with what is to be raised for it; what it
    raises itself is raised for all of them.
    """

    def __init__(
        self,
        lock: asyncio.Lock,
        act: Callable[[str, Sequence[Item]], Awaitable[Sequence[Answer | Exception]]],
    ) -> None:
        self._lock = lock
        self._act = act
        self._batches: dict[str, _Batch[Item, Answer]] = {}

    async def submit(self, key: str, item: Item) -> Answer:
        """The answer to one request; raises what was answered for it."""
        batch = self._batches.setdefault(key, _Batch())
        number = len(batch.items)
        batch.items.append(item)
        if batch.done is None:
            batch.done = asyncio.ensure_future(self._do(key, batch))
        answer = (await batch.done)[number]
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def _do(self, key: str, batch: _Batch[Item, Answer]) -> Sequence[Answer | Exception]:
        await asyncio.sleep(GATHER_S)
        async with self._lock:
            # Requests that come from here on are in the next batch.
            del self._batches[key]
            return await self._act(key, batch.items)
