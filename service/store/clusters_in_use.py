"""Which clusters have something that costs money or waits, whatever the policies say of them."""

from __future__ import annotations

import sqlalchemy as sa

from service.store.tables import (
    LIVE_ATTEMPTS,
    LIVE_NODES,
    PAUSED_JOBS,
    QUEUED_JOBS,
    attempts,
    jobs,
    nodes,
)

#: Tables, and the partial indexes of them that begin with the cluster.
_PLACES = (
    (jobs, QUEUED_JOBS),
    (jobs, PAUSED_JOBS),
    (attempts, LIVE_ATTEMPTS),
    (nodes, LIVE_NODES),
)


def clusters_in_use(connection: sa.Connection) -> set[str]:
    """The clusters with jobs that have not ended, or with nodes: a step through an index for each, not for each row."""
    found: set[str] = set()
    for table, condition in _PLACES:
        after: str | None = ""
        while after is not None:
            statement = sa.select(sa.func.min(table.c.cluster)).where(condition, table.c.cluster > after)
            after = connection.execute(statement).scalar()
            found.update([] if after is None else [after])
    return found
