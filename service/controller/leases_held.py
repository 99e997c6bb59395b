"""The two leases of a controller: that of its cluster, and, in one process, that of what is done for all clusters."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable

from service.controller.lease_holder import LeaseHolder
from service.settings import Settings
from service.steady_clock import CLOCK
from service.store.database import Database
from service.store.ids import new_id
from service.store.leases import SERVICE, Lease, controller_of


class ControllerLeases:
    """Under one owner name; used by the same threads as each `LeaseHolder`."""

    def __init__(
        self, database: Database, settings: Settings, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        owner = f"{socket.gethostname()[:20]}:{os.getpid()}:{new_id('ctl', CLOCK())[-8:]}"
        name = controller_of(settings.cluster)
        self._cluster = LeaseHolder(database, name, owner, settings.lease_s, monotonic)
        self._service = LeaseHolder(database, SERVICE, owner, settings.lease_s, monotonic)

    @property
    def wake(self) -> threading.Event:
        """Set when `step` is to be called at once."""
        return self._cluster.wake

    @property
    def pause_s(self) -> float:
        """Seconds until the next `step`, at most."""
        return self._cluster.pause_s

    def step(self, now: float) -> Lease | None:
        """Renew, take or watch both; returns the lease of the cluster if this process holds it.  Raises DBAPIError.

        Who does not lead its cluster does nothing for all of them either, and leaves that lease to another cluster's.
        """
        lease = self._cluster.step(now)
        if lease is None:
            self._service.report_idle()
        else:
            self._service.report_progress()
        self._service.step(now)
        return lease

    def held(self) -> Lease | None:
        """The lease of the cluster, while this process may act under it."""
        return self._cluster.held()

    def held_for_all(self) -> Lease | None:
        """The lease of what is done once for all clusters, while this process may act under it."""
        return self._service.held()

    def is_held(self, lease: Lease) -> bool:
        """True while this process may act under one of the two."""
        return self._of(lease).is_held(lease)

    def suspend(self, lease: Lease) -> None:
        """A write under the lease was rejected: it is not held until it has been renewed."""
        self._of(lease).suspend(lease)
        self.wake.set()

    def report_progress(self) -> None:
        """The loops make progress."""
        self._cluster.report_progress()

    def report_idle(self) -> None:
        """Nothing can be done under the leases: they are watched, but not renewed or taken."""
        self._cluster.report_idle()

    def resign(self) -> None:
        """Give both up; nothing may be done under them any more."""
        self._service.resign()
        self._cluster.resign()

    def _of(self, lease: Lease) -> LeaseHolder:
        return self._service if lease.name == SERVICE else self._cluster
