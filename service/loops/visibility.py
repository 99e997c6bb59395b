"""Records when the cluster cannot be observed, and when it can again; between them no node is bought or returned."""

from __future__ import annotations

import sqlalchemy as sa

from service.loops.tick import Tick
from service.queue.rows import NewEvent
from service.store import cloud
from service.store.policies import append_cluster_event


def record_cluster_hidden(tick: Tick, reason: str) -> None:
    """The provider or Ray does not answer; one event is written, also when controllers change.  Raises Fenced."""
    if tick.load(cloud.get).unseen_since is not None:
        return
    message = f"the cluster cannot be seen, and nothing is bought or returned until it can: {reason}"
    event = NewEvent(at=tick.now, kind="cluster.unseen", message=message)

    def work(connection: sa.Connection) -> None:
        cloud.see(connection, tick.now)
        append_cluster_event(connection, event)

    tick.apply(work)


def record_cluster_visible(tick: Tick, unseen_since: float) -> None:
    """The provider and Ray answer again.  Raises Fenced."""
    lasted_s = max(0.0, tick.now - unseen_since)
    event = NewEvent(
        at=tick.now,
        kind="cluster.seen",
        message=f"the cluster can be seen again, after {lasted_s:.0f} s",
        data={"unseen_s": lasted_s},
    )

    def work(connection: sa.Connection) -> None:
        cloud.see(connection, None)
        append_cluster_event(connection, event)

    tick.apply(work)
