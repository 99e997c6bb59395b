"""How many workers train: on nodes that answer and stay, in sizes that fit, growing as nodes come."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ray
from ray.train import ScalingConfig
from ray.train.v2._internal.exceptions import WorkerGroupStartupFailedError
from ray.train.v2._internal.execution.scaling_policy import ElasticScalingPolicy, NoopDecision

from remora.spec.worker_sizes import WorkerSizes
from trainers.ray_train import coordinator
from trainers.ray_train.liveness import answering_nodes, draining_nodes, living_nodes, nodes_with
from trainers.ray_train.owner import AttemptEnds, NominatedNodes, Owner
from trainers.ray_train.reservations import capacity_on, spread_out

log = logging.getLogger(__name__)

#: Seconds between two looks of the controller at its workers.
POLL_S = 0.2
#: Seconds between two looks for resources to grow into.
_GROW_INTERVAL_S = 1.0
#: Seconds resources must be there before the worker group grows into them.
_GROW_SETTLED_S = 1.0
#: Seconds for which a start waits for what is promised and not free yet: what others have just left, for example.
_PROMISED_S = 1.0


class ElasticPolicy(ElasticScalingPolicy):
    """Counts only nodes that answer and stay, in sizes that fit, grows at checkpoints, and says which nodes drain."""

    GET_RESERVED_RESOURCES_INTERVAL_S = 0.3

    def __init__(
        self,
        scaling_config: ScalingConfig,
        owner: Owner,
        requester: str,
        sizes: WorkerSizes,
        labels: Mapping[str, Sequence[str]],
        workers_per_node: int | None = None,
    ) -> None:
        super().__init__(scaling_config)
        self._sizes = sizes
        self._labels = labels
        self._workers_per_node = workers_per_node
        self._requester = requester
        self._latest_reserved_resources_query_time: float
        self._latest_reserved_resources: Any
        self._owner = owner
        #: The newest worker group; None before the first, and after one whose places were given back.
        self.group: Any = None
        #: Has the controller end that group and free its places; set once there is a controller.
        self.end_group: Callable[[], None]
        #: Workers that there is capacity for on each node, by Ray node id, those of this attempt included.
        self._capacity: dict[str, int] = {}
        #: Nodes that the coordinator has for this attempt; what it has for others is better left to them.
        self._preferred: frozenset[str] = frozenset()
        #: Nodes that are nominated for a job: for others only as long as there is capacity for a group without them.
        self._nominated = NominatedNodes()
        #: Workers that fit into what the coordinator has for this attempt, and since when there is capacity for fewer.
        self._promised = 0
        self._short_since: float | None = None
        self._looked_at = float("-inf")
        self._fits_since: float | None = None
        #: The most workers that the newest worker group has had.
        self._most = 0

    def after_controller_start(self, train_run_context: Any) -> None:
        """Ask for resources under a name that `free_resources` knows; stock invents one."""
        del train_run_context
        self._requester_id = self._requester
        self._coordinator_client = coordinator.CoordinatorClient(self._requester)
        self._send_resource_request()

    def make_decision_for_non_running_worker_group(self) -> Any:
        """Begin with as many workers as there is capacity for; raises AttemptEnds when none may begin."""
        if self._owner.wants_to_end():
            raise AttemptEnds
        self._follow_sizes()
        decision = self._begin()
        if isinstance(decision, NoopDecision) or self._is_promised_more(decision.num_workers):
            self._vacate_nodes()
            # Stock asks again at once; this thread is ours, so it may rest.
            time.sleep(POLL_S)
            return NoopDecision()
        self._fits_since = self._short_since = None
        self._most = 0
        return decision

    def _follow_sizes(self) -> None:
        """Ask for other resources when the job may have another number of workers than before."""
        sizes = self._owner.sizes()
        if sizes == self._sizes:
            return
        self._sizes = sizes
        self.scaling_config.num_workers = (sizes.min, sizes.max)
        self._latest_reserved_resources_query_time = float("-inf")
        self._send_resource_request()

    def _begin(self) -> Any:
        """Begin without what is nominated for other jobs; with it where there is no capacity for a group elsewhere.

        Two attempts that wait for what is nominated for one another would never begin.
        """
        nominated = self._owner.nominated_nodes()
        self._count_with(nominated)
        decision = super().make_decision_for_non_running_worker_group()
        if nominated.others and isinstance(decision, NoopDecision):
            self._count_with(NominatedNodes(own=nominated.own, closed=nominated.closed))
            decision = super().make_decision_for_non_running_worker_group()
        return decision

    def _count_with(self, nominated: NominatedNodes) -> None:
        """From now on count no capacity on nodes nominated for others, and all that is free on those for this job."""
        if nominated != self._nominated:
            self._nominated = nominated
            self._latest_reserved_resources_query_time = float("-inf")

    def _is_promised_more(self, fits: int) -> bool:
        now = time.monotonic()
        if fits >= self._promised:
            self._short_since = None
            return False
        if self._short_since is None:
            self._short_since = now
        return now - self._short_since < _PROMISED_S

    def nodes_for(self, count: int, occupied: Sequence[str]) -> list[str]:
        """Ray node ids for `count` workers beside those that run on these nodes; fewer when there is no capacity."""
        return spread_out(self._capacity, count, occupied, self._preferred)

    def make_decision_for_running_worker_group(
        self, worker_group_state: Any, worker_group_status: Any
    ) -> NoopDecision:
        """Never replace the group: it grows in place, or at a checkpoint, for which the driver is asked."""
        del worker_group_state, worker_group_status
        self._follow_sizes()
        self._maybe_send_resource_request()
        if self.group.is_growing and self._owner.grows_in_place():
            self._grow_by(self.group.admit_started)
        now = time.monotonic()
        if now - self._looked_at < _GROW_INTERVAL_S:
            return NoopDecision()
        self._looked_at = now
        self._count_with(self._owner.nominated_nodes())
        self._look_for_drains()
        # A worker that has just joined is not in this state yet.
        present = len(self.group.get_workers())
        self._most = max(self._most, present)
        if present < self.scaling_config.max_workers and not self.group.is_growing:
            if self._owner.grows_in_place():
                # What it has lost it takes back at once.
                self._look_for_capacity(present, now, lambda fits: self._extend(fits - present), self._most)
            elif self._owner.may_grow():
                self._look_for_capacity(present, now, self._owner.more_workers_fit)
        return NoopDecision()

    def _extend(self, count: int) -> None:
        self._grow_by(lambda: self.group.extend(count))

    def _grow_by(self, step: Callable[[], None]) -> None:
        try:
            step()
        except (TimeoutError, WorkerGroupStartupFailedError, ray.exceptions.RayError) as error:
            log.warning("no worker joined: %s", error)

    def _look_for_drains(self) -> None:
        draining = draining_nodes()
        if not draining:
            return
        ours = {member.ray_node_id for member in self.group.members()}
        deadlines = {node: deadline for node, deadline in draining.items() if node in ours}
        if deadlines:
            self._owner.nodes_drain(deadlines)

    def _vacate_nodes(self) -> None:
        """Give back what a group that has stopped holds on nodes that go or are gone.

        A node stays, and costs, while something is reserved on it.
        """
        places = set(self._own_places())
        draining = places & draining_nodes().keys() | places - living_nodes() if places else set()
        if draining and places <= draining:
            self.end_group()
            self.group = None
        elif draining:
            self.group.vacate(draining)

    def _look_for_capacity(
        self, present: int, now: float, grow: Callable[[int], None], at_once: int = 0
    ) -> None:
        """Grow into capacity that has been free for a while, and up to `at_once` workers right now."""
        reserved = self._get_reserved_resources()
        fits = 0 if reserved is None else self._count_possible_workers(reserved)
        if fits <= present:
            self._fits_since = None
            return
        if self._fits_since is None:
            self._fits_since = now
        if fits <= at_once or now - self._fits_since >= _GROW_SETTLED_S:
            self._fits_since = None
            grow(fits)

    def _count_possible_workers(self, reserved_resources: Any) -> int:
        """Stock knows a smallest and a largest size only, and not what is free."""
        promised = super()._count_possible_workers(reserved_resources)
        self._promised = self._sizes.fit(promised)
        return self._sizes.fit(min(promised, sum(self._capacity.values())))

    def _get_reserved_resources(self) -> Any:
        """Stock asks for a table that is up to 20 s old and holds dead and draining nodes."""
        now = time.monotonic()
        if now - self._latest_reserved_resources_query_time < self.GET_RESERVED_RESOURCES_INTERVAL_S:
            return self._latest_reserved_resources
        reserved = self._ask_coordinator()
        if reserved is not None:
            self._preferred = self._nominated.own | reserved.keys()
            closed = self._nominated.others | self._nominated.closed
            apart = draining_nodes().keys() | closed - set(self._own_places())
            free = {node: has for node, has in self._free_nodes().items() if node not in apart}
            if self._labels or apart:
                # The coordinator divides all living nodes: what it has for us may be on nodes that we cannot use.
                reserved = free
            elif self._nominated.own:
                # It has promised these to attempts that may grow, and does not know that they do not grow there.
                reserved = {**reserved, **{node: free[node] for node in self._nominated.own & free.keys()}}
            answering = answering_nodes(reserved.keys() | free.keys())
            reserved = {node: has for node, has in reserved.items() if node in answering}
            free = {node: has for node, has in free.items() if node in answering}
            worker = self.scaling_config._resources_per_worker_not_none
            most = self.scaling_config.max_workers
            self._capacity = capacity_on(free, worker, min(most, self._workers_per_node or most))
        self._latest_reserved_resources_query_time = time.monotonic()
        self._latest_reserved_resources = reserved
        return reserved

    def _ask_coordinator(self) -> Any:
        try:
            return ray.get(
                self._autoscaling_coordinator.get_reserved_resources.remote(
                    self._requester_id, recompute=True
                ),
                timeout=5,
            )
        except ray.exceptions.RayError as error:
            log.warning("could not ask for the resources reserved for this attempt: %s", error)
            if isinstance(error, coordinator.DEAD):
                self._coordinator_client.replace()
                self._send_resource_request()
            return None

    def _free_nodes(self) -> dict[str, dict[str, float]]:
        """What is not in use on the nodes with our labels, by Ray node id."""
        free: dict[str, dict[str, float]] = ray._private.state.available_resources_per_node()
        found = {node: free[node] for node in nodes_with(self._labels) if node in free}
        worker = self.scaling_config._resources_per_worker_not_none
        for node in self._own_places():
            if node in found:
                mine = found[node]
                added = {name: mine.get(name, 0.0) + amount for name, amount in worker.items()}
                found[node] = {**mine, **added}
        return found

    def _own_places(self) -> list[str]:
        """Ray node id of each place that is ours; a group that has stopped holds them until another one starts."""
        return [] if self.group is None else list(self.group.places())
