"""Policies as applied to nodes that cost nothing: each pool is kept at its present maximum (pure)."""

from __future__ import annotations

from cluster.policies.policies import CapacityRule, Policies
from cluster.scheduling.limits import limits_of

#: The size whose nodes are processes of this machine.
LOCAL = "local"
#: Launches, and returns, per minute that are no limit on one machine.
AT_ONCE = 10_000.0
#: A process that is not known to Ray after this many seconds never will be.
JOIN_TIMEOUT_S = 60.0


def kept_full(policies: Policies, now: float, size: str = LOCAL, found: int | None = None) -> Policies:
    """The policies as applied to nodes that cost nothing: each pool is kept at its present maximum.

    Its nodes are of the one `size` that there is; `found` is how many of that there are, None: as many as are wanted.
    """
    same = {
        "sizes": (size,),
        "zones": ("any",),
        "capacity": CapacityRule.ON_DEMAND,
        "warm_nodes": 0,
        "grow_per_minute": AT_ONCE,
        "shrink_per_minute": AT_ONCE,
        "join_timeout_s": JOIN_TIMEOUT_S,
        "schedules": (),
        "maintenance": (),
    }
    pools = {}
    for name, pool in policies.pools.items():
        most = limits_of(pool, now).max_nodes
        most = most if found is None else min(most, found)
        pools[name] = pool.model_copy(update={**same, "min_nodes": most, "max_nodes": most})
    return policies.model_copy(update={"pools": pools})
