"""Records events of the cluster: when it cannot be observed, what quotas its cloud has, what the operators' rules do.

While it cannot be observed no node is bought or returned.
"""

from __future__ import annotations

import logging
from functools import partial

import sqlalchemy as sa

from cluster.policies.policies import Policies
from cluster.scheduling.actions import Plan, Wait
from cluster.scheduling.formatting import count
from remora.clusters import DEFAULT_CLUSTER
from service.interfaces import Supply
from service.loops.tick import Tick
from service.queue.market import market_of, to_data
from service.queue.rows import NewEvent
from service.store import cloud
from service.store import policies as store

log = logging.getLogger(__name__)

#: Seconds after which the same event about a rule is written again.
REPEAT_S = 3600.0


def record_cluster_hidden(tick: Tick, reason: str) -> None:
    """The provider or Ray does not answer; one event is written, also when controllers change.  Raises Fenced."""
    if tick.load(partial(cloud.get, cluster=tick.cluster)).unseen_since is not None:
        return
    message = f"{_name_of(tick)} cannot be seen, and nothing is bought or returned until it can: {reason}"
    _record_seen(tick, tick.now, NewEvent(at=tick.now, kind="cluster.unseen", message=message))


def record_cluster_visible(tick: Tick, unseen_since: float) -> None:
    """The provider and Ray answer again.  Raises Fenced."""
    lasted_s = max(0.0, tick.now - unseen_since)
    message = f"{_name_of(tick)} can be seen again, after {lasted_s:.0f} s"
    event = NewEvent(at=tick.now, kind="cluster.seen", message=message, data={"unseen_s": lasted_s})
    _record_seen(tick, None, event)


def _name_of(tick: Tick) -> str:
    return "the cluster" if tick.cluster == DEFAULT_CLUSTER else f"the cluster {tick.cluster}"


def _record_seen(tick: Tick, unseen_since: float | None, event: NewEvent) -> None:
    def work(connection: sa.Connection) -> None:
        cloud.see(connection, tick.cluster, unseen_since)
        store.append_cluster_event(connection, event, tick.cluster)

    tick.apply(work)


def record_quotas(tick: Tick, policies: Policies, supply: Supply) -> None:
    """Record the quotas that nodes of the policies use: at first, and whenever they change.  Raises Fenced."""
    limits = supply.quota_limits()
    sizes = {size for pool in policies.pools.values() for size in pool.sizes}
    used = {one.quota.lower() for one in supply.offerings() if one.size in sizes}
    units = {name: limits[name] for name in sorted(used & limits.keys())}
    if not units or tick.load(partial(store.newest_quotas, cluster=tick.cluster)) == units:
        return
    words = ", ".join(f"{count} units of {name}" for name, count in units.items())
    message = f"the cloud allows {words}, for all machines together"
    event = NewEvent(at=tick.now, kind="quotas.read", message=message, data={"units": units})
    tick.apply(lambda connection: store.append_cluster_event(connection, event, tick.cluster))
    log.info("%s", message)


def record_market(tick: Tick, policies: Policies, supply: Supply) -> None:
    """Record what the cloud sells to the pools, at which prices: at first, and whenever it changes.  Raises Fenced."""
    _, before = tick.load(partial(store.newest_market, cluster=tick.cluster))
    market = market_of(policies, supply.offerings(), before)
    if not market or to_data(market) == to_data(before):
        return
    message = f"the cloud sells {count(len(market), 'offering')} to the pools of the policies"
    event = NewEvent(at=tick.now, kind="offerings.read", message=message, data={"offerings": to_data(market)})
    tick.apply(lambda connection: store.append_cluster_event(connection, event, tick.cluster))


def record_vetoes(tick: Tick, actions: Plan) -> None:
    """Record which rules refuse launches of the plan.  Raises Fenced."""
    for action in actions:
        if isinstance(action, Wait) and action.rule is not None:
            event = NewEvent(
                at=tick.now,
                kind="policies.launch_vetoed",
                message=action.reason,
                data={"rule": action.rule, "pool": action.pool},
            )
            _record_once(tick, event)


def record_rule_failure(tick: Tick, name: str, why: str) -> None:
    """Record that a rule was skipped.  Raises Fenced."""
    message = f"the rule {name} is passed over: {why}"
    event = NewEvent(at=tick.now, kind="policies.rule_failed", message=message, data={"rule": name})
    _record_once(tick, event)


def _record_once(tick: Tick, event: NewEvent) -> None:
    """Write an event and a log line, unless the same event was written within `REPEAT_S`."""

    def work(connection: sa.Connection) -> bool:
        since = tick.now - REPEAT_S
        if store.has_cluster_event(connection, event.kind, event.message, tick.cluster, since=since):
            return False
        store.append_cluster_event(connection, event, tick.cluster)
        return True

    if tick.apply(work):
        log.warning("%s", event.message)
