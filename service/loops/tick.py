"""One tick of the controller: the database, the lease and the time that every loop works with."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, TypeVar

import sqlalchemy as sa

from service.settings import Settings
from service.store.database import Database
from service.store.failures import Fenced
from service.store.leases import Lease

T = TypeVar("T")


def _always() -> bool:
    return True


@dataclass(frozen=True)
class Tick:
    """The database, the lease that guards every write, and the time at which the tick began."""

    database: Database
    settings: Settings
    lease: Lease
    #: Seconds since 1970.
    now: float
    #: False once this process may no longer act under the lease; it learns that without a database.
    is_held: Callable[[], bool] = _always
    #: A lock, held from the decision which nodes jobs get until it is written: two threads make such decisions.
    #: No call that waits for a cloud or for Ray is made under it.
    deciding: AbstractContextManager[Any] = field(default_factory=nullcontext)

    @property
    def cluster(self) -> str:
        """The cluster that this controller leads."""
        return self.settings.cluster

    def check(self) -> None:
        """To be called before anything is done outside of the database.  Raises Fenced when the lease is lost."""
        if not self.is_held():
            raise Fenced(f"the lease {self.lease.name!r} is not held any more by {self.lease.owner}")

    def load(self, work: Callable[[sa.Connection], T]) -> T:
        """Read one consistent snapshot.  Raises Fenced when the lease is known to be lost."""
        self.check()
        return self.database.query(work)

    def apply(self, work: Callable[[sa.Connection], T]) -> T:
        """Write in one transaction.  Raises Fenced, with nothing written, when the lease is lost."""
        self.check()

        def guarded(connection: sa.Connection) -> T:
            self.lease.guard(connection)
            return work(connection)

        return self.database.transact(guarded)
