"""What jobs left behind: events, log lines, metrics and checkpoints, page by page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import sqlalchemy as sa

from remora.states import JobState
from remora.views import Checkpoint, Event, LogLine, MetricPoint
from service.store.tables import checkpoints, events, jobs, log_lines, metrics


@dataclass(frozen=True)
class Position:
    """How far a job has come: the newest event, the newest log line, and whether more will come."""

    event_seq: int
    log_seq: int
    is_terminal: bool


def positions(connection: sa.Connection, job_ids: Sequence[str]) -> dict[str, Position]:
    """Where the given jobs stand; those that do not exist are left out."""
    if not job_ids:
        return {}
    statement = sa.select(jobs.c.id, jobs.c.event_seq, jobs.c.log_seq, jobs.c.state).where(
        jobs.c.id.in_(job_ids)
    )
    return {
        row.id: Position(row.event_seq, row.log_seq, JobState(row.state).is_terminal)
        for row in connection.execute(statement)
    }


#: Entries that one query looks at for those that a filter wants, so that none holds a connection for long.
SCANNED = 100_000
#: Newest entries among which the last wanted ones are looked for, by one query after the other.
SCANNED_FOR_TAIL = 10 * SCANNED

EntryT = TypeVar("EntryT")
EntryT_co = TypeVar("EntryT_co", covariant=True)


class Filter(Protocol[EntryT_co]):
    """Which entries of a job are wanted, of those that it has by numbers: its events, or its log lines."""

    @property
    def wants_all(self) -> bool:
        """No entry is left out."""
        ...

    @property
    def table(self) -> sa.Table:
        """Where they are, by `job_id` and `seq`."""
        ...

    @property
    def newest(self) -> sa.Column[int]:
        """The number of the newest one, wanted or not, in the row of the job."""
        ...

    def conditions(self) -> Iterator[sa.ColumnElement[bool]]:
        """What holds for the wanted ones."""
        ...

    def entry(self, values: Mapping[str, Any]) -> EntryT_co:
        """One of them, of its columns."""
        ...


@dataclass(frozen=True)
class EventFilter:
    """Which events of a job are wanted; no kind: all."""

    kinds: tuple[str, ...] = ()

    table = events
    newest = jobs.c.event_seq

    @property
    def wants_all(self) -> bool:
        """No event is left out."""
        return not self.kinds

    def conditions(self) -> Iterator[sa.ColumnElement[bool]]:
        """What holds for the wanted ones."""
        if self.kinds:
            yield events.c.kind.in_(self.kinds)

    def entry(self, values: Mapping[str, Any]) -> Event:
        """One of them."""
        return Event(**values)


@dataclass(frozen=True)
class LogFilter:
    """Which lines of a job's log are wanted; None: all."""

    rank: int | None = None
    attempt: int | None = None
    #: Part of the text; ASCII letters match in either case.
    contains: str | None = None

    table = log_lines
    newest = jobs.c.log_seq

    @property
    def wants_all(self) -> bool:
        """No line is left out."""
        return self == LogFilter()

    def conditions(self) -> Iterator[sa.ColumnElement[bool]]:
        """What holds for the wanted ones."""
        if self.rank is not None:
            yield log_lines.c.rank == self.rank
        if self.attempt is not None:
            yield log_lines.c.attempt == self.attempt
        if self.contains is not None:
            yield log_lines.c.text.icontains(self.contains, autoescape=True)

    def entry(self, values: Mapping[str, Any]) -> LogLine:
        """One of them."""
        return LogLine(**{name: value for name, value in values.items() if name != "job_id"})


def page_of_events(connection: sa.Connection, job_id: str, after: int, limit: int) -> list[Event]:
    """Events with a number above `after`, in order."""
    return scan(connection, job_id, EventFilter(), after, limit, None)[0]


def page_of_logs(
    connection: sa.Connection, job_id: str, wanted: LogFilter, after: int, limit: int
) -> list[LogLine]:
    """Wanted lines with a number above `after`, in order."""
    return scan(connection, job_id, wanted, after, limit, None)[0]


def scan(
    connection: sa.Connection,
    job_id: str,
    wanted: Filter[EntryT],
    after: int,
    limit: int,
    scanned: int | None = SCANNED,
) -> tuple[list[EntryT], int | None]:
    """The first `limit` wanted entries of the next `scanned` ones, and the number after which to go on.

    That number is None when no entry follows, or when the limit was reached.
    """
    seq = wanted.table.c.seq
    statement = _wanted(job_id, wanted, wanted.table).where(seq > after).order_by(seq).limit(limit)
    is_bounded = scanned is not None and not wanted.wants_all
    end = after + scanned if scanned is not None and is_bounded else None
    if end is not None:
        statement = statement.where(seq <= end)
    found = [wanted.entry(dict(row._mapping)) for row in connection.execute(statement)]
    goes_on = end is not None and len(found) < limit and end < _newest(connection, job_id, wanted)
    return found, end if goes_on else None


@dataclass(frozen=True)
class TailSearch:
    """How far the search for the last wanted entries is: `missing` more are looked for among those up to `upto`."""

    upto: int
    missing: int
    #: Where the search ends at the latest.
    least: int


def begin_tail(connection: sa.Connection, job_id: str, wanted: Filter[object], tail: int) -> TailSearch:
    """Before the first look for the last `tail` wanted entries."""
    newest = _newest(connection, job_id, wanted)
    if wanted.wants_all:
        # Numbers have no gaps, so that nothing has to be looked for.
        return TailSearch(max(0, newest - tail), 0, 0)
    return TailSearch(newest, tail, max(0, newest - SCANNED_FOR_TAIL))


def go_on_with_tail(
    connection: sa.Connection,
    job_id: str,
    wanted: Filter[object],
    search: TailSearch,
    scanned: int = SCANNED,
) -> TailSearch:
    """Look at the next `scanned` entries; once none is missing, the wanted ones follow `upto`."""
    if search.missing == 0 or search.upto <= search.least:
        return TailSearch(max(search.upto, search.least), 0, search.least)
    seq, first = wanted.table.c.seq, max(search.least, search.upto - scanned)
    mine = _wanted(job_id, wanted, seq).where(seq > first, seq <= search.upto)
    newest = mine.order_by(seq.desc()).limit(search.missing).subquery()
    count, least = connection.execute(sa.select(sa.func.count(), sa.func.min(newest.c.seq))).one()
    if count == search.missing:
        return TailSearch(least - 1, 0, search.least)
    return TailSearch(first, search.missing - count, search.least)


def _newest(connection: sa.Connection, job_id: str, wanted: Filter[object]) -> int:
    """The number of the newest entry of a job; 0: there is none."""
    return int(connection.execute(sa.select(wanted.newest).where(jobs.c.id == job_id)).scalar() or 0)


def _wanted(
    job_id: str, wanted: Filter[object], columns: sa.Table | sa.Column[int]
) -> sa.Select[tuple[Any, ...]]:
    return sa.select(columns).where(wanted.table.c.job_id == job_id, *wanted.conditions())


def page_of_metrics(connection: sa.Connection, job_id: str, after_step: int, limit: int) -> list[MetricPoint]:
    """Points of steps above `after_step`, in order."""
    point = metrics.c
    statement = (
        sa.select(point.step, point.at, point.attempt, point.world_size, point.data.label("values"))
        .where(point.job_id == job_id, point.step > after_step)
        .order_by(point.step)
        .limit(limit)
    )
    return [MetricPoint(**row._mapping) for row in connection.execute(statement)]


def newest_checkpoints(connection: sa.Connection, job_ids: Sequence[str]) -> dict[str, float]:
    """When the newest checkpoint of each of these jobs was committed; jobs without one are missing."""
    if not job_ids:
        return {}
    statement = (
        sa.select(checkpoints.c.job_id, sa.func.max(checkpoints.c.committed_at))
        .where(checkpoints.c.job_id.in_(job_ids))
        .group_by(checkpoints.c.job_id)
    )
    return {row[0]: row[1] for row in connection.execute(statement)}


def job_checkpoints(connection: sa.Connection, job_id: str) -> list[Checkpoint]:
    """Checkpoints that exist, oldest first."""
    statement = sa.select(checkpoints).where(checkpoints.c.job_id == job_id).order_by(checkpoints.c.step)
    return [Checkpoint(**row._mapping) for row in connection.execute(statement)]


def get_checkpoint(connection: sa.Connection, job_id: str, step: int) -> Checkpoint | None:
    """The checkpoint of a step, or None."""
    row = connection.execute(
        sa.select(checkpoints).where(checkpoints.c.job_id == job_id, checkpoints.c.step == step)
    ).first()
    return None if row is None else Checkpoint(**row._mapping)
