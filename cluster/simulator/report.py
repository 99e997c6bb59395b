"""The results of a replay in numbers: money in USD, times in seconds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from cluster.policies.offerings import CapacityType
from cluster.simulator.ledger import width
from cluster.simulator.replay import Replay


@dataclass(frozen=True, kw_only=True)
class ReplayReport:
    """Results of one trace under one set of policies."""

    jobs: int
    #: Jobs that did all of their work.
    succeeded: int
    #: Jobs that fit on no node of the pools, were lost too often, spent their budget, or never got their nodes.
    failed: int
    #: Failed jobs that never started.
    never_ran: int
    cost_usd: float
    spot_usd: float
    on_demand_usd: float
    wait_p50_s: float
    wait_p95_s: float
    completion_p50_s: float
    completion_p95_s: float
    completion_mean_s: float
    #: From the first submission to the end of the last job.
    makespan_s: float
    #: Part of the workers' time that was work which was not lost.
    goodput: float
    #: Part of the paid capacity (GPUs; CPUs where there are none) that workers held.
    used: float
    preemptions: int
    #: Attempts that ended with a node, and times that a job went on with fewer workers instead.
    losses: int
    shrinks: int
    #: Part of the node-seconds that were spot.
    spot_share: float
    launches: int
    #: Launches that the cloud refused.
    refused: int
    #: Days and months that cost more than the cluster's budget for them.
    budget_violations: int
    #: Days and months in which a project spent more than it may, each project's own.
    project_budget_violations: int
    deadlines_missed: int
    #: Worker-seconds: useful, done again, and standing still.
    useful_s: float
    lost_s: float
    stalled_s: float
    #: Times that a plan was due; where it is known to be empty, the planner is not called.
    looks: int


def report_of(replay: Replay) -> ReplayReport:
    """The numbers of a replay that has run."""
    ended = replay.work.ended
    every = [*ended, *replay.work.given_up, *replay.work.unfinished()]
    first = replay.trace.jobs[0].at_s if replay.trace.jobs else 0.0
    waits = sorted(sim.started_s - sim.job.at_s for sim in ended if sim.started_s is not None)
    spans = sorted(sim.ended_s - sim.job.at_s for sim in ended if sim.ended_s is not None)
    useful = math.fsum(sim.done_s for sim in every)
    lost = math.fsum(sim.lost_s for sim in every)
    stalled = math.fsum(sim.stalled_s for sim in every)
    held = math.fsum((sim.done_s + sim.lost_s + sim.stalled_s) * width(sim.job.resources) for sim in every)
    ledger, budget = replay.ledger, replay.policies.budget
    node_s = sum(ledger.node_s.values())
    return ReplayReport(
        jobs=len(replay.trace.jobs),
        succeeded=len(ended),
        failed=len(replay.trace.jobs) - len(ended),
        never_ran=len(replay.trace.jobs)
        - sum(sim.started_s is not None for sim in replay.work.sims.values()),
        cost_usd=ledger.total,
        spot_usd=ledger.cost[CapacityType.SPOT],
        on_demand_usd=ledger.cost[CapacityType.ON_DEMAND],
        wait_p50_s=quantile(waits, 0.5),
        wait_p95_s=quantile(waits, 0.95),
        completion_p50_s=quantile(spans, 0.5),
        completion_p95_s=quantile(spans, 0.95),
        completion_mean_s=math.fsum(spans) / len(spans) if spans else 0.0,
        makespan_s=max((sim.ended_s or 0.0 for sim in ended), default=first) - first,
        goodput=useful / max(1e-9, useful + lost + stalled),
        used=held / max(1e-9, ledger.capacity_s),
        preemptions=replay.fleet.preemptions,
        losses=replay.work.losses,
        shrinks=replay.work.shrinks,
        spot_share=ledger.node_s[CapacityType.SPOT] / node_s if node_s else 0.0,
        launches=replay.fleet.launches,
        refused=replay.fleet.refused,
        budget_violations=ledger.violations(budget.usd_per_day, budget.usd_per_month),
        project_budget_violations=_project_violations(replay),
        deadlines_missed=_late(replay),
        useful_s=useful,
        lost_s=lost,
        stalled_s=stalled,
        looks=replay.looks,
    )


def _late(replay: Replay) -> int:
    kept = sum(
        1
        for sim in replay.work.ended
        if sim.job.deadline_s is not None and (sim.ended_s or 0.0) <= sim.job.deadline_s
    )
    return sum(1 for job in replay.trace.jobs if job.deadline_s is not None) - kept


def quantile(ordered: Sequence[float], part: float) -> float:
    """The smallest value that at least this part of the values does not exceed; 0 without values."""
    return ordered[max(0, math.ceil(part * len(ordered)) - 1)] if ordered else 0.0


def _project_violations(replay: Replay) -> int:
    return sum(
        replay.ledger.violations_of(name, project.usd_per_day, project.usd_per_month)
        for name, project in replay.policies.projects.items()
    )


def as_numbers(report: ReplayReport) -> dict[str, Any]:
    """The report as a JSON object, rounded to what means something."""
    return {
        name: round(value, 6) if isinstance(value, float) else value for name, value in asdict(report).items()
    }
