"""Resources of Ray nodes beside CPUs, GPUs and memory, which the cluster announces, and who divides resources."""

from __future__ import annotations

from collections.abc import Collection

#: Announced by the node on which drivers run, which is never preempted: the head's own, or one beside the head.
DRIVERS = "remora_drivers"
#: What such a node has of it, and what one driver takes: a thousand drivers.
DRIVERS_AMOUNT = 1.0
DRIVER_SHARE = 0.001
#: Name and namespace of the actor that divides a cluster's resources among Ray Train's controllers; Ray gives it both.
COORDINATOR = "AutoscalingCoordinator"


def is_bound_coordinator(required: Collection[str]) -> bool:
    """Whether a coordinator that requires these resources was made by Ray, which binds it to one node for ever (pure).

    Ours requires a share of what every node for drivers has, and may stand on any of them.
    """
    return DRIVERS not in required
