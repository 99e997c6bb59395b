"""Keeps the ledger: which job uses which part of which node, from when to when."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa

from service.loops.live_attempts import JobAttempt, LiveAttempts
from service.loops.tick import Tick
from service.queue.ledger import Entries, entries
from service.store import ledger, nodes


def write_ledger_entries(tick: Tick, live: LiveAttempts) -> None:
    """Record what jobs have begun to use, and what they use no more.  Raises Fenced."""
    pairs = live.pairs()
    new = tick.load(lambda connection: _changes(connection, tick.cluster, pairs, tick.now))
    if new != Entries():
        tick.apply(lambda connection: ledger.write(connection, new))


def _changes(connection: sa.Connection, cluster: str, live: Sequence[JobAttempt], now: float) -> Entries:
    known = ledger.open_uses(connection, cluster)
    if not known and not any(attempt.workers for _, attempt in live):
        return Entries()
    return entries(known, live, nodes.current_nodes(connection, cluster, now), now)
