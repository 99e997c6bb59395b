"""Sums over everything, for the operator's metrics."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from remora.states import JobState
from service.queue.rows import AttemptRow, JobRow, NodeRow
from service.store.tables import ACTIVE_JOBS, LIVE_NODES, jobs, leases, nodes, refusals
from service.store.tables import totals as kept

# Left alone, SQLite takes an index by their state, and reads every row for its reason.
_WAITING = {
    name: sa.text(f"SELECT reason, count(*) FROM jobs {by} WHERE state = 'queued' GROUP BY reason")  # noqa: S608
    for name, by in (("sqlite", "INDEXED BY ix_jobs_line"), ("postgresql", ""))
}
_OLDEST = sa.text(
    "SELECT min(coalesce(lost_since, waits_from)) FROM jobs"
    " WHERE state = 'queued' AND reason = 'waiting_for_nodes'"
)
_JOBS, _ATTEMPTS, _SUMS, _STARTS = "jobs", "attempts", "sums", "node_starts"
_LOSSES, _ERRORS = "node_losses", "cloud_errors"
#: Upper limits, in seconds, of the parts into which the times are counted that nodes took to be ready.
START_LIMITS_S = (15, 30, 60, 120, 180, 300, 600, 1200)


@dataclass(frozen=True)
class NodeGroup:
    """Nodes that have not ended, of one pool and one type of capacity, in one state."""

    pool: str
    #: `spot` or `on-demand`; empty when it is not known.
    capacity: str
    state: str
    count: int
    #: USD per hour of all of them.
    price_per_hour: float


@dataclass(frozen=True)
class NodeLosses:
    """Nodes that the controller did not give up and that went: taken by the cloud, or failed."""

    #: `spot` or `on-demand`; empty when it is not known.
    capacity: str
    #: A drain came before the end, of the cloud's notice, the node's agent or an operator.
    was_announced: bool
    count: int


@dataclass(frozen=True)
class Totals:
    """How much there is of what, by word."""

    jobs_by_state: dict[str, int]
    nodes: tuple[NodeGroup, ...]
    attempts_by_end_reason: dict[str, int]
    #: Queued jobs by what they wait for.
    queued_by_reason: dict[str, int]
    repeated_steps: int
    lost_s: float
    #: Since when the job waits that has waited for nodes for longest; None: none does.
    waiting_since: float | None
    #: Nodes that were ready at most this long after they were requested, for each of START_LIMITS_S, and of all.
    node_starts: dict[str, int]
    #: Seconds that all of them took together.
    node_starts_s: float
    #: What the cloud refuses now: the number of offerings.
    refused_offerings: int
    #: Requests for machines that the cloud did not carry out, by `ProviderError.kind`.
    cloud_errors: dict[str, int]
    node_losses: tuple[NodeLosses, ...]
    #: Nodes that have not ended and were found to be sick.
    sick_nodes: int
    #: How often the lease of each cluster's controller was taken, by the name of the lease.
    leases_taken: dict[str, int]


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


def count_node_start(connection: sa.Connection, before: NodeRow, after: NodeRow) -> None:
    """In the transaction in which a node becomes ready, how long that took."""
    if after.ready_at is None or before.ready_at is not None:
        return
    took_s = max(0.0, after.ready_at - after.created_at)
    limit = next((str(one) for one in START_LIMITS_S if took_s <= one), "+Inf")
    amounts = {limit: 1.0, "sum": took_s}
    rows = [{"kind": _STARTS, "word": word, "amount": amount} for word, amount in sorted(amounts.items())]
    connection.execute(_add(connection.dialect.name), rows)


def count_node_loss(connection: sa.Connection, node: NodeRow, *, was_announced: bool) -> None:
    """In the transaction in which a node is found to go, or to have gone, without the controller having ended it."""
    capacity = node.offering.rpartition("/")[2]
    word = f"{capacity}:{'announced' if was_announced else 'unannounced'}"
    connection.execute(_add(connection.dialect.name), [{"kind": _LOSSES, "word": word, "amount": 1.0}])


def count_cloud_errors(connection: sa.Connection, counts: Mapping[str, int]) -> None:
    """Requests for machines that the cloud did not carry out, by kind."""
    rows = [{"kind": _ERRORS, "word": word, "amount": float(count)} for word, count in sorted(counts.items())]
    if rows:
        connection.execute(_add(connection.dialect.name), rows)


@lru_cache
def _add(dialect: str) -> sa.Insert:
    statement = (sqlite.insert if dialect == "sqlite" else postgresql.insert)(kept)
    total = kept.c.amount + statement.excluded.amount
    return statement.on_conflict_do_update(index_elements=["kind", "word"], set_={"amount": total})


def totals(connection: sa.Connection, now: float) -> Totals:
    """What is kept, and a count of what waits, runs or is there now: bounded, whatever there once was."""
    dialect = connection.dialect.name
    known: defaultdict[str, dict[str, float]] = defaultdict(dict)
    for row in connection.execute(sa.select(kept)):
        known[row.kind][row.word] = row.amount
    ended = {word: int(count) for word, count in known[_JOBS].items()}
    groups, sick = _live_nodes(connection)
    return Totals(
        jobs_by_state=ended | _count(connection, jobs.c.state, ACTIVE_JOBS),
        nodes=groups,
        attempts_by_end_reason={word: int(count) for word, count in known[_ATTEMPTS].items()},
        queued_by_reason={str(row[0]): int(row[1]) for row in connection.execute(_WAITING[dialect])},
        repeated_steps=int(known[_SUMS].get("repeated_steps", 0)),
        lost_s=known[_SUMS].get("lost_s", 0.0),
        waiting_since=connection.scalar(_OLDEST),
        node_starts=_cumulated(known[_STARTS]),
        node_starts_s=known[_STARTS].get("sum", 0.0),
        refused_offerings=connection.scalar(
            sa.select(sa.func.count()).where(refusals.c.until > now, refusals.c.tries > 0)
        )
        or 0,
        cloud_errors={word: int(count) for word, count in known[_ERRORS].items()},
        node_losses=tuple(
            NodeLosses(*_capacity_and_how(word), int(count)) for word, count in sorted(known[_LOSSES].items())
        ),
        sick_nodes=sick,
        leases_taken={row.name: row.token for row in connection.execute(sa.select(leases))},
    )


def _live_nodes(connection: sa.Connection) -> tuple[tuple[NodeGroup, ...], int]:
    """Nodes that have not ended, and how many of them are sick."""
    kinds = (nodes.c.pool, nodes.c.offering, nodes.c.state)
    # Of a column alone, NULL is not counted.
    amounts = (sa.func.count(), sa.func.sum(nodes.c.price_per_hour), sa.func.count(nodes.c.sick_since))
    statement = sa.select(*kinds, *amounts).where(LIVE_NODES).group_by(*kinds)
    found: defaultdict[tuple[str, str, str], tuple[int, float]] = defaultdict(lambda: (0, 0.0))
    all_sick = 0
    for pool, offering, state, count, price, sick in connection.execute(statement):
        group = (pool, offering.rpartition("/")[2], str(state.value))
        found[group] = (found[group][0] + count, found[group][1] + (price or 0.0))
        all_sick += sick
    return tuple(NodeGroup(*group, *sums) for group, sums in sorted(found.items())), all_sick


def _capacity_and_how(word: str) -> tuple[str, bool]:
    capacity, _, how = word.partition(":")
    return capacity, how == "announced"


def _cumulated(counts: Mapping[str, float]) -> dict[str, int]:
    """As Prometheus counts: each part has those of the ones before it."""
    found, sum_ = {}, 0
    for limit in (*map(str, START_LIMITS_S), "+Inf"):
        sum_ += int(counts.get(limit, 0))
        found[limit] = sum_
    return found


def _count(
    connection: sa.Connection, column: sa.Column[str], *where: sa.ColumnElement[bool] | sa.TextClause
) -> dict[str, int]:
    statement = sa.select(column, sa.func.count()).where(*where).group_by(column)
    return {str(word): int(count) for word, count in connection.execute(statement)}
