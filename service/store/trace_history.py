"""What the service remembers of a span of time, for a trace of it."""

from __future__ import annotations

from collections import defaultdict

import sqlalchemy as sa

from service.queue.rows import JobRow, NodeRow
from service.store.policies import newest_quotas
from service.store.rows import to_rows
from service.store.tables import events, jobs, nodes
from service.what_if.recorded import BEGINS, ENDS, Happening, History

#: Jobs of one trace at most, the newest ones.
MOST_JOBS = 100_000


def history_since(connection: sa.Connection, cluster: str, since: float, now: float) -> History:
    """Jobs of a cluster that were submitted after `since` (seconds since 1970), nodes since then, and the quotas."""
    newest = (
        sa.select(jobs)
        .where(jobs.c.created_at >= since, jobs.c.delete_requested_at.is_(None), jobs.c.cluster == cluster)
        .order_by(jobs.c.id.desc())
        .limit(MOST_JOBS)
    )
    rows = to_rows(JobRow, connection.execute(newest))
    first = min((row.created_at for row in rows), default=now)
    statement = (
        sa.select(events.c.job_id, events.c.at, events.c.kind, events.c.data)
        .join(jobs, jobs.c.id == events.c.job_id)
        .where(jobs.c.cluster == cluster, jobs.c.created_at >= first, events.c.kind.in_((*BEGINS, *ENDS)))
        .order_by(events.c.job_id, events.c.seq)
    )
    happenings: dict[str, list[Happening]] = defaultdict(list)
    for event in connection.execute(statement):
        happenings[event.job_id].append(Happening(event.at, event.kind, event.data))
    then = (nodes.c.cluster == cluster, nodes.c.created_at >= first)
    bought = sa.select(nodes).where(*then).order_by(nodes.c.id)
    nodes_then = to_rows(NodeRow, connection.execute(bought))
    return History(rows, happenings, nodes_then, now, newest_quotas(connection, cluster))
