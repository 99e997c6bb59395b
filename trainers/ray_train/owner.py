"""What Ray Train's controller reports to the driver and asks it, and the workers as the driver knows them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Protocol

from remora.spec.worker_sizes import WorkerSizes


@dataclasses.dataclass(frozen=True)
class Member:
    """One worker of a worker group."""

    #: Its name for its whole life.
    slot: int
    #: Its rank in the worker group with which it began.
    rank: int
    #: Its number among the workers of its node, for its whole life.
    local_rank: int
    local_world_size: int
    node_rank: int
    ray_node_id: str
    address: str
    #: Runs a function in the worker's process; returns an object reference.
    call: Callable[..., Any]
    #: Its node is one that the cloud does not take back, as far as the owner knows.
    is_on_demand: bool = False
    #: Seconds from the request for its actor until that was seen to be up; 0 for those that a worker group begins with.
    actor_s: float = 0.0


@dataclasses.dataclass(frozen=True)
class NominatedNodes:
    """Nodes that are nominated for a job, by Ray node id."""

    #: For the job of this worker group.
    own: frozenset[str] = frozenset()
    #: For other jobs.
    others: frozenset[str] = frozenset()
    #: Not for any job: they are not measured yet.
    closed: frozenset[str] = frozenset()


class Owner(Protocol):
    """What the controller reports to its driver and asks it; called from the controller's thread."""

    def group_starts(self, members: list[Member]) -> None:
        """Worker processes are up; their training function starts after this returns."""

    def group_failed(self, members_lost: set[int], nodes_lost: set[int]) -> bool:
        """Something failed; True when a new worker group shall be started."""

    def group_could_not_start(self, error: str) -> None:
        """A worker group did not come up; it is tried again, maybe with another size."""

    def absorbs(self, failed: set[int], dead: set[int], nodes_lost: set[int]) -> set[int]:
        """Those of the failed slots without which the worker group goes on in place; they are dropped."""

    def ended_slots(self) -> set[int]:
        """Slots whose worker has reported its end, successful or not."""

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

    def sizes(self) -> WorkerSizes:
        """The sizes that the worker group may have now."""

    def nominated_nodes(self) -> NominatedNodes:
        """Nodes that were bought for a job which waits; asked whenever capacity is looked for."""

    def nodes_drain(self, deadlines: dict[str, float]) -> None:
        """Nodes of this worker group go: Ray node id -> seconds since 1970 (0: unknown)."""


class AttemptEnds(Exception):
    """Leaves the controller's loop while it waits for resources."""
