"""One turn of the controller: what every loop is given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import sqlalchemy as sa

from service.settings import Settings
from service.store.database import Database
from service.store.leases import Lease

T = TypeVar("T")


@dataclass(frozen=True)
class Turn:
    """The database, the lease that every write is guarded by, and the time of the turn."""

    database: Database
    settings: Settings
    lease: Lease
    #: Seconds since 1970.
    now: float

    def load(self, work: Callable[[sa.Connection], T]) -> T:
        """Read one consistent snapshot."""
        return self.database.query(work)

    def apply(self, work: Callable[[sa.Connection], T]) -> T:
        """Write in one transaction.  Raises Fenced, with nothing written, when the lease is lost."""

        def guarded(connection: sa.Connection) -> T:
            self.lease.guard(connection)
            return work(connection)

        return self.database.transact(guarded)
