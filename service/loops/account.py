"""Keep the ledger: which job uses which part of which node, from when to when."""

from __future__ import annotations

import sqlalchemy as sa

from service.loops.turn import Turn
from service.queue.ledger import Entries, entries
from service.store import jobs, ledger, nodes


def account(turn: Turn) -> None:
    """Write down what jobs began to use, and what they use no more.  Raises Fenced."""
    new = turn.load(lambda connection: _changes(connection, turn.now))
    if new != Entries():
        turn.apply(lambda connection: ledger.write(connection, new))


def _changes(connection: sa.Connection, now: float) -> Entries:
    live = jobs.live_attempts(connection)
    known = ledger.open_uses(connection)
    if not known and not any(attempt.workers for _, attempt in live):
        return Entries()
    return entries(known, live, nodes.current_nodes(connection, now), now)
