"""The workers of one attempt, which can lose and win members while the others train."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import ray
from ray.train.v2._internal.execution.worker_group.placement_group_handle import DefaultPlacementGroupHandle
from ray.train.v2._internal.execution.worker_group.worker_group import WorkerGroup
from ray.train.v2._internal.util import bundle_to_remote_args
from ray.util.placement_group import placement_group, remove_placement_group

from trainers.ray_train.deaths import find_dead, is_dead_worker
from trainers.ray_train.nodes import answering_nodes, draining_nodes
from trainers.ray_train.owner import Member, Owner
from trainers.ray_train.starting import StartingWorkers, bundles_of, places_of

#: Seconds between two looks at workers with which a group begins.
_LOOK_S = 0.5
#: Seconds that resources for one more worker may take.
_EXTEND_TIMEOUT_S = 5.0
#: Stands between an attempt's name and a number in the names of placement groups by which its worker group grew.
EXTRA = "+"


def worker_group_type(name: str, owner: Owner) -> type[WorkerGroup]:
    """The type of worker group for one controller, which makes its groups by itself."""

    class RemoraWorkerGroup(WorkerGroup):
        """Stock, with five differences.

        Its workers need no runtime environment, so Ray uses processes that wait ready.  Its placement groups have a
        name by which `free_resources` finds them.  It does not wait for workers whose node takes no work any more.
        Its end does not wait for workers that are dead (stock gives them 5 s to say goodbye).  And it can lose and
        win workers while the others train.
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
            #: Workers that will join once they are up.
            self._starting: list[StartingWorkers] = []

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
            bundles = placement_group_bundle_indices or list(range(num_workers))
            starting = self._ask_for(placement_group, bundles, resources_per_worker)
            while not starting.are_up(_LOOK_S):
                pass
            up = starting.workers()
            return list(self._assign_worker_ranks(up, starting_world_rank, world_size, replica_group_size))

        def _ask_for(self, group: Any, bundles: list[int], resources: dict[str, float]) -> StartingWorkers:
            environment = self._get_worker_runtime_env(self._train_run_context.run_config.worker_runtime_env)
            options = bundle_to_remote_args(resources)
            actor_type = ray.remote(runtime_env=environment, **options)(self._worker_cls)
            return StartingWorkers(actor_type, group, bundles, resources)

        def shutdown(self) -> None:
            self._end_starting()
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

        def places(self) -> list[str]:
            """Ray node id of each place that it holds, with a worker or without; [] once it was shut down."""
            if self._worker_group_state is None:
                return []
            groups = [self._first_placement, *self._extra_placements]
            return [node for group in groups for node in places_of(group)]

        # --- losing workers in place

        def poll_status(self, timeout: float | None = None) -> Any:
            status = super().poll_status(timeout)
            while status.errors and self._drop_absorbed(status.errors):
                status = super().poll_status(timeout)
            return status

        def _drop_absorbed(self, errors: dict[int, Exception]) -> bool:
            members = self.members()
            failed = {members[place].slot for place in errors}
            known = {members[place].slot for place, error in errors.items() if is_dead_worker(error)}
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
            placed = {(group, index): node for group in groups for index, node in bundles_of(group).items()}
            taken = {self._seat(worker) for worker in self.get_workers()}
            usable = answering_nodes(set(placed.values())) - draining_nodes().keys()
            return [seat for seat, node in placed.items() if seat not in taken and node in usable]

        @property
        def _first_placement(self) -> Any:
            return self._worker_group_state.placement_group_handle.placement_group

        def _seat(self, worker: Any) -> tuple[Any, int]:
            began_at = (self._first_placement, worker.placement_group_bundle_index)
            return self._seats.get(worker.actor, began_at)

        @property
        def is_winning(self) -> bool:
            """True while workers start that will join."""
            return bool(self._starting)

        def refill(self, seats: list[tuple[Any, int]]) -> None:
            """Start workers on free bundles, which join by `take_in`."""
            for group in dict.fromkeys(group for group, _ in seats):
                self._start_joiners(group, [bundle for own, bundle in seats if own == group])

        def extend(self, count: int) -> None:
            """Start workers beyond the size with which the group began, which join by `take_in`.

            Raises TimeoutError without resources.
            """
            resources = self._worker_group_context.resources_per_worker
            # Ray refuses a name that a living placement group has.
            own_name = f"{name}{EXTRA}{next(_extras)}"
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
            resources = self._worker_group_context.resources_per_worker
            self._starting.append(self._ask_for(group, bundles, resources))

        def take_in(self) -> None:
            """Let the workers that start join, once all of them are up.

            Raises WorkerGroupStartupFailedError or RayError, with none of them left, when one of them cannot.
            """
            try:
                if all(one.are_up() for one in self._starting):
                    for one in list(self._starting):
                        self._join(one)
                        self._starting.remove(one)
            except Exception:
                self._end_starting()
                raise

        def _end_starting(self) -> None:
            while self._starting:
                self._starting.pop().end()

        def _join(self, starting: StartingWorkers) -> None:
            present = self.get_workers()
            size = len(present) + len(starting.bundles)
            workers = self._assign_worker_ranks(starting.workers(), len(present), size)
            for worker in workers:
                seat = (starting.group, worker.placement_group_bundle_index)
                self._seats[worker.actor] = seat
                if starting.group != self._first_placement:
                    # Stock knows the first placement group only.
                    worker.placement_group_bundle_index = -1
            self._init_train_context(workers, self._worker_group_state.sync_actor)
            owner.members_join([self._member(worker) for worker in workers])
            state = self._worker_group_state
            self._worker_group_state = dataclasses.replace(state, workers=[*state.workers, *workers])
            train_function = self._worker_group_context.train_fn_ref
            ray.get([worker.actor.run_train_fn.remote(train_function) for worker in workers])

    return RemoraWorkerGroup


#: Names for workers, unique within the driver.
_slots = itertools.count()
#: Numbers of placement groups by which worker groups grew.
_extras = itertools.count()
