"""Sums over everything, for the operator's metrics."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import lru_cache

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from remora.states import JobState
from service.queue.rows import AttemptRow, JobRow
from service.store.tables import ACTIVE_JOBS, LIVE_NODES, jobs, nodes
from service.store.tables import totals as kept

# Left alone, SQLite takes an index by their state, and reads every row for its reason.
_WAITING = {
    name: sa.text(f"SELECT reason, count(*) FROM jobs {by} WHERE state = 'queued' GROUP BY reason")  # noqa: S608
    for name, by in (("sqlite", "INDEXED BY ix_jobs_line"), ("postgresql", ""))
}
_JOBS, _ATTEMPTS, _SUMS = "jobs", "attempts", "sums"


@dataclass(frozen=True)
class Totals:
    """How much there is of what, by word."""

    jobs_by_state: dict[str, int]
    nodes_by_state: dict[str, int]
    attempts_by_end_reason: dict[str, int]
    #: Queued jobs by what they wait for.
    queued_by_reason: dict[str, int]
    repeated_steps: int
    lost_s: float


class Counted:
    """What one transaction changes of the totals that are kept; the same rows are always locked in the same order."""

    def __init__(self) -> None:
        self._more: defaultdict[tuple[str, str], float] = defaultdict(float)

    def note(
        self, before: JobRow, after: JobRow, attempt_before: AttemptRow | None, attempt: AttemptRow | None
    ) -> None:
        """A job changes, and with it perhaps its attempt."""
        if after.state.is_terminal and not before.state.is_terminal:
            self._more[_JOBS, after.state.value] += 1
        self._more[_SUMS, "repeated_steps"] += after.repeated_steps - before.repeated_steps
        self._more[_SUMS, "lost_s"] += after.lost_s - before.lost_s
        was_over = attempt_before is not None and attempt_before.end_reason is not None
        if attempt is not None and attempt.end_reason is not None and not was_over:
            self._more[_ATTEMPTS, attempt.end_reason.value] += 1

    def forget_job(self, state: JobState, count: int) -> None:
        """Jobs that ended so are deleted.  What they cost and lost stays counted."""
        self._more[_JOBS, state.value] -= count

    def write(self, connection: sa.Connection) -> None:
        """Add it to what is kept."""
        rows = [
            {"kind": kind, "word": word, "amount": amount}
            for (kind, word), amount in sorted(self._more.items())
            if amount
        ]
        if rows:
            connection.execute(_add(connection.dialect.name), rows)


@lru_cache
def _add(dialect: str) -> sa.Insert:
    statement = (sqlite.insert if dialect == "sqlite" else postgresql.insert)(kept)
    total = kept.c.amount + statement.excluded.amount
    return statement.on_conflict_do_update(index_elements=["kind", "word"], set_={"amount": total})


def totals(connection: sa.Connection) -> Totals:
    """What is kept, and a count of what waits, runs or is there now: bounded, whatever there once was."""
    dialect = connection.dialect.name
    known: defaultdict[str, dict[str, float]] = defaultdict(dict)
    for row in connection.execute(sa.select(kept)):
        known[row.kind][row.word] = row.amount
    ended = {word: int(count) for word, count in known[_JOBS].items()}
    return Totals(
        jobs_by_state=ended | _count(connection, jobs.c.state, ACTIVE_JOBS),
        nodes_by_state=_count(connection, nodes.c.state, LIVE_NODES),
        attempts_by_end_reason={word: int(count) for word, count in known[_ATTEMPTS].items()},
        queued_by_reason={str(row[0]): int(row[1]) for row in connection.execute(_WAITING[dialect])},
        repeated_steps=int(known[_SUMS].get("repeated_steps", 0)),
        lost_s=known[_SUMS].get("lost_s", 0.0),
    )


def _count(
    connection: sa.Connection, column: sa.Column[str], *where: sa.ColumnElement[bool] | sa.TextClause
) -> dict[str, int]:
    statement = sa.select(column, sa.func.count()).where(*where).group_by(column)
    return {str(word): int(count) for word, count in connection.execute(statement)}
