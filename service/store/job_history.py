"""What jobs left behind: events, log lines, metrics and checkpoints, page by page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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


def page_of_events(connection: sa.Connection, job_id: str, after: int, limit: int) -> list[Event]:
    """Events with a number above `after`, in order."""
    statement = (
        sa.select(events)
        .where(events.c.job_id == job_id, events.c.seq > after)
        .order_by(events.c.seq)
        .limit(limit)
    )
    return [Event(**row._mapping) for row in connection.execute(statement)]


#: Lines that one query looks at for those that a filter wants, so that none holds a connection for long.
SCANNED = 100_000
#: Newest lines among which the last wanted ones are looked for, by one query after the other.
SCANNED_FOR_TAIL = 10 * SCANNED
#: Steps with metrics that one answer summarises.
SUMMARISED = 20_000
#: Of the sample of more than them.
_PRIME, _FACTOR = 1_000_003, 618_033


@dataclass(frozen=True)
class LogFilter:
    """Which lines of a job's log are wanted; None: all."""

    rank: int | None = None
    attempt: int | None = None
    #: Part of the text; ASCII letters match in either case.
    contains: str | None = None

    @property
    def wants_all(self) -> bool:
        """No line is left out."""
        return self == LogFilter()


def page_of_logs(
    connection: sa.Connection, job_id: str, wanted: LogFilter, after: int, limit: int
) -> list[LogLine]:
    """Wanted lines with a number above `after`, in order."""
    return scan_logs(connection, job_id, wanted, after, limit, None)[0]


def scan_logs(
    connection: sa.Connection,
    job_id: str,
    wanted: LogFilter,
    after: int,
    limit: int,
    scanned: int | None = SCANNED,
) -> tuple[list[LogLine], int | None]:
    """The first `limit` wanted lines of the next `scanned` ones, and the number after which to go on.

    That number is None when no line follows, or when the limit was reached.
    """
    statement = _wanted(job_id, wanted).where(log_lines.c.seq > after).order_by(log_lines.c.seq).limit(limit)
    is_bounded = scanned is not None and not wanted.wants_all
    end = after + scanned if scanned is not None and is_bounded else None
    if end is not None:
        statement = statement.where(log_lines.c.seq <= end)
    found = [LogLine(**row._mapping) for row in connection.execute(statement)]
    goes_on = end is not None and len(found) < limit and end < newest_line(connection, job_id)
    return found, end if goes_on else None


@dataclass(frozen=True)
class TailSearch:
    """How far the search for the last wanted lines is: `missing` more are looked for among those up to `upto`."""

    upto: int
    missing: int
    #: Where the search ends at the latest.
    least: int


def begin_tail(connection: sa.Connection, job_id: str, wanted: LogFilter, tail: int) -> TailSearch:
    """Before the first look for the last `tail` wanted lines."""
    newest = newest_line(connection, job_id)
    least = 0 if wanted.wants_all else max(0, newest - SCANNED_FOR_TAIL)
    return TailSearch(newest, tail, least)


def go_on_with_tail(
    connection: sa.Connection, job_id: str, wanted: LogFilter, search: TailSearch, scanned: int = SCANNED
) -> TailSearch:
    """Look at the next `scanned` lines; once none is missing, the wanted ones follow `upto`."""
    if search.missing == 0 or search.upto <= search.least:
        return TailSearch(max(search.upto, search.least), 0, search.least)
    first = search.least if wanted.wants_all else max(search.least, search.upto - scanned)
    mine = _wanted(job_id, wanted).where(log_lines.c.seq > first, log_lines.c.seq <= search.upto).subquery()
    newest = sa.select(mine.c.seq).order_by(mine.c.seq.desc()).limit(search.missing).subquery()
    count, seq = connection.execute(sa.select(sa.func.count(), sa.func.min(newest.c.seq))).one()
    if count == search.missing:
        return TailSearch(seq - 1, 0, search.least)
    return TailSearch(first, search.missing - count, search.least)


def newest_line(connection: sa.Connection, job_id: str) -> int:
    """The number of the newest line of a job; 0: there is none."""
    return int(connection.execute(sa.select(jobs.c.log_seq).where(jobs.c.id == job_id)).scalar() or 0)


def _wanted(job_id: str, wanted: LogFilter) -> sa.Select[tuple[int, float, int, int, str, str]]:
    line = log_lines.c
    statement = sa.select(line.seq, line.at, line.attempt, line.rank, line.stream, line.text).where(
        line.job_id == job_id
    )
    if wanted.rank is not None:
        statement = statement.where(line.rank == wanted.rank)
    if wanted.attempt is not None:
        statement = statement.where(line.attempt == wanted.attempt)
    if wanted.contains is not None:
        statement = statement.where(line.text.icontains(wanted.contains, autoescape=True))
    return statement


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


def few_points(connection: sa.Connection, job_id: str, after_step: int, most: int) -> list[MetricPoint]:
    """At most that number of points for all of the steps above `after_step`, in order; see `MetricPoint.least`.

    Each stands for equally many steps.  Of more than `SUMMARISED` steps a sample of about that number is read, and the
    last one: reading all of them would hold a connection for as long as the job is long.
    """
    mine = sa.and_(metrics.c.job_id == job_id, metrics.c.step > after_step)
    ends = sa.select(sa.func.min(metrics.c.step), sa.func.max(metrics.c.step), sa.func.count()).where(mine)
    first, last, count = connection.execute(ends).one()
    if first is None:
        return []
    if count > SUMMARISED:
        # A product modulo a prime spreads steps evenly, at whatever distance a script reports them.
        is_drawn = (metrics.c.step % _PRIME) * _FACTOR % _PRIME < _PRIME * SUMMARISED // count
        mine = sa.and_(mine, sa.or_(is_drawn, metrics.c.step == last))
    width = (last - first) // most + 1
    parts: list[_Part] = []
    rows = connection.execution_options(yield_per=1000).execute(
        sa.select(metrics.c.step, metrics.c.at, metrics.c.attempt, metrics.c.world_size, metrics.c.data)
        .where(mine)
        .order_by(metrics.c.step)
    )
    for step, at, attempt, world_size, data in rows:
        number = (step - first) // width
        if not parts or parts[-1].number != number:
            parts.append(_Part(number))
        parts[-1].add(step, at, attempt, world_size, data)
    return [part.point() for part in parts]


class _Part:
    """The summary of several steps in a row."""

    def __init__(self, number: int) -> None:
        self.number = number
        self._last: tuple[int, float, int, int] = (0, 0.0, 0, 0)
        self._values: dict[str, float | None] = {}
        self._least: dict[str, float] = {}
        self._greatest: dict[str, float] = {}

    def add(
        self, step: int, at: float, attempt: int, world_size: int, data: Mapping[str, float | None]
    ) -> None:
        """The next step."""
        self._last = (step, at, attempt, world_size)
        self._values.update(data)
        for name, value in data.items():
            if value is not None:
                self._least[name] = min(value, self._least.get(name, value))
                self._greatest[name] = max(value, self._greatest.get(name, value))

    def point(self) -> MetricPoint:
        """All of them."""
        step, at, attempt, world_size = self._last
        return MetricPoint(
            step=step,
            at=at,
            attempt=attempt,
            world_size=world_size,
            values=self._values,
            least=self._least,
            greatest=self._greatest,
        )


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
