"""The operators' policies as values (pure): what may be bought, for whom, where, and at what price.

A value of these types is well formed; whether it can be followed, `cluster.policies.conflicts` says.
`cluster.policies.documents` reads one from a document, with the lines of what is wrong.
Durations are in seconds, and may be written `10m`; money is in USD.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    model_validator,
)

from remora.clusters import CLUSTER_FORM, DEFAULT_CLUSTER
from remora.spec.cron import parse_cron, zone_of
from remora.spec.quantities import parse_duration, parse_size


def _cron(value: str) -> str:
    parse_cron(value)
    return value


def _time_zone(value: str) -> str:
    zone_of(value)
    return value


def _date(value: object) -> object:
    """A date as YAML has it, or as text; numbers are none.  Raises ValueError in one sentence."""
    if type(value) is dt.date:
        found = value
    else:
        try:
            found = dt.date.fromisoformat(value if isinstance(value, str) else "")
        except ValueError:
            raise ValueError("write a date as 2026-12-25") from None
    if not _YEARS[0] <= found.year <= _YEARS[1]:
        raise ValueError(f"write a date of the years {_YEARS[0]} to {_YEARS[1]}")
    return found


def _zone(value: object) -> object:
    return str(value) if type(value) is int else value


#: Years of dates: in each four of them one is a leap year.
_YEARS = (2000, 2090)
Date = Annotated[dt.date, BeforeValidator(_date)]
Dates = Annotated[tuple[Date, ...], Field(max_length=366)]
Duration = Annotated[float, BeforeValidator(parse_duration)]
Seconds = Annotated[Duration, Field(le=31_536_000)]
Number = Annotated[float, Field(strict=True)]
Money = Annotated[Number, Field(ge=0, le=1e9)]
Count = Annotated[int, Field(strict=True, ge=0, le=100_000)]
Lines = Annotated[int, Field(strict=True, ge=0, le=10**12)]
Bytes = Annotated[int, BeforeValidator(parse_size)]
Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$")]
Word = Annotated[str, StringConstraints(min_length=1, max_length=128)]
ClusterName = Annotated[str, StringConstraints(pattern=CLUSTER_FORM)]


#: Pools and projects that a document may name.
MAX_NAMED: Mapping[str, int] = {"pools": 256, "projects": 10_000}


class _Policy(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class CapacityRule(StrEnum):
    """Which capacity types a pool buys."""

    #: Spot and nothing else.
    SPOT = "spot"
    ON_DEMAND = "on-demand"
    #: Spot; on-demand for what has waited for spot longer than `patience_s`.
    PREFER_SPOT = "prefer-spot"
    #: `on_demand_core` nodes of the pool on demand, and spot for the rest.
    MIXED = "mixed"


class Window(_Policy):
    """A recurring span of time."""

    #: When it begins: five fields of cron, in its time zone.
    begins: Annotated[Word, AfterValidator(_cron)]
    lasts_s: Annotated[Duration, Field(gt=0, le=2_678_400)]
    zone: Annotated[str, AfterValidator(_time_zone)] = "UTC"
    #: Days of its zone on which alone it begins, where its fields name them too, and those on which it does not.
    only_dates: Dates = ()
    except_dates: Dates = ()

    @model_validator(mode="after")
    def _one_list_of_dates(self) -> Window:
        if self.only_dates and self.except_dates:
            raise ValueError("write only_dates or except_dates, not both")
        return self


class Schedule(_Policy):
    """Other limits within a window."""

    window: Window
    min_nodes: Count | None = None
    max_nodes: Count | None = None
    warm_nodes: Count | None = None


#: Stands in a size of a place between the cloud's word for it and the place.
AT_PLACE = "@"


class PoolPolicy(_Policy):
    """One node pool."""

    @model_validator(mode="before")
    @classmethod
    def _sizes_of_its_place(cls, data: Any) -> Any:
        """Sizes are written without their place, which stands beside them, and are known with it from here on."""
        if not isinstance(data, dict) or not isinstance(data.get("sizes"), list | tuple):
            return data
        place = data.get("place")
        ends = f"{AT_PLACE}{place}" if isinstance(place, str) else ""
        sizes = [
            one + ends if isinstance(one, str) and not (ends and one.endswith(ends)) else one
            for one in data["sizes"]
        ]
        return {**data, "sizes": sizes}

    #: Where in Azure it has its nodes, by a name of its file; None: the place that the file itself describes.
    place: Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{0,19}$")] | None = None
    #: Sizes in order of preference, e.g. `Standard_NC24ads_A100_v4`; of a place, `Standard_NC24ads_A100_v4@west`.
    sizes: tuple[Word, ...] = Field(min_length=1, max_length=32)
    #: The Ray cluster that its nodes join.
    cluster: ClusterName = DEFAULT_CLUSTER
    #: None of the sizes is preferred: of spot the one that the cloud takes back least often is asked for first.
    sizes_are_equal: bool = False
    #: Zones in order of preference; "any" leaves the choice to the cloud.
    zones: tuple[Annotated[Word, BeforeValidator(_zone)], ...] = Field(
        default=("any",), min_length=1, max_length=32
    )
    capacity: CapacityRule = CapacityRule.PREFER_SPOT
    #: Nodes that are never returned.
    min_nodes: Count = 0
    max_nodes: Count = 10
    #: Nodes kept ready beyond those in use.
    warm_nodes: Count = 0
    #: A node that was unused for this long is returned.
    idle_s: Seconds = 300.0
    #: Launches, and returns, per minute at most.
    grow_per_minute: Annotated[Number, Field(gt=0, le=10_000)] = 60.0
    shrink_per_minute: Annotated[Number, Field(gt=0, le=10_000)] = 60.0
    #: Under `prefer-spot`: how long a demand waits for spot before on-demand is bought for it.
    patience_s: Seconds = 600.0
    #: Under `mixed`: nodes bought on demand before any spot.
    on_demand_core: Count = 1
    #: On-demand nodes that stood in for spot are exchanged when spot has been available for this long; None: never.
    return_to_spot_s: Seconds | None = None
    #: A node that has not joined after this long is given up.
    join_timeout_s: Annotated[Duration, Field(gt=0, le=86_400)] = 900.0
    #: Seconds that a node which is to be returned while it works is given.
    drain_s: Annotated[Duration, Field(gt=0, le=86_400)] = 120.0
    schedules: tuple[Schedule, ...] = Field(default=(), max_length=64)
    #: Nothing is launched, exchanged or returned within these, except what fails or a step of the budget demands.
    maintenance: tuple[Window, ...] = Field(default=(), max_length=64)

    @property
    def most_nodes(self) -> int:
        """As many nodes as it may have at any time."""
        return max([self.max_nodes, *(one.max_nodes for one in self.schedules if one.max_nodes is not None)])


class ProjectLimits(_Policy):
    """What the service keeps of one project at most; None: no limit."""

    #: Of the code that its jobs and schedules use.
    bundle_bytes: Bytes | None = None
    #: Of the newest versions of its jobs' outputs, from which models are made.
    output_bytes: Bytes | None = None
    #: Stored lines of its jobs' logs; beyond it the oldest ones of jobs that print more are deleted.
    log_lines: Lines | None = None
    secrets: Annotated[int, Field(strict=True, ge=0, le=100)] = 100
    schedules: Count = 1000
    #: That have a role in it and were not revoked.
    tokens: Count = 1000
    alerts: Count = 100
    #: Streams of events and logs of its jobs that are open at one process of the API.
    streams: Count | None = None


class PrincipalLimits(_Policy):
    """What the service keeps of each principal that is no operator, whatever its projects; None: no limit."""

    #: Of the code that it has uploaded.
    bundle_bytes: Bytes | None = None
    #: That it created and that were not revoked.
    tokens: Count = 1000
    alerts: Count = 20
    #: Streams of events and logs that are open at one process of the API.
    streams: Count = 64


class ProjectPolicy(_Policy):
    """What one project may use."""

    #: The Ray cluster on which its jobs run; jobs that were accepted before a change stay where they are.
    cluster: ClusterName = DEFAULT_CLUSTER
    #: Weight against other projects that want more than there is.
    share: Annotated[Number, Field(gt=0, le=1e6)] = 1.0
    gpus: Count | None = None
    #: Jobs that wait or run; further ones are refused when they are submitted.
    jobs: Count | None = None
    usd_per_day: Money | None = None
    usd_per_month: Money | None = None
    limits: ProjectLimits = ProjectLimits()


class RayProgramsPolicy(_Policy):
    """What is bought for Ray programs that are no jobs; their limits are those of their project."""

    #: The project that their nodes are bought for and that pays for them.
    project: Name = "ray"
    #: Pools that nodes are bought in for them, in order of preference; empty: all pools.
    pools: tuple[Name, ...] = Field(default=(), max_length=MAX_NAMED["pools"])
    #: Their place among jobs that wait, as a job's own priority.
    priority: Annotated[int, Field(strict=True, ge=0, le=100)] = 50


class BudgetStep(StrEnum):
    """What is done as money runs out, mildest first."""

    STOP_GROWING = "stop-growing"
    SPOT_ONLY = "spot-only"
    SHRINK = "shrink"
    PAUSE = "pause"


class BudgetPolicy(_Policy):
    """Money of the whole cluster; every step begins when its part of the day's or the month's budget is spent."""

    usd_per_day: Money | None = None
    usd_per_month: Money | None = None
    #: Part of the budget at which each step begins, e.g. 0.8; steps that are not named begin at 1.0.
    steps: dict[BudgetStep, Annotated[Number, Field(gt=0, le=10)]] = Field(default_factory=dict)

    def part_of(self, step: BudgetStep) -> float:
        """The part of the budget at which a step begins."""
        return self.steps.get(step, 1.0)

    @property
    def figures(self) -> str:
        """Equal for budgets that say the same: a step that was reached under other figures says nothing about these."""
        return json.dumps(self.model_dump(mode="json"), sort_keys=True)


class Policies(_Policy):
    """One version of everything that operators decide."""

    pools: dict[Name, PoolPolicy] = Field(default_factory=dict, max_length=MAX_NAMED["pools"])
    projects: dict[Name, ProjectPolicy] = Field(default_factory=dict, max_length=MAX_NAMED["projects"])
    #: Of each one.
    principals: PrincipalLimits = PrincipalLimits()
    budget: BudgetPolicy = BudgetPolicy()
    #: None: nothing is bought for Ray programs that are no jobs.
    ray_programs: RayProgramsPolicy | None = None
    #: Names of site rules, entry points of the group `remora.rules`, asked in this order.
    rules: tuple[Word, ...] = Field(default=(), max_length=64)

    def limits_of(self, project: str) -> ProjectLimits:
        """What is kept of a project at most, also of one that is not named."""
        named = self.projects.get(project)
        return ProjectLimits() if named is None else named.limits

    @property
    def clusters(self) -> tuple[str, ...]:
        """The clusters that have pools, and the one of all that is not named, first."""
        return tuple(dict.fromkeys((DEFAULT_CLUSTER, *(pool.cluster for pool in self.pools.values()))))

    def cluster_of(self, project: str) -> str:
        """The cluster on which new jobs of a project run."""
        named = self.projects.get(project)
        return DEFAULT_CLUSTER if named is None else named.cluster

    def of_cluster(self, cluster: str) -> Policies:
        """What the controller of one cluster follows: no other pools than its own; money is that of all clusters."""
        pools = {name: pool for name, pool in self.pools.items() if pool.cluster == cluster}
        programs = self.ray_programs
        if programs is not None and self.cluster_of(programs.project) != cluster:
            programs = None
        if len(pools) == len(self.pools) and programs is self.ray_programs:
            return self
        return self.model_copy(update={"pools": pools, "ray_programs": programs})
