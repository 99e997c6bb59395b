"""Moves the actor that divides a cluster's resources among Ray Train's controllers off nodes that are to end."""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import Any

import ray
from ray._private import state as ray_state
from ray.core.generated import gcs_pb2

from remora.ray_resources import COORDINATOR, is_bound_coordinator

#: Seconds to wait until Ray has started it on another node; it goes on with that afterwards.
_MOVE_S = 20.0
_LOOK_S = 0.1


def move_coordinator(ray_node_ids: Collection[str]) -> None:
    """Let it stand on none of these nodes, which drain; does nothing when it stands elsewhere.

    Ray starts it again on another node, where those who ask it ask on; how long that takes is not limited.  One that
    another program has had Ray bind to its node stays: drivers of the release before ask that one alone.  A controller
    ends it once no driver is there (`trainers.ray_train.coordinator.keep`).  Raises what Ray raises.
    """
    try:
        actor = ray.get_actor(COORDINATOR, namespace=COORDINATOR)
    except ValueError:
        return
    if is_bound_coordinator(_required(actor)) or _node_of(actor) not in ray_node_ids:
        return
    ray.kill(actor, no_restart=False)
    deadline = time.monotonic() + _MOVE_S
    while not _is_settled(actor, ray_node_ids):
        if time.monotonic() > deadline:
            return
        time.sleep(_LOOK_S)


def _entry(actor: Any) -> dict[str, Any]:
    found: dict[str, Any] = ray_state.actors(actor._actor_id.hex())
    return found


def _required(actor: Any) -> set[str]:
    """Names of the resources that it requires; `ray_state.actors` leaves them out."""
    accessor = ray_state.state._connect_and_get_accessor()
    entry = accessor.get_actor_info(actor._actor_id)
    return set(gcs_pb2.ActorTableData.FromString(entry).required_resources) if entry is not None else set()


def _node_of(actor: Any) -> str:
    return str(_entry(actor)["Address"]["NodeID"])


def _is_settled(actor: Any, left: Collection[str]) -> bool:
    """It is up on another node, or dead."""
    entry = _entry(actor)
    return entry["State"] == "DEAD" or (entry["State"] == "ALIVE" and entry["Address"]["NodeID"] not in left)
