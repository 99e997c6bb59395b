"""What the queue needs of a job's specification as accepted; each row reads it once (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cluster.policies.placement import ANYWHERE, Placement
from cluster.policies.policies import CapacityRule


def placement_of(spec: Mapping[str, Any]) -> Placement:
    """Which nodes the job accepts."""
    asked = spec.get("placement")
    if not isinstance(asked, Mapping):
        return ANYWHERE
    capacity = asked.get("capacity")
    return Placement(
        pools=tuple(asked.get("pools", ())),
        zones=tuple(asked.get("zones", ())),
        capacity=None if capacity is None else CapacityRule(capacity),
        needs_fabric=asked.get("fabric") == "infiniband",
    )


def budget_of(spec: Mapping[str, Any]) -> float | None:
    """USD that the job may spend; None sets no limit."""
    return _number(spec, "budget")


def deadline_of(spec: Mapping[str, Any]) -> float | None:
    """When the job is wanted, in seconds since 1970; None: at any time."""
    return _number(spec, "deadline")


def repeats_s(spec: Mapping[str, Any]) -> float:
    """Seconds between two checkpoints that the job is asked for; 0 where the job does not fix them.

    What has not been saved yet is counted besides, so that it is right also where checkpoints cost more than thought.
    """
    policy = spec.get("checkpoint")
    interval = policy.get("interval") if isinstance(policy, Mapping) else None
    return float(interval) if isinstance(interval, int | float) else 0.0


def _number(spec: Mapping[str, Any], name: str) -> float | None:
    limits = spec.get("limits")
    value = limits.get(name) if isinstance(limits, Mapping) else None
    return None if value is None else float(value)
