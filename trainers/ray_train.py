"""Every use of Ray Train's internals: its controller run inside the driver, with policies of ours.

Written against Ray 2.60 and held to it by `tests/contracts/trainers/test_ray_train.py`.  What differs from stock, and
why, with measurements: `docs/decisions/0001-ray-train-inside-the-driver.md`.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import dataclasses
import itertools
import logging
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import ray
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.backend import BackendConfig
from ray.train.v2._internal.callbacks.accelerators import AcceleratorSetupCallback
from ray.train.v2._internal.exceptions import WorkerGroupStartupFailedError, WorkerHealthCheckFailedError
from ray.train.v2._internal.execution.callback import WorkerGroupCallback
from ray.train.v2._internal.execution.controller.controller import TrainController
from ray.train.v2._internal.execution.controller.state import ErroredState
from ray.train.v2._internal.execution.failure_handling import FailureDecision, FailurePolicy
from ray.train.v2._internal.execution.scaling_policy import ElasticScalingPolicy, NoopDecision
from ray.train.v2._internal.execution.scaling_policy.autoscaling_coordinator_client import (
    TrainAutoscalingCoordinatorClient,
)
from ray.train.v2._internal.execution.worker_group.placement_group_handle import DefaultPlacementGroupHandle
from ray.train.v2._internal.execution.worker_group.worker_group import WorkerGroup
from ray.train.v2._internal.util import ObjectRefWrapper
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer
from ray.train.v2.api.exceptions import WorkerGroupError
from ray.util.placement_group import (
    PlacementGroup,
    placement_group,
    placement_group_table,
    remove_placement_group,
)

from remora.worker_sizes import WorkerSizes

log = logging.getLogger(__name__)

#: Seconds between two looks of the controller at its workers.
_POLL_S = 0.2
#: Seconds a raylet may take to accept a connection before its node counts as lost.
_PROBE_S = 0.5
#: Seconds between two looks for resources to grow into.
_GROW_INTERVAL_S = 1.0
#: Seconds resources must be there before the worker group grows into them.
_GROW_SETTLED_S = 1.0
#: Seconds that resources for one more worker may take.
_EXTEND_TIMEOUT_S = 5.0
#: Seconds a placement group may take before another size is tried.
_START_TIMEOUT_S = 15.0

#: Stands between an attempt's name and a number in the names of placement groups by which its worker group grew.
_EXTRA = "+"

#: Name and namespace of the actor that divides the cluster's resources among Ray Train's controllers.
_COORDINATOR = "AutoscalingCoordinator"

#: Environment variables that Ray Train reads in the process of its controller.
_ENVIRONMENT = {
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": str(_POLL_S),
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": str(_START_TIMEOUT_S),
    # Its watcher is one more actor per worker group and looks every 5 s; the scaling policy below looks each second.
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
    # The controller's loop blocks on purpose: it has a thread of its own.
    "RAY_WARN_BLOCKING_GET_INSIDE_ASYNC": "0",
    # As under torchrun: every worker sees all GPUs of its node's workers, and LOCAL_RANK picks one.
    "TRAIN_ENABLE_SHARE_CUDA_VISIBLE_DEVICES": "1",
    "RAY_TRAIN_ENABLE_PRINT_PATCH": "0",
    "RAY_TRAIN_ENABLE_CONTROLLER_STRUCTURED_LOGGING": "0",
    "RAY_TRAIN_ENABLE_WORKER_STRUCTURED_LOGGING": "0",
}


@dataclasses.dataclass(frozen=True)
class Member:
    """One worker of a worker group."""

    #: Its name for its whole life.
    slot: int
    #: Its rank in the worker group with which it began.
    rank: int
    local_rank: int
    local_world_size: int
    node_rank: int
    ray_node_id: str
    address: str
    #: Runs a function in the worker's process; returns an object reference.
    call: Callable[..., Any]
    #: Its node is one that the cloud does not take back, as far as the owner knows.
    is_lasting: bool = False


class Owner(Protocol):
    """What the controller tells its driver and asks it; called from the controller's thread."""

    def group_starts(self, members: list[Member]) -> None:
        """Worker processes are up; their training function starts after this returns."""

    def group_failed(self, members_lost: set[int], nodes_lost: set[int]) -> bool:
        """Something failed; True when a new worker group shall be started."""

    def group_could_not_start(self, error: str) -> None:
        """A worker group did not come up; it is tried again, maybe with another size."""

    def absorbs(self, failed: set[int], dead: set[int], nodes_lost: set[int]) -> set[int]:
        """Those of the failed slots without which the worker group goes on in place; they are dropped."""

    def grows_in_place(self) -> bool:
        """True when workers may join the present worker group without an end of it."""

    def members_join(self, members: list[Member]) -> None:
        """Worker processes for the present worker group are up; their training function starts after this returns."""

    def wants_to_end(self) -> bool:
        """True when no further worker group may start."""

    def may_grow(self) -> bool:
        """True when the present worker group could stop at a checkpoint."""

    def more_workers_fit(self, world_size: int) -> None:
        """Resources for a bigger worker group are there."""

    def nodes_drain(self, deadlines: dict[str, float]) -> None:
        """Nodes of this worker group go: Ray node id -> seconds since 1970 (0: unknown)."""


class AttemptEnds(Exception):
    """Leaves the controller's loop while it waits for resources."""


def run_to_end(
    train_function: Callable[[], None],
    owner: Owner,
    *,
    name: str,
    sizes: WorkerSizes,
    resources: dict[str, float],
    labels: Mapping[str, Sequence[str]],
    storage_path: str,
) -> Exception | None:
    """Run Ray Train's controller in this thread until training has finished or failed; returns its error.

    Workers stand on nodes with these labels only: accepted values by label.
    """
    os.environ.update(_ENVIRONMENT)
    scaling = ScalingConfig(
        num_workers=(sizes.min, sizes.max),
        resources_per_worker=dict(resources),
        use_gpu=resources.get("GPU", 0) > 0,
        label_selector=_selector(labels),
    )
    failures = FailureConfig(max_failures=-1)
    trainer = DataParallelTrainer(
        train_function,
        scaling_config=scaling,
        run_config=RunConfig(name=name, storage_path=storage_path, failure_config=failures),
    )
    backend = trainer.backend_config or BackendConfig()
    policy = _ScalingPolicy(scaling, owner, _requester(name), sizes, labels)
    group_type = _worker_group_type(name, owner)
    controller_type = type("Controller", (_Controller,), {"worker_group_cls": group_type})
    controller = controller_type(
        train_fn_ref=ObjectRefWrapper(train_function),
        train_run_context=trainer.train_run_context,
        scaling_policy=policy,
        failure_policy=_FailurePolicy(failures, owner, policy),
        callbacks=[AcceleratorSetupCallback(backend, scaling), _Lifecycle(owner, policy)],
    )
    asyncio.run(controller.run())
    state = controller.get_state()
    return state.training_failed_error if isinstance(state, ErroredState) else None


def _selector(labels: Mapping[str, Sequence[str]]) -> dict[str, str] | None:
    """The labels as Ray writes them; None when every node will do."""
    return {label: f"in({','.join(values)})" for label, values in labels.items()} or None


def free_resources(name: str) -> None:
    """Free what a dead controller of that name had reserved; fine when there is nothing."""
    try:
        coordinator = ray.get_actor(_COORDINATOR, namespace=_COORDINATOR)
    except ValueError:
        pass
    else:
        # Else nobody else could have these resources until the request expires, which takes three minutes.
        coordinator.cancel_request.remote(_requester(name))
    for identifier, entry in placement_group_table().items():
        is_ours = str(entry.get("name", "")).partition(_EXTRA)[0] == name
        if is_ours and entry.get("state") != "REMOVED":
            remove_placement_group(PlacementGroup(ray.PlacementGroupID(bytes.fromhex(identifier))))


def _requester(name: str) -> str:
    """Name under which a controller asks Ray Train's coordinator for resources."""
    return f"remora-{name}"


class _Controller(TrainController):
    """Stock, in a thread of the driver instead of an actor of its own: one process less to start and to lose."""


def _worker_group_type(name: str, owner: Owner) -> type[WorkerGroup]:
    """The type of worker group for one controller, which makes its groups by itself."""

    class RemoraWorkerGroup(WorkerGroup):
        """Stock, with four differences.

        Its workers need no runtime environment, so Ray uses processes that wait ready.  Its placement groups have a
        name by which `free_resources` finds them.  Its end does not wait for workers that are dead (stock gives them
        5 s to say goodbye).  And it can lose and win workers while the others train.
        """

        _worker_group_state: Any

        def __init__(self, *arguments: Any, **named: Any) -> None:
            super().__init__(*arguments, **named)
            #: Ranks that are known to be dead; set before the group is shut down.
            self.dead_slots: set[int] = set()
            self._slots: dict[Any, int] = {}
            #: Placement groups by which it grew, beside the one with which it began.
            self._extra_placements: list[Any] = []
            #: Placement group and bundle of each worker that joined.
            self._seats: dict[Any, tuple[Any, int]] = {}

        # --- differences in starting and ending

        def _create_placement_group(self, scaling_config: Any, worker_group_context: Any) -> Any:
            del scaling_config
            bundles = [worker_group_context.resources_per_worker] * worker_group_context.num_workers
            return DefaultPlacementGroupHandle(
                placement_group(
                    bundles=bundles,
                    strategy=worker_group_context.placement_strategy,
                    name=name,
                    bundle_label_selector=worker_group_context.label_selector,
                )
            )

        @staticmethod
        def _get_worker_runtime_env(custom_runtime_env: Any) -> dict[str, Any]:
            # An environment of its own would keep Ray from using worker processes that wait ready.
            return dict(custom_runtime_env)

        def shutdown(self) -> None:
            if self._worker_group_state is not None:
                self._keep_workers(lambda worker: self._slots[worker.actor] not in self.dead_slots)
            super().shutdown()
            for extra in self._extra_placements:
                remove_placement_group(extra)

        # --- members by slot

        def members(self) -> list[Member]:
            """Workers as the owner knows them."""
            return [self._member(worker) for worker in self.get_workers()]

        def _member(self, worker: Any) -> Member:
            slot = self._slots.setdefault(worker.actor, next(_slots))
            context = worker.distributed_context
            return Member(
                slot=slot,
                rank=context.world_rank,
                local_rank=context.local_rank,
                local_world_size=context.local_world_size,
                node_rank=context.node_rank,
                ray_node_id=worker.metadata.node_id,
                address=worker.metadata.node_ip,
                call=worker.execute_async,
            )

        def _keep_workers(self, wanted: Callable[[Any], bool]) -> None:
            state = self._worker_group_state
            kept = [worker for worker in state.workers if wanted(worker)]
            self._worker_group_state = dataclasses.replace(state, workers=kept)

        # --- losing workers in place

        def poll_status(self, timeout: float | None = None) -> Any:
            status = super().poll_status(timeout)
            while status.errors and self._drop_absorbed(status.errors):
                status = super().poll_status(timeout)
            return status

        def _drop_absorbed(self, errors: dict[int, Exception]) -> bool:
            members = self.members()
            failed = {members[place].slot for place in errors}
            known = {members[place].slot for place, error in errors.items() if _is_dead_worker(error)}
            dead, nodes_lost = find_dead(members, known)
            absorbed = owner.absorbs(failed, dead, nodes_lost)
            if not absorbed:
                return False
            for worker in self.get_workers():
                if self._slots[worker.actor] in absorbed:
                    ray.kill(worker.actor)
            self._keep_workers(lambda worker: self._slots[worker.actor] not in absorbed)
            self._world_rank_to_ongoing_poll.clear()
            return bool(self.get_workers())

        # --- winning workers in place

        def free_seats(self) -> list[tuple[Any, int]]:
            """Bundles, each with its placement group, that have a node again and no worker."""
            groups = [self._first_placement, *self._extra_placements]
            placed = {(group, index): node for group in groups for index, node in _bundles_of(group).items()}
            taken = {self._seat(worker) for worker in self.get_workers()}
            usable = answering_nodes(set(placed.values())) - draining_nodes().keys()
            return [seat for seat, node in placed.items() if seat not in taken and node in usable]

        @property
        def _first_placement(self) -> Any:
            return self._worker_group_state.placement_group_handle.placement_group

        def _seat(self, worker: Any) -> tuple[Any, int]:
            began_at = (self._first_placement, worker.placement_group_bundle_index)
            return self._seats.get(worker.actor, began_at)

        def refill(self, seats: list[tuple[Any, int]]) -> None:
            """Start workers on free bundles; returns when they are on their way into the group."""
            for group in dict.fromkeys(group for group, _ in seats):
                self._start_joiners(group, [bundle for own, bundle in seats if own == group])

        def extend(self, count: int) -> None:
            """Start workers beyond the size with which the group began; raises TimeoutError without resources."""
            resources = self._worker_group_context.resources_per_worker
            # Ray refuses a name that a living placement group has.
            own_name = f"{name}{_EXTRA}{next(_extras)}"
            selectors = self._worker_group_context.label_selector
            extra = placement_group(
                bundles=[resources] * count,
                strategy="PACK",
                name=own_name,
                bundle_label_selector=selectors and selectors[:1] * count,
            )
            if not extra.wait(_EXTEND_TIMEOUT_S):
                remove_placement_group(extra)
                raise TimeoutError(f"no resources for {count} more workers after all")
            self._drop_idle_placements()
            self._extra_placements.append(extra)
            self._start_joiners(extra, list(range(count)))

        def _drop_idle_placements(self) -> None:
            """Ask no longer for nodes in place of lost ones by which it had grown: it has found others."""
            taken = {self._seat(worker)[0] for worker in self.get_workers()}
            for idle in [one for one in self._extra_placements if one not in taken]:
                self._extra_placements.remove(idle)
                remove_placement_group(idle)

        def _start_joiners(self, group: Any, bundles: list[int]) -> None:
            present = self.get_workers()
            size = len(present) + len(bundles)
            workers = self._create_workers(
                num_workers=len(bundles),
                placement_group=group,
                resources_per_worker=self._worker_group_context.resources_per_worker,
                placement_group_bundle_indices=bundles,
                starting_world_rank=len(present),
                world_size=size,
            )
            for worker, bundle in zip(workers, bundles, strict=True):
                # Stock knows the first placement group only.
                worker.placement_group_bundle_index = bundle if group == self._first_placement else -1
                self._seats[worker.actor] = (group, bundle)
            try:
                self._init_train_context(workers, self._worker_group_state.sync_actor)
                owner.members_join([self._member(worker) for worker in workers])
            except Exception:
                for worker in workers:
                    ray.kill(worker.actor)
                raise
            state = self._worker_group_state
            self._worker_group_state = dataclasses.replace(state, workers=[*state.workers, *workers])
            train_function = self._worker_group_context.train_fn_ref
            ray.get([worker.actor.run_train_fn.remote(train_function) for worker in workers])

    return RemoraWorkerGroup


#: Names for workers, unique within the driver.
_slots = itertools.count()
#: Numbers of placement groups by which worker groups grew.
_extras = itertools.count()


class _Lifecycle(WorkerGroupCallback):
    """Tells the owner when worker processes are up, before they train."""

    def __init__(self, owner: Owner, policy: _ScalingPolicy) -> None:
        self._owner = owner
        self._policy = policy

    def after_worker_group_start(self, worker_group: Any) -> None:
        self._policy.group = worker_group
        self._owner.group_starts(worker_group.members())


class _ScalingPolicy(ElasticScalingPolicy):
    """Counts only nodes that answer and stay, in sizes that fit, grows at checkpoints, and says which nodes drain."""

    GET_RESERVED_RESOURCES_INTERVAL_S = 0.3

    def __init__(
        self,
        scaling_config: ScalingConfig,
        owner: Owner,
        requester: str,
        sizes: WorkerSizes,
        labels: Mapping[str, Sequence[str]],
    ) -> None:
        super().__init__(scaling_config)
        self._sizes = sizes
        self._labels = labels
        self._requester = requester
        self._latest_reserved_resources_query_time: float
        self._latest_reserved_resources: Any
        self._owner = owner
        #: The newest worker group.
        self.group: Any = None
        #: The newest worker group holds its resources.
        self._trains = False
        self._looked_at = float("-inf")
        self._fits_since: float | None = None

    def after_controller_start(self, train_run_context: Any) -> None:
        """Ask for resources under a name that `free_resources` knows; stock invents one."""
        del train_run_context
        self._requester_id = self._requester
        self._coordinator_client = TrainAutoscalingCoordinatorClient(self._requester)
        self._send_resource_request()

    def make_decision_for_non_running_worker_group(self) -> Any:
        self._trains = False
        if self._owner.wants_to_end():
            raise AttemptEnds
        decision = super().make_decision_for_non_running_worker_group()
        if isinstance(decision, NoopDecision):
            # Stock asks again at once; this thread is ours, so it may rest.
            time.sleep(_POLL_S)
        else:
            self._fits_since = None
        return decision

    def make_decision_for_running_worker_group(
        self, worker_group_state: Any, worker_group_status: Any
    ) -> NoopDecision:
        del worker_group_status
        self._trains = True
        self._maybe_send_resource_request()
        now = time.monotonic()
        if now - self._looked_at < _GROW_INTERVAL_S:
            return NoopDecision()
        self._looked_at = now
        self._look_for_drains()
        present = worker_group_state.num_workers
        if present < self.scaling_config.max_workers:
            if self._owner.grows_in_place():
                self._grow_in_place(present, now)
            elif self._owner.may_grow():
                self._look_for_room(present, now, self._owner.more_workers_fit)
        return NoopDecision()

    def _grow_in_place(self, present: int, now: float) -> None:
        found = self.group.free_seats()
        free = found[: max(0, self._sizes.fit(present + len(found)) - present)]
        try:
            if free:
                self.group.refill(free)
            else:
                self._look_for_room(present, now, lambda fits: self.group.extend(fits - present))
        except (TimeoutError, WorkerGroupStartupFailedError, ray.exceptions.RayError) as error:
            log.warning("no worker joined: %s", error)

    def _look_for_drains(self) -> None:
        draining = draining_nodes()
        ours = {member.ray_node_id for member in self.group.members()}
        deadlines = {node: deadline for node, deadline in draining.items() if node in ours}
        if deadlines:
            self._owner.nodes_drain(deadlines)

    def _look_for_room(self, present: int, now: float, grow: Callable[[int], None]) -> None:
        reserved = self._get_reserved_resources()
        fits = 0 if reserved is None else self._count_possible_workers(reserved)
        if fits <= present:
            self._fits_since = None
        elif self._fits_since is None:
            self._fits_since = now
        elif now - self._fits_since >= _GROW_SETTLED_S:
            self._fits_since = None
            grow(fits)

    def _count_possible_workers(self, reserved_resources: Any) -> int:
        """Stock knows a smallest and a largest size only."""
        return self._sizes.fit(super()._count_possible_workers(reserved_resources))

    def _get_reserved_resources(self) -> Any:
        """Stock asks for a table that is up to 20 s old and holds dead and draining nodes."""
        now = time.monotonic()
        if now - self._latest_reserved_resources_query_time < self.GET_RESERVED_RESOURCES_INTERVAL_S:
            return self._latest_reserved_resources
        reserved = self._ask_coordinator()
        if reserved is not None and self._labels:
            # It divides the cluster without regard to labels, so that its answer may be of any nodes.
            reserved = self._within_labels()
        if reserved is not None:
            answering = answering_nodes(set(reserved))
            going = draining_nodes()
            reserved = {node: r for node, r in reserved.items() if node in answering and node not in going}
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
            return None

    def _within_labels(self) -> dict[str, dict[str, float]]:
        """What nobody else uses on the nodes that may be used, by Ray node id."""
        free: dict[str, dict[str, float]] = ray._private.state.available_resources_per_node()
        found = {node: free[node] for node in nodes_with(self._labels) if node in free}
        worker = self.scaling_config._resources_per_worker_not_none
        for member in self.group.members() if self._trains else ():
            if member.ray_node_id in found:
                mine = found[member.ray_node_id]
                added = {name: mine.get(name, 0.0) + amount for name, amount in worker.items()}
                found[member.ray_node_id] = {**mine, **added}
        return found


class _FailurePolicy(FailurePolicy):
    """Collects the facts of a failure and lets the driver judge them."""

    def __init__(self, failure_config: FailureConfig, owner: Owner, policy: _ScalingPolicy) -> None:
        super().__init__(failure_config)
        self._owner = owner
        self._policy = policy

    def make_decision(self, training_failed_error: Exception) -> FailureDecision:
        if isinstance(training_failed_error, WorkerGroupError):
            members = self._policy.group.members()
            known = {
                members[place].slot
                for place, error in training_failed_error.worker_failures.items()
                if _is_dead_worker(error)
            }
            dead, nodes_lost = find_dead(members, known)
            self._policy.group.dead_slots = dead | nodes_lost
            goes_on = self._owner.group_failed(dead, nodes_lost)
            return FailureDecision.RETRY if goes_on else FailureDecision.RAISE
        cause = getattr(training_failed_error, "controller_failure", training_failed_error)
        if isinstance(cause, AttemptEnds) or self._owner.wants_to_end():
            return FailureDecision.RAISE
        self._owner.group_could_not_start(f"{type(cause).__name__}: {cause}")
        return FailureDecision.RAISE if self._owner.wants_to_end() else FailureDecision.RETRY


def _bundles_of(group: Any) -> dict[int, str]:
    """Bundle -> Ray node id of a placement group; {} while some of it has no node."""
    entry = placement_group_table(group)
    if entry.get("state") != "CREATED":
        return {}
    return {int(index): node for index, node in sorted(entry["bundles_to_node_id"].items())}


def _is_dead_worker(error: Exception) -> bool:
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


def draining_nodes() -> dict[str, float]:
    """Ray node id -> deadline in seconds since 1970 (0: unknown) of every draining node."""
    found: dict[str, int] = ray._private.state.state.get_draining_nodes()
    return {node: deadline_ms / 1000 for node, deadline_ms in found.items()}


def answering_nodes(ray_node_ids: set[str]) -> set[str]:
    """Those nodes that Ray calls alive and whose raylet accepts a connection right now."""
    nodes = [n for n in ray.nodes() if n["Alive"] and n["NodeID"] in ray_node_ids]
    if not nodes:
        return set()
    with concurrent.futures.ThreadPoolExecutor(min(32, len(nodes))) as pool:
        answers = list(pool.map(_raylet_answers, nodes))
    return {node["NodeID"] for node, answered in zip(nodes, answers, strict=True) if answered}


def nodes_with(labels: Mapping[str, Sequence[str]]) -> set[str]:
    """Ray node ids of living nodes whose labels have accepted values."""
    return {
        node["NodeID"]
        for node in ray.nodes()
        if node["Alive"] and all(node["Labels"].get(label) in values for label, values in labels.items())
    }


def _raylet_answers(node: dict[str, Any]) -> bool:
    address = (node["NodeManagerAddress"], node["NodeManagerPort"])
    try:
        with socket.create_connection(address, timeout=_PROBE_S):
            return True
    except OSError:
        return False


__all__ = ["Member", "Owner", "free_resources", "nodes_with", "run_to_end"]
