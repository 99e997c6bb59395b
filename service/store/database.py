"""Access to SQLite or PostgreSQL: short functions of a connection run as transactions.

The controller is synchronous and calls `transact` and `query`; the API awaits `write` and `read`.  On SQLite all
writes of a process go through one thread, which commits what has gathered together, because many connections that
wait for one lock starve each other.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.exc import ArgumentError, NoSuchModuleError

from service.private_home import close_to_others, make_private_file
from service.store.failures import StoreError
from service.store.transactions import Work, run

T = TypeVar("T")

_BUSY_MS = 15_000
_GROUP = 64
#: Characters of a JSON text that is remembered with what it says.
_SHORT_JSON = 4096


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def _read_json(text: str | bytes) -> Any:
    return _parsed(text) if len(text) <= _SHORT_JSON else json.loads(text)


@lru_cache(maxsize=4096)
def _parsed(text: str | bytes) -> Any:
    """Cached, as the same texts are read at every tick; the results are parts of frozen values and never changed."""
    return json.loads(text)


def _clean_url(url: str) -> sa.URL:
    try:
        parsed = sa.make_url(url)
    except ArgumentError:
        raise StoreError(
            "REMORA_DATABASE_URL is not a database URL: write sqlite:///file or postgresql://user@host/name"
        ) from None
    backend = "postgresql" if parsed.drivername == "postgres" else parsed.get_backend_name()
    if backend == "postgresql":
        return parsed.set(drivername="postgresql+psycopg")
    if backend == "sqlite" and parsed.database not in (None, "", ":memory:"):
        return parsed.set(drivername="sqlite+pysqlite")
    raise StoreError(
        f"the database {url.split('://')[0]!r} is not supported: use a SQLite file or PostgreSQL"
    )


def _make_private(url: sa.URL) -> None:
    """SQLite gives the files beside its own the rights of that one."""
    if url.database and url.database != ":memory:":
        make_private_file(Path(url.database))
        for end in ("-wal", "-shm"):
            close_to_others(Path(url.database + end))


def _sqlite_engine(url: sa.URL, begin: str, size: int) -> sa.Engine:
    engine = sa.create_engine(
        url,
        pool_size=size,
        max_overflow=0,
        pool_timeout=60,
        json_serializer=_json,
        json_deserializer=_read_json,
        connect_args={"timeout": 15},
    )

    @event.listens_for(engine, "connect")
    def _connect(connection: sqlite3.Connection, _: object) -> None:
        connection.isolation_level = None
        connection.execute(f"PRAGMA busy_timeout={_BUSY_MS}")
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("PRAGMA foreign_keys=ON")

    @event.listens_for(engine, "begin")
    def _begin(connection: sa.Connection) -> None:
        connection.exec_driver_sql(begin)

    return engine


class Database:
    """A database by its URL.  Raises StoreError when it cannot be opened."""

    def __init__(self, url: str) -> None:
        self.url = _clean_url(url)
        self.is_sqlite = self.url.get_backend_name() == "sqlite"
        try:
            if self.is_sqlite:
                _make_private(self.url)
                # BEGIN IMMEDIATE: a transaction that will write waits for the write lock at once.
                self._writing = _sqlite_engine(self.url, "BEGIN IMMEDIATE", 1)
                self._reading = _sqlite_engine(self.url, "BEGIN", 4)
            else:
                self._writing = sa.create_engine(
                    self.url,
                    pool_size=8,
                    max_overflow=2,
                    pool_pre_ping=True,
                    json_serializer=_json,
                    json_deserializer=_read_json,
                )
                self._reading = self._writing
        except (OSError, NoSuchModuleError, ArgumentError) as error:
            raise StoreError(f"the database cannot be opened: {error}") from error
        self._readers = ThreadPoolExecutor(4 if self.is_sqlite else 8, "store-read")
        self._writer = _Writer(self._writing) if self.is_sqlite else None

    @property
    def engine(self) -> sa.Engine:
        """The engine whose transactions may write; for migrations."""
        return self._writing

    def transact(self, work: Work[T]) -> T:
        """Run `work` in one transaction and return what it returns; its exceptions roll everything back.

        `work` must bear being run again: conflicts between processes are repeated a few times.  Raises Unsure when
        the connection to PostgreSQL broke during COMMIT and the server does not say whether it committed.
        """
        if self._writer is not None:
            return self._writer.submit(work).result()
        return run(self._writing, work)

    def query(self, work: Work[T]) -> T:
        """Run `work`, which only reads, on one consistent snapshot."""
        with self._reading.connect() as connection:
            return work(connection)

    async def write(self, work: Work[T]) -> T:
        """`transact` without blocking the event loop."""
        if self._writer is not None:
            return await asyncio.wrap_future(self._writer.submit(work))
        return await asyncio.get_running_loop().run_in_executor(self._readers, self.transact, work)

    async def read(self, work: Work[T]) -> T:
        """`query` without blocking the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._readers, self.query, work)

    def close(self) -> None:
        """End the threads and close every connection; waits for what is under way."""
        if self._writer is not None:
            self._writer.close()
        self._readers.shutdown()
        self._writing.dispose()
        self._reading.dispose()


_Waiting = tuple[Work[Any], "Future[Any]"]


class _Writer:
    """The one thread of this process that writes to SQLite; commits gathered work together."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        self._waiting: SimpleQueue[_Waiting | None] = SimpleQueue()
        self._closing = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._loop, name="store-write", daemon=True)
        self._thread.start()

    def submit(self, work: Work[T]) -> Future[T]:
        future: Future[T] = Future()
        with self._closing:
            if self._closed:
                raise StoreError("the database is closed")
            self._waiting.put((work, future))
        return future

    def close(self) -> None:
        with self._closing:
            if not self._closed:
                self._closed = True
                self._waiting.put(None)
        self._thread.join()

    def _loop(self) -> None:
        while (first := self._waiting.get()) is not None:
            group = [first]
            ending = False
            while len(group) < _GROUP and not self._waiting.empty():
                following = self._waiting.get()
                if following is None:
                    ending = True
                    break
                group.append(following)
            self._commit([item for item in group if item[1].set_running_or_notify_cancel()])
            if ending:
                return

    def _commit(self, group: list[_Waiting]) -> None:
        if len(group) > 1 and self._commit_together(group):
            return
        for work, future in group:
            try:
                future.set_result(run(self._engine, work))
            except BaseException as error:
                future.set_exception(error)

    def _commit_together(self, group: list[_Waiting]) -> bool:
        try:
            answers = run(self._engine, lambda connection: [work(connection) for work, _ in group])
        except Exception:  # one of them failed and took the others along: each gets its own transaction
            return False
        for (_, future), answer in zip(group, answers, strict=True):
            future.set_result(answer)
        return True
