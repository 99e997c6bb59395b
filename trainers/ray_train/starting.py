"""Workers that were asked for and are not up yet."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import ray
from ray.train.v2._internal.exceptions import WorkerGroupStartupFailedError
from ray.train.v2._internal.execution.worker_group.worker import Worker
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from trainers.ray_train.liveness import answering_nodes, draining_nodes, is_pending, living_heads
from trainers.ray_train.reservations import Reservation
from trainers.ray_train.start_limit import StartLimit

#: Seconds between two looks at the nodes on which workers start.
_NODES_S = 0.5
#: Seconds that a worker's process may take on a node that answers; a cold one loads a framework from a slow disk.
_START_S = 300.0


class StartingWorkers:
    """Worker actors on resources that are reserved for them, until all of them have answered.

    Ray waits without end for a worker on a node that takes no work any more, so the nodes are looked at, too.
    """

    def __init__(
        self, actor_type: Any, reservations: Sequence[Reservation], resources: dict[str, float]
    ) -> None:
        self.reservations = list(reservations)
        self._resources = resources
        self._limit = StartLimit(living_heads())
        self._actors = [
            actor_type.options(scheduling_strategy=PlacementGroupSchedulingStrategy(one.group, 0)).remote()
            for one in self.reservations
        ]
        self._answers = {actor.get_metadata.remote(): at for at, actor in enumerate(self._actors)}
        self._began_at = self._looked_at = time.monotonic()

    def are_up(self, timeout_s: float = 0.0) -> bool:
        """True when all have answered, within `timeout_s` seconds.

        Raises WorkerGroupStartupFailedError, with none of them left, when one of them cannot.
        """
        answered, missing = ray.wait(list(self._answers), num_returns=len(self._answers), timeout=timeout_s)
        try:
            ray.get(answered)
            self._check([self._answers[answer] for answer in missing])
        except (ray.exceptions.RayError, TimeoutError) as error:
            self.end()
            raise WorkerGroupStartupFailedError(f"a worker could not start: {error}") from error
        return not missing

    def workers(self) -> list[Worker]:
        """All of them, in the order of their reservations and without ranks; they are up."""
        found = ray.get(list(self._answers))
        return [
            Worker(actor, metadata, self._resources, placement_group_bundle_index=0)
            for actor, metadata in zip(self._actors, found, strict=True)
        ]

    @property
    def waited_s(self) -> float:
        """Seconds since they were asked for."""
        return time.monotonic() - self._began_at

    def end(self) -> None:
        """Kill them, those too that have no process yet."""
        for actor in self._actors:
            ray.kill(actor)

    def _check(self, missing: Sequence[int]) -> None:
        now = time.monotonic()
        if not missing or now - self._looked_at < _NODES_S:
            return
        self._looked_at = now
        nodes = {self.reservations[at].ray_node_id for at in missing}
        lost = nodes - answering_nodes(nodes) | nodes & draining_nodes().keys()
        if lost:
            raise TimeoutError(f"the node {min(lost)} takes no work any more")
        self._limit = self._limit.seen(living_heads(), now)
        if self._limit.is_over(now):
            if any(is_pending(self._actors[at]) for at in missing):
                raise TimeoutError("Ray's head was started again and did not begin with it")
            self._limit = self._limit.renewed(now)
        if now - self._began_at > _START_S:
            raise TimeoutError(f"its process was not there after {_START_S:g} s")
