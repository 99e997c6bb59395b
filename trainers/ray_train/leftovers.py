"""Has nodes cleaned up after workers that were killed there."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

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
        task = ray.remote(num_cpus=0, max_retries=0)(sweep_node)
        self._asked += [
            task.options(scheduling_strategy=NodeAffinitySchedulingStrategy(name, soft=False)).remote()
            for name in set(ray_node_ids)
        ]

    def wait(self) -> None:
        """Return when all of them have, or took too long."""
        if not self._asked:
            return
        done, missing = ray.wait(self._asked, num_returns=len(self._asked), timeout=_SWEEP_S)
        self._asked = []
        for one in done:
            try:
                ray.get(one)
            except ray.exceptions.RayError as error:
                log.warning("a node was not cleaned up after a killed worker: %s", error)
        if missing:
            log.warning("a node did not clean up after a killed worker within %g s", _SWEEP_S)
