"""Takes and renews a lease for a process, in a thread of its own.

The owner renews it several times within its duration, independent of what its loops wait for.  It holds the lease for
its duration after the last renewal that succeeded, by its own monotonic clock.  A process that waits for the lease
counts from a later moment, so that two processes never act at once.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from service.store import leases
from service.store.database import Database
from service.store.leases import Lease, LeaseWatch

log = logging.getLogger(__name__)

#: Renewals within the duration of a lease.
RENEWALS = 5
#: Seconds without progress after which a process stops renewing its lease, so that another one can take it.
STALLED_S = 60.0


@dataclass(frozen=True)
class _HeldLease:
    lease: Lease
    #: Until when, by the monotonic clock, if it is not renewed.
    until: float


class LeaseHolder:
    """One process's lease; `step` and `resign` are called by one thread at a time, all else by any."""

    def __init__(
        self,
        database: Database,
        name: str,
        owner: str,
        lease_s: float,
        monotonic: Callable[[], float] = time.monotonic,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        """`settings` are written down with the lease when it is taken."""
        self._settings = settings
        self._database = database
        self._name = name
        self._owner = owner
        self._lease_s = lease_s
        self._monotonic = monotonic
        self._watch = LeaseWatch()
        #: The newest lease that this process took and has not lost; it may have lapsed.
        self._taken: Lease | None = None
        self._held: _HeldLease | None = None
        self._worked_at: float | None = None
        self._lock = threading.Lock()
        #: Set when `step` is to be called at once.
        self.wake = threading.Event()

    @property
    def pause_s(self) -> float:
        """Seconds until the next `step`, at most."""
        return self._lease_s / RENEWALS

    def held(self) -> Lease | None:
        """The lease, while this process may act under it."""
        held_lease = self._held
        return held_lease.lease if held_lease is not None and self._monotonic() < held_lease.until else None

    def is_held(self, lease: Lease) -> bool:
        """True while this process may act under that lease."""
        return self.held() == lease

    def report_progress(self) -> None:
        """The loops make progress; where neither this nor `report_idle` is ever called, progress is not checked."""
        was_resting, self._worked_at = self._worked_at == -math.inf, self._monotonic()
        if was_resting:
            self.wake.set()

    def report_idle(self) -> None:
        """Nothing can be done under the lease: it is watched until `report_progress`, but not renewed or taken."""
        self._worked_at = -math.inf

    def suspend(self, lease: Lease) -> None:
        """A write under the lease was rejected: it is not held until it has been renewed."""
        with self._lock:
            if self._held is not None and self._held.lease == lease:
                self._held = None
        self.wake.set()

    def step(self, now: float) -> Lease | None:
        """Renew the lease, take it when its owner does not renew it, or watch it; returns it if this process holds it.

        `now` is seconds since 1970 and only written down.  Raises DBAPIError when the database does not answer; the
        lease is then held for as long as it lasts.
        """
        began = self._monotonic()
        may_act = self._may_act(began)
        if self._taken is not None:
            if not may_act:
                return None
            taken = self._taken
            if self._database.transact(lambda connection: leases.renew(connection, taken, now)):
                return self._keep(taken, began)
            self._lose()
        row = self._database.query(lambda connection: leases.get(connection, self._name))
        if row is not None and not row.is_free and self._watch.unchanged_s(row, began) < self._lease_s:
            return None
        if not may_act:
            return None
        lease = self._database.transact(
            lambda connection: leases.take(connection, row, self._name, self._owner, now, self._settings)
        )
        return None if lease is None else self._keep(lease, began)

    def resign(self) -> None:
        """Give the lease up, so that another process takes it at once; nothing may be done under it any more."""
        taken = self._taken
        self._taken = self._held = None
        if taken is not None:
            self._database.transact(lambda connection: leases.give_up(connection, taken))

    def _may_act(self, now: float) -> bool:
        """False while the loops make no progress; the lease is not held any more then."""
        if self._worked_at is None or now - self._worked_at < STALLED_S:
            return True
        with self._lock:
            held, self._held = self._held, None
        if held is not None:
            log.warning("nothing can be done under the lease %s, so it is not renewed", self._name)
        return False

    def _keep(self, lease: Lease, began: float) -> Lease:
        if self._taken != lease:
            log.info("this controller acts now under the lease %s, token %d", self._name, lease.token)
        self._taken = lease
        with self._lock:
            self._held = _HeldLease(lease, began + self._lease_s)
        return lease

    def _lose(self) -> None:
        log.warning("another controller acts now under the lease %s; this one stands by", self._name)
        self._taken = None
        with self._lock:
            self._held = None
