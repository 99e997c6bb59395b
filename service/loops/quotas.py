"""Records the quotas of the cloud in an event: at first, and whenever they change."""

from __future__ import annotations

import logging

import sqlalchemy as sa

from cluster.policies.policies import Policies
from service.loops.ports import Supply
from service.loops.tick import Tick
from service.queue.rows import NewEvent
from service.store import policies as store

log = logging.getLogger(__name__)


def note_quotas(tick: Tick, policies: Policies, supply: Supply) -> None:
    """Write an event with the quotas that nodes of the policies use, if they have changed.  Raises Fenced."""
    limits = supply.quota_limits()
    sizes = {size for pool in policies.pools.values() for size in pool.sizes}
    used = {one.quota.lower() for one in supply.offerings() if one.size in sizes}
    units = {name: limits[name] for name in sorted(used & limits.keys())}
    if not units or tick.load(store.newest_quotas) == units:
        return
    words = ", ".join(f"{count} units of {name}" for name, count in units.items())
    message = f"the cloud allows {words}, for all machines together"
    event = NewEvent(at=tick.now, kind="quotas.read", message=message, data={"units": units})

    def work(connection: sa.Connection) -> None:
        store.append_cluster_event(connection, event)

    tick.apply(work)
    log.info("%s", message)
