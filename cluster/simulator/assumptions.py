"""What a replay is given beside its trace and its policies: the planner, the backoff after a loss, and assumptions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cluster.policies.policies import Policies
from cluster.scheduling.actions import Plan
from cluster.scheduling.view import ClusterView

Planner = Callable[[ClusterView, Policies, float], Plan]
#: Seconds from a job's last loss to its next attempt, by the number of its losses; None: it is given up.
Backoff = Callable[[int], float | None]


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
    #: True: the planner is asked at every look, also when nothing that it decides on has changed.
    asks_always: bool = False
