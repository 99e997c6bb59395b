"""Tell operators when the cluster cannot be seen, and when it can be again: nothing is bought or returned between."""

from __future__ import annotations

import sqlalchemy as sa

from service.loops.turn import Turn
from service.queue.rows import NewEvent
from service.store import cloud
from service.store.policies import append_cluster_event


def note_unseen(turn: Turn, reason: str) -> None:
    """The provider or Ray does not say what there is; told once, whichever controller sees it.  Raises Fenced."""
    if turn.load(cloud.get).unseen_since is not None:
        return
    message = f"the cluster cannot be seen, and nothing is bought or returned until it can: {reason}"
    event = NewEvent(at=turn.now, kind="cluster.unseen", message=message)

    def work(connection: sa.Connection) -> None:
        cloud.see(connection, turn.now)
        append_cluster_event(connection, event)

    turn.apply(work)


def note_seen(turn: Turn, unseen_since: float) -> None:
    """They say it again.  Raises Fenced."""
    lasted_s = max(0.0, turn.now - unseen_since)
    event = NewEvent(
        at=turn.now,
        kind="cluster.seen",
        message=f"the cluster can be seen again, after {lasted_s:.0f} s",
        data={"unseen_s": lasted_s},
    )

    def work(connection: sa.Connection) -> None:
        cloud.see(connection, None)
        append_cluster_event(connection, event)

    turn.apply(work)
