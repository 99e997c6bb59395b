"""Has nodes cleaned up after workers that were killed there."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from trainers.supervisor.kept_checkpoints import give_back
from trainers.supervisor.node_sweep import sweep_node

log = logging.getLogger(__name__)

#: Seconds that nodes may take at the end of an attempt; a node's next worker does the same.
_SWEEP_S = 5.0


class NodeSweeps:
    """The nodes of one attempt that were asked to end what killed workers left there."""

    def __init__(self) -> None:
        self._asked: list[Any] = []

    def ask(self, ray_node_ids: Iterable[str]) -> None:
        """Ask these nodes, which live, and wait for nothing."""
        self._asked += _on_nodes(ray_node_ids, sweep_node)

    def wait(self) -> None:
        """Return when all of them have, or took too long."""
        if not self._asked:
            return
        asked, self._asked = self._asked, []
        _wait(asked, "after a killed worker")


def give_back_checkpoints(attempt_id: str, ray_node_ids: Collection[str]) -> None:
    """Have those of the nodes that live remove the checkpoints that an attempt keeps there; waits for it a while."""
    if not ray_node_ids:
        return
    living = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
    _wait(_on_nodes(living.intersection(ray_node_ids), give_back, attempt_id), "at the end of an attempt")


def _on_nodes(ray_node_ids: Iterable[str], work: Callable[..., None], *given: str) -> list[Any]:
    task = ray.remote(num_cpus=0, max_retries=0)(work)
    return [
        task.options(scheduling_strategy=NodeAffinitySchedulingStrategy(name, soft=False)).remote(*given)
        for name in set(ray_node_ids)
    ]


def _wait(asked: list[Any], when: str) -> None:
    if not asked:
        return
    done, missing = ray.wait(asked, num_returns=len(asked), timeout=_SWEEP_S)
    for one in done:
        try:
            ray.get(one)
        except ray.exceptions.RayError as error:
            log.warning("a node was not cleaned up %s: %s", when, error)
    if missing:
        log.warning("a node did not clean up %s within %g s", when, _SWEEP_S)
