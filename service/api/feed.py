"""Notifies streams that a job has news: one query for all followed jobs, independent of the number of clients.

The controller is another process, so news are found by polling the database, several times a second while a client
follows a job.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

from sqlalchemy.exc import DBAPIError

from service.store.database import Database
from service.store.failures import why_failed
from service.store.job_history import Position, positions

log = logging.getLogger(__name__)

POLL_S = 0.2
ReadT = TypeVar("ReadT")


class Feed:
    """The newest position of each followed job; `run` updates it until `close`."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._followed: Counter[str] = Counter()
        self._positions: dict[str, Position] = {}
        self._reads: dict[Hashable, asyncio.Future[Any]] = {}
        self._news = asyncio.Condition()
        self._wanted = asyncio.Event()
        #: Set when the process is to end: streams end at once.
        self.closing = asyncio.Event()

    @contextmanager
    def follow(self, job_id: str) -> Iterator[None]:
        """Poll this job while the block runs."""
        self._followed[job_id] += 1
        self._wanted.set()
        try:
            yield
        finally:
            self._followed[job_id] -= 1
            if not self._followed[job_id]:
                del self._followed[job_id]
                self._positions.pop(job_id, None)

    async def look(self, job_id: str) -> Position | None:
        """Where the job stands, as of `POLL_S` ago at most while it is followed; None when there is no such job."""
        known = self._positions.get(job_id)
        if known is not None:
            return known
        found = await self._database.read(lambda connection: positions(connection, [job_id]))
        return found.get(job_id)

    async def shared(self, key: Hashable, read: Callable[[], Awaitable[ReadT]]) -> ReadT:
        """What `read` returns, asked once for all that ask for the same `key` at the same time or shortly after.

        Hundreds of clients that follow one job read the same entries.  The key has to name all that the value depends
        on, and the value must not change.
        """
        task = self._reads.get(key)
        if task is None:
            task = self._reads[key] = asyncio.ensure_future(read())
            task.add_done_callback(
                lambda _: asyncio.get_running_loop().call_later(POLL_S, self._reads.pop, key, None)
            )
        # A client that leaves must not end what others wait for.
        found: ReadT = await asyncio.shield(task)
        return found

    async def changed(self, job_id: str, known: Position, timeout_s: float) -> bool:
        """Wait until the job stands beyond `known`; False when it did not within the time."""

        def is_news() -> bool:
            seen = self._positions.get(job_id, known)
            return seen.event_seq > known.event_seq or seen.log_seq > known.log_seq

        async with self._news:
            try:
                await asyncio.wait_for(self._news.wait_for(is_news), timeout_s)
            except TimeoutError:
                return False
        return True

    async def run(self) -> None:
        """Look again and again."""
        while True:
            if not self._followed:
                self._wanted.clear()
                await self._wanted.wait()
            job_ids = list(self._followed)
            try:
                found = await self._database.read(partial(positions, job_ids=job_ids))
            except DBAPIError as error:
                log.warning("%s", why_failed(error))
            else:
                async with self._news:
                    self._positions.update(found)
                    self._news.notify_all()
            await asyncio.sleep(POLL_S)

    def close(self) -> None:
        """End all streams; called when the process is asked to stop."""
        self.closing.set()
