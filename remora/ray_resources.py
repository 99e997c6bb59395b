"""Resources of Ray nodes beside CPUs, GPUs and memory; the cluster announces them, and attempts ask for them."""

from __future__ import annotations

#: Announced by the node on which drivers run, which is never preempted: the head's own, or one beside the head.
DRIVERS = "remora_drivers"
#: What such a node has of it, and what one driver takes: a thousand drivers.
DRIVERS_AMOUNT = 1.0
DRIVER_SHARE = 0.001
