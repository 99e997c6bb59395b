"""Tell operators when the cluster cannot be seen, and when it can be again: nothing is bought or returned between."""

from __future__ import annotations

import sqlalchemy as sa

from service.loops.tick import Tick
from service.queue.rows import NewEvent
from service.store import cloud
from service.store.policies import append_cluster_event


def note_unseen(tick: Tick, reason: str) -> None:
    """The provider or Ray does not say what there is; told once, whichever controller sees it.  Raises Fenced."""
    if tick.load(cloud.get).unseen_since is not None:
        return
    message = f"the cluster cannot be seen, and nothing is bought or returned until it can: {reason}"
    event = NewEvent(at=tick.now, kind="cluster.unseen", message=message)

    def work(connection: sa.Connection) -> None:
        cloud.see(connection, tick.now)
        append_cluster_event(connection, event)

    tick.apply(work)


def note_seen(tick: Tick, unseen_since: float) -> None:
    """They say it again.  Raises Fenced."""
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
