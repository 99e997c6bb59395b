"""The workers of one attempt, which can lose and gain members while the others train."""

from __future__ import annotations

import dataclasses
import itertools
import os
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

import ray
from ray.train.v2._internal.exceptions import WorkerGroupStartupTimeoutError
from ray.train.v2._internal.execution.worker_group.poll import WorkerStatus
from ray.train.v2._internal.execution.worker_group.state import _shutdown_workers
from ray.train.v2._internal.execution.worker_group.worker_group import WorkerGroup
from ray.train.v2._internal.util import bundle_to_remote_args

from trainers.ray_train.leftovers import NodeSweeps
from trainers.ray_train.liveness import find_dead, is_dead_worker
from trainers.ray_train.local_ranks import LocalWorker, places_of_joiners
from trainers.ray_train.owner import Member, Owner
from trainers.ray_train.polls import Polls, PollSchedule
from trainers.ray_train.reservations import Reservation, Reservations, free_reservations
from trainers.ray_train.starting import StartingWorkers

#: Seconds between two looks at workers with which a group begins.
_LOOK_S = 0.5
#: Seconds that workers of a group that trains no more may take to end.
_SHUTDOWN_S = 2.0
#: Seconds that capacity for one more worker may take.
_EXTEND_TIMEOUT_S = 5.0

#: Names for workers, unique within the driver.
_slots = itertools.count()


def _number_locally(present: Sequence[Any], joining: Sequence[Any]) -> list[tuple[Any, str]]:
    """Give workers that join local ranks that stay theirs; returns each with the GPUs that it is to see."""
    places = places_of_joiners(
        [
            LocalWorker(one.metadata.node_id, one.distributed_context.local_rank, one.metadata.gpu_ids)
            for one in present
        ],
        [(one.metadata.node_id, one.metadata.gpu_ids) for one in joining],
    )
    for one, place in zip(joining, places, strict=True):
        one.distributed_context = dataclasses.replace(
            one.distributed_context, local_rank=place.local_rank, local_world_size=place.local_world_size
        )
    return [(one, place.visible_gpus) for one, place in zip(joining, places, strict=True)]


def _show_gpus(gpus: str) -> None:
    os.environ["CUDA_VISIBLE_DEVICES"] = gpus


@dataclasses.dataclass(frozen=True)
class AttemptWorkers:
    """What every worker group of one attempt needs besides what Ray Train gives it, and how one is started.

    Ray Train's controller takes it for the class of its worker groups, of which it only calls `create`.
    """

    #: Under this name resources are reserved.
    name: str
    owner: Owner
    #: Ray node ids on which that many more workers are to be started, beside those with these workers on them.
    nodes_for: Callable[[int, Sequence[str]], list[str]]
    sweeps: NodeSweeps

    def create(self, *arguments: Any, **named: Any) -> RemoraWorkerGroup:
        """Start a worker group; see `WorkerGroup.create` of Ray Train."""
        group = RemoraWorkerGroup(self, *arguments, **named)
        group._start()
        return group


class RemoraWorkerGroup(WorkerGroup):
    """Stock, with six differences.

    Its workers need no runtime environment, so Ray uses processes that wait ready.  The reservation of each worker is
    reserved by itself, on a node of our choice, and freed with the worker.  It does not wait for workers whose node
    takes no work any more.  Its end does not wait for workers that are dead (stock gives them 5 s to shut down).
    It can lose and gain workers while the others train.  And it asks no more than a hundred workers a second how
    they are, because one that ends reports that itself.
    """

    _worker_group_state: Any

    def __init__(self, attempt: AttemptWorkers, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._attempt = attempt
        #: Slots of workers that are known to be dead.
        self._dead: set[int] = set()
        self._slots: dict[Any, int] = {}
        #: Reservation of each worker, by its actor.
        self._reservations: dict[Any, Reservation] = {}
        #: Workers that will join once they are up.
        self._starting: StartingWorkers | None = None
        self._schedule = PollSchedule()
        self._polls = Polls(self._worker_health_check_timeout_s)

    # --- differences in starting and ending

    def _create_placement_group(self, scaling_config: Any, worker_group_context: Any) -> Any:
        del scaling_config
        selectors = worker_group_context.label_selector or [{}]
        reserved = Reservations(self._attempt.name, worker_group_context.resources_per_worker, selectors[0])
        size = worker_group_context.num_workers
        nodes = self._attempt.nodes_for(size, [])
        if len(nodes) < size:
            raise WorkerGroupStartupTimeoutError(num_workers=size)
        # A worker group that could not give everything back would keep its names.
        free_reservations(self._attempt.name)
        reserved.ask(nodes)
        return reserved

    @staticmethod
    def _get_worker_runtime_env(custom_runtime_env: Any) -> dict[str, Any]:
        # An environment of its own would keep Ray from using worker processes that wait ready.
        return dict(custom_runtime_env)

    def _create_workers(
        self,
        num_workers: int,
        placement_group: Any,
        resources_per_worker: dict[str, float],
        placement_group_bundle_indices: list[int] | None = None,
        starting_world_rank: int = 0,
        world_size: int | None = None,
        replica_group_size: int | None = None,
    ) -> list[Any]:
        # Everything in which worker groups differ is in their reservations.
        del num_workers, placement_group_bundle_indices
        starting = self._ask_for(placement_group.held, resources_per_worker)
        while not starting.are_up(_LOOK_S):
            pass
        up = self._in_their_reservations(starting)
        return list(self._assign_worker_ranks(up, starting_world_rank, world_size, replica_group_size))

    def _ask_for(self, reservations: list[Reservation], resources: dict[str, float]) -> StartingWorkers:
        environment = self._get_worker_runtime_env(self._train_run_context.run_config.worker_runtime_env)
        options = bundle_to_remote_args(resources)
        actor_type = ray.remote(runtime_env=environment, **options)(self._worker_cls)
        return StartingWorkers(actor_type, reservations, resources)

    def _in_their_reservations(self, starting: StartingWorkers) -> list[Any]:
        workers = starting.workers()
        self._reservations |= {
            worker.actor: reservation
            for worker, reservation in zip(workers, starting.reservations, strict=True)
        }
        return workers

    def _start(self) -> None:
        try:
            super()._start()
        except Exception:
            # Stock forgets a group whose workers are up when what follows fails, and nothing could end it any more.
            if self.has_started():
                self.shutdown()
            raise

    def shutdown(self) -> None:
        """End all workers, without waiting for those that are dead."""
        self._end_starting()
        if self._worker_group_state is not None:
            self._keep_workers(lambda worker: self._slots.get(worker.actor) not in self._dead)
        super().shutdown()

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

    # --- reserved resources

    @property
    def _reserved(self) -> Reservations:
        reserved: Reservations = self._worker_group_state.placement_group_handle
        return reserved

    def places(self) -> list[str]:
        """Ray node id of each place that it holds, with a worker or without; [] once it was shut down."""
        if self._worker_group_state is None:
            return []
        return [one.ray_node_id for one in self._reserved.held]

    def note_dead(self, slots: Collection[int]) -> None:
        """The workers of these slots are dead: their resources are free for others."""
        self._dead |= set(slots)
        gone = [worker.actor for worker in self.get_workers() if self._slots[worker.actor] in slots]
        self._reserved.free([self._reservations[actor] for actor in gone])

    def vacate(self, ray_node_ids: Collection[str]) -> None:
        """End the workers on these nodes, of a group that trains no more, and free their resources."""
        if self._worker_group_state is None:
            return
        workers = {self._slots[worker.actor]: worker for worker in self.get_workers()}
        left = {slot for slot, worker in workers.items() if worker.metadata.node_id in ray_node_ids}
        _shutdown_workers([workers[slot] for slot in left - self._dead], _SHUTDOWN_S)
        self.note_dead(left)

    # --- losing workers in place

    def poll_status(self, timeout: float | None = None) -> Any:
        """How the workers are, without those that failed and that the group goes on without."""
        status = super().poll_status(timeout)
        while status.errors and self._drop_absorbed(status.errors):
            status = super().poll_status(timeout)
        return status

    def _poll_workers_and_collect_errors(self, timeout: float | None) -> list[WorkerStatus]:
        workers = self.get_workers()
        ended = self._attempt.owner.ended_slots()
        eager = [place for place, one in enumerate(workers) if self._slots.get(one.actor) in ended]
        due = self._schedule.take(len(workers), time.monotonic())
        return self._polls.statuses([one.actor for one in workers], {*due, *eager}, timeout)

    def _drop_absorbed(self, errors: dict[int, Exception]) -> bool:
        members = self.members()
        failed = {members[place].slot for place in errors}
        known = {members[place].slot for place, error in errors.items() if is_dead_worker(error)}
        dead, nodes_lost = find_dead(members, known)
        self._attempt.sweeps.ask(one.ray_node_id for one in members if one.slot in dead)
        absorbed = self._attempt.owner.absorbs(failed, dead, nodes_lost)
        if not absorbed:
            return False
        for worker in self.get_workers():
            if self._slots[worker.actor] in absorbed:
                ray.kill(worker.actor)
        self.note_dead(absorbed)
        self._keep_workers(lambda worker: self._slots[worker.actor] not in absorbed)
        return bool(self.get_workers())

    # --- gaining workers in place

    @property
    def is_growing(self) -> bool:
        """True while workers start that will join."""
        return self._starting is not None

    def extend(self, count: int) -> None:
        """Start `count` more workers, which join by `admit_started`.

        Raises TimeoutError, with nothing reserved, when there is no capacity for all of them.
        """
        nodes = self._attempt.nodes_for(count, self.places())
        asked = self._reserved.ask(nodes) if len(nodes) == count else []
        if not asked or not self._reserved.are_there(asked, _EXTEND_TIMEOUT_S):
            raise TimeoutError(f"no resources for {count} more workers after all")
        try:
            self._starting = self._ask_for(asked, self._worker_group_context.resources_per_worker)
        except ray.exceptions.RayError:
            self._reserved.free(asked)
            raise

    def admit_started(self) -> None:
        """Let the workers that start join, once all of them are up.

        Raises WorkerGroupStartupFailedError or RayError, with none of them left, when one of them cannot.
        """
        try:
            if self._starting is not None and self._starting.are_up():
                self._join(self._starting)
                self._starting = None
        except Exception:
            self._end_starting()
            raise

    def _end_starting(self) -> None:
        starting, self._starting = self._starting, None
        if starting is not None:
            starting.end()
            self._reserved.free(starting.reservations)

    def _join(self, starting: StartingWorkers) -> None:
        present = self.get_workers()
        size = len(present) + len(starting.reservations)
        up = self._in_their_reservations(starting)
        workers = self._assign_worker_ranks(up, len(present), size)
        visible = _number_locally(present, workers)
        self._init_train_context(workers, self._worker_group_state.sync_actor)
        # Ray Train made those visible to them that these workers have among themselves.
        ray.get([worker.execute_async(_show_gpus, gpus=gpus) for worker, gpus in visible if gpus])
        members = [dataclasses.replace(self._member(one), actor_s=starting.waited_s) for one in workers]
        self._attempt.owner.members_join(members)
        state = self._worker_group_state
        self._worker_group_state = dataclasses.replace(state, workers=[*state.workers, *workers])
        train_function = self._worker_group_context.train_fn_ref
        ray.get([worker.actor.run_train_fn.remote(train_function) for worker in workers])
