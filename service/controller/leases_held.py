"""The two leases of a controller: that of its cluster, and, in one process, that of what is done for all clusters."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import socket
import threading
import time
from collections.abc import Callable

from remora.clusters import DEFAULT_CLUSTER
from service.controller.lease_holder import LeaseHolder
from service.settings import Settings
from service.steady_clock import CLOCK
from service.store.database import Database
from service.store.ids import new_id
from service.store.leases import SERVICE, Lease, controller_of, get

log = logging.getLogger(__name__)

#: Settings that say what is deleted where, and with which rights a schedule submits.
COMMON = (
    "storage_url",
    "stores",
    "retention_days",
    "retention_jobs",
    "retention_rows",
    "audit_days",
    "authentication",
)


def digests_of(settings: Settings) -> dict[str, str]:
    """A digest of each of the settings that all controllers need to have in common, by name.

    A storage in the home is one of its machine, and no other machine can delete in it.
    """
    values = {name: getattr(settings, name) for name in COMMON}
    if not settings.storage_url:
        values["storage_url"] = [socket.gethostname(), settings.storage]
    texts = {name: json.dumps(value, sort_keys=True) for name, value in values.items()}
    return {name: hashlib.sha256(text.encode()).hexdigest()[:16] for name, text in texts.items()}


class ControllerLeases:
    """Under one owner name; used by the same threads as each `LeaseHolder`."""

    def __init__(
        self, database: Database, settings: Settings, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        owner = f"{socket.gethostname()[:20]}:{os.getpid()}:{new_id('ctl', CLOCK())[-8:]}"
        name = controller_of(settings.cluster)
        self._database, self._is_first = database, settings.cluster == DEFAULT_CLUSTER
        self._common = digests_of(settings)
        self._differing: list[str] = []
        self._cluster = LeaseHolder(database, name, owner, settings.lease_s, monotonic, self._common)
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
        So does who would delete elsewhere, or other rows, than the controller of the first cluster.
        """
        lease = self._cluster.step(now)
        if lease is None or not self._may_serve_all():
            self._service.report_idle()
        else:
            self._service.report_progress()
        self._service.step(now)
        return lease

    def _may_serve_all(self) -> bool:
        """The settings that concern all clusters are those of the newest controller of the first one."""
        if self._is_first:
            return True
        row = self._database.query(lambda connection: get(connection, controller_of(DEFAULT_CLUSTER)))
        theirs = None if row is None else row.settings
        differing = [] if theirs is None else [one for one in COMMON if theirs.get(one) != self._common[one]]
        if differing and differing != self._differing:
            names = ", ".join(f"REMORA_{one.upper()}" for one in differing)
            log.warning(
                "what is done once for all clusters is left to other controllers: settings differ from those of the"
                " cluster %s, give them the same values: %s",
                DEFAULT_CLUSTER,
                names,
            )
        self._differing = differing
        return not differing

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
