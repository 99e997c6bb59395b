"""Which of Ray's nodes can be given work right now, and which workers and nodes are dead."""

from __future__ import annotations

import concurrent.futures
import logging
import socket
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import ray
from ray._common.constants import HEAD_NODE_RESOURCE_NAME
from ray.experimental import internal_kv
from ray.train.v2._internal.exceptions import WorkerHealthCheckFailedError

from remora.ray_labels import (
    CLAIM,
    CLAIMS_NAMESPACE,
    NODE_LABEL,
    are_packages_brought,
    claims_in,
    with_claims,
)
from trainers.ray_train.owner import Member

#: Seconds a raylet may take to accept a connection before its node counts as lost.
_PROBE_S = 0.5
#: Seconds for a question to the head about claims.
_ASK_S = 5.0


def draining_nodes() -> dict[str, float]:
    """Ray node id -> deadline in seconds since 1970 (0: unknown) of every node that takes no work of ours.

    Those drain.  In a cluster that Remora did not start, also each one that is not claimed, or not any more.
    """
    found: dict[str, int] = ray._private.state.state.get_draining_nodes()
    draining = {node: deadline_ms / 1000 for node, deadline_ms in found.items()}
    return with_claims(draining, living_nodes(), _claim_entries()) if are_packages_brought() else draining


def answering_nodes(ray_node_ids: set[str]) -> set[str]:
    """Those nodes that Ray calls alive and whose raylet accepts a connection right now."""
    nodes = [n for n in ray.nodes() if n["Alive"] and n["NodeID"] in ray_node_ids]
    if not nodes:
        return set()
    with concurrent.futures.ThreadPoolExecutor(min(32, len(nodes))) as pool:
        answers = list(pool.map(_raylet_answers, nodes))
    return {node["NodeID"] for node, answered in zip(nodes, answers, strict=True) if answered}


def living_nodes() -> set[str]:
    """Ray node ids of all nodes that Ray calls alive."""
    return {node["NodeID"] for node in ray.nodes() if node["Alive"]}


def living_heads() -> frozenset[str]:
    """Ray node ids of the head; of none while another one starts, and of two just after that."""
    return frozenset(
        node["NodeID"]
        for node in ray.nodes()
        if node["Alive"] and HEAD_NODE_RESOURCE_NAME in node["Resources"]
    )


def is_pending(actor: Any) -> bool:
    """Whether Ray has yet to find a process for this actor, or waits for that process to be ready."""
    entry = ray._private.state.actors(actor._actor_id.hex())
    return entry.get("State") in ("DEPENDENCIES_UNREADY", "PENDING_CREATION")


def is_lost(actor: Any) -> bool:
    """Whether Ray's head calls this actor dead, or has it in no books, whatever this process was informed of."""
    entry = ray._private.state.actors(actor._actor_id.hex())
    return entry.get("State") in (None, "DEAD")


def nodes_with(labels: Mapping[str, Sequence[str]]) -> set[str]:
    """Ray node ids of living nodes whose labels have accepted values."""
    return {
        node["NodeID"]
        for node in ray.nodes()
        if node["Alive"] and all(node["Labels"].get(label) in values for label, values in labels.items())
    }


def our_nodes(node_ids: Collection[str]) -> frozenset[str]:
    """Ray node ids of those of our nodes, named by our ids, that are alive."""
    return frozenset(ray_nodes_of(node_ids).values()) if node_ids else frozenset()


def ray_nodes_of(node_ids: Collection[str]) -> dict[str, str]:
    """Our node id -> Ray node id of those of our nodes, named by our ids, that are alive."""
    living = {node["NodeID"]: node["Labels"].get(NODE_LABEL) for node in ray.nodes() if node["Alive"]}
    found = {name: ray_id for ray_id, name in living.items() if name in node_ids}
    if len(found) < len(set(node_ids)):
        # Those of a cluster that Remora did not start have no label.
        claims = {name: ray_id for ray_id, name in claims_in(_claim_entries()).items() if name in node_ids}
        found |= {name: ray_id for name, ray_id in claims.items() if ray_id in living}
    return found


def _claim_entries() -> dict[bytes, bytes]:
    gcs = internal_kv.internal_kv_get_gcs_client()
    keys = gcs.internal_kv_keys(CLAIM, CLAIMS_NAMESPACE, timeout=_ASK_S)
    found: dict[bytes, bytes] = {}
    if keys:
        found = gcs.internal_kv_multi_get(keys, namespace=CLAIMS_NAMESPACE, timeout=_ASK_S)
    return found


def _raylet_answers(node: dict[str, Any]) -> bool:
    address = (node["NodeManagerAddress"], node["NodeManagerPort"])
    try:
        with socket.create_connection(address, timeout=_PROBE_S):
            return True
    except OSError:
        return False


log = logging.getLogger(__name__)


def is_dead_worker(error: Exception) -> bool:
    """True when Ray reports that its process is gone."""
    if isinstance(error, WorkerHealthCheckFailedError):
        error = error.health_check_failure
    return isinstance(error, ray.exceptions.RayActorError)


def find_dead(members: list[Member], known: set[int]) -> tuple[set[int], set[int]]:
    """Slots whose worker process is dead although its node lives, and slots whose node does not answer.

    `known` are slots whose worker is known to be dead.
    """
    nodes = {member.ray_node_id for member in members}
    lost = nodes - answering_nodes(nodes)
    nodes_lost = {member.slot for member in members if member.ray_node_id in lost}
    asked = [member for member in members if member.slot not in known | nodes_lost]
    return (known | silent_slots(asked)) - nodes_lost, nodes_lost


def silent_slots(members: list[Member], timeout_s: float = 2.0) -> set[int]:
    """Slots whose worker process is dead: asked for a sign of life, they answer with an actor error."""
    asked = {member.call(_sign_of_life): member.slot for member in members}
    done, _ = ray.wait(list(asked), num_returns=len(asked), timeout=timeout_s) if asked else ([], [])
    dead: set[int] = set()
    for reference in done:
        try:
            ray.get(reference)
        except ray.exceptions.RayActorError:
            dead.add(asked[reference])
        except ray.exceptions.RayError as error:
            log.warning("slot %s did not answer properly: %s", asked[reference], error)
    return dead


def _sign_of_life() -> bool:
    return True
