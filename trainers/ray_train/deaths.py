"""Whether a worker is dead, and whether its node is."""

from __future__ import annotations

import logging

import ray
from ray.train.v2._internal.exceptions import WorkerHealthCheckFailedError

from trainers.ray_train.nodes import answering_nodes
from trainers.ray_train.owner import Member

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
