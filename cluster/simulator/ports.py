"""Interfaces that a replay needs: the planner's decision, and the queue's, which is implemented above this package."""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from cluster.policies.offerings import CapacityType
from cluster.policies.policies import Policies
from cluster.scheduling.actions import Plan
from cluster.scheduling.view import ClusterView, JobDemand, Spending
from cluster.traces.trace import TraceJob

Planner = Callable[[ClusterView, Policies, float], Plan]
Resources = Mapping[str, float]


class FreeCapacity(NamedTuple):
    """A ready node and what is free on it; its location is filled in only where placements or quotas need it."""

    node: str
    pool: str
    free: Resources
    zone: str | None = None
    capacity: CapacityType | None = None
    #: Fabric domain that it is in; None: no InfiniBand joins it to others.
    fabric: str | None = None
    #: The job that it was bought for.
    bought_for: str | None = None


class Queue(Protocol):
    """The decisions of the service's queue about jobs of a trace; times are seconds since the trace began."""

    #: Projects have shares or quotas, so that whose turn it is, and who may start, depends on what runs.
    counts_projects: bool
    #: Projects have quotas, so that the first of those that wait may hold up its own project only.
    has_quotas: bool

    def turn(self, job: TraceJob, *, is_urgent: bool = False) -> Any:
        """Sort key of the job among those that wait: the smallest one is next."""
        ...

    def in_turns(
        self,
        waiting: Sequence[TraceJob],
        running: Sequence[tuple[TraceJob, int]],
        urgent: Container[str] = (),
    ) -> Sequence[TraceJob]:
        """Those that wait, next one first, given the running jobs with their numbers of workers; where projects count.

        `urgent` are those among them whose deadline is near, by id.
        """
        ...

    def keeps_off_spot(
        self, job: TraceJob, demand: JobDemand, now: float, start_up_s: float, *, is_coming: bool
    ) -> bool:
        """The job does not start on spot, as its deadline is near; on-demand nodes for it may be on their way."""
        ...

    def held_up(
        self,
        waiting: Sequence[TraceJob],
        owners: Collection[str],
        running: Sequence[tuple[TraceJob, int]],
        spent: Mapping[str, Spending],
    ) -> Container[str]:
        """Those of the owners, by id, that could not start now on any node; asked where projects have quotas.

        `waiting` is in order of turns.  Owners are jobs that nodes were bought for.
        """
        ...

    def can_ever_start(self, job: TraceJob) -> bool:
        """False when its smallest worker group would not fit even if all pools were complete and empty."""
        ...

    def starts(
        self,
        waiting: Sequence[TraceJob],
        free_nodes: Sequence[FreeCapacity],
        running: Sequence[tuple[TraceJob, int]] = (),
        spent: Mapping[str, Spending] | None = None,
        off_spot: Container[str] = (),
        kept: Mapping[str, str] = MappingProxyType({}),
    ) -> Mapping[str, str | None]:
        """Jobs that start now, by id, with the fabric domain that they are bound to; None: none.

        `waiting` is in order of turns, workers are placed on the nodes in their order.  `running` and what each project
        has `spent` are passed where projects have quotas.  `off_spot` are jobs that do not start on spot, and `kept`
        says for which job a node is reserved.
        """
        ...

    def after_loss(self, losses: int, now: float) -> float | None:
        """When a job may start again after it was lost for the `losses`-th time; None: it is given up."""
        ...


@dataclass(frozen=True, kw_only=True)
class Assumptions:
    """What a replay assumes where the trace does not say it."""

    #: Seed of the cloud's random choices: which of several nodes it takes.
    seed: int = 0
    #: Seconds between two looks of the planner.
    look_s: float = 60.0
    #: Seconds for which an offering is not asked for after there was none of it.
    refused_s: float = 300.0
    #: Seconds without a start, an end or an arrival after which the jobs that wait are given up.
    stuck_s: float = 7 * 86_400.0
    #: Jobs that wait and are shown to the planner, first ones first, where projects have no quotas.
    window: int = 200
    #: True: the planner is asked at every look, also when nothing that it decides on has changed.
    asks_always: bool = False
