"""What replays say about capacity rules, and how long one of 100,000 jobs takes on one core."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import replace
from random import Random
from typing import Any

from benchmarks.yardstick import Yardstick
from cluster.policies.offerings import CapacityType, Offering
from cluster.policies.policies import CapacityRule, Policies, PoolPolicy
from cluster.simulator.assumptions import Assumptions
from cluster.simulator.report import ReplayReport, report_of
from cluster.traces.files import read_skypilot
from cluster.traces.generator import CLUSTERS, DAY_S, GeneratorOptions, generate_jobs, generated
from cluster.traces.trace import Trace, TraceJob, merged
from service.what_if.answer import replayed

SIZE = "Standard_NC96ads_A100_v4"
ZONES = ("1", "2", "3")
ON_DEMAND_USD, SPOT_USD = 14.69, 5.88
NODES = 160
#: Jobs of the comparisons; the trace of the speed has 100,000.
JOBS, SEEDS = 2_000, (1, 2, 3)
RULES = ("prefer-spot", "mixed", "spot", "on-demand")


def run(jobs: int = 100_000) -> dict[str, Any]:
    """The figures for `planner.json`."""
    took_s, slowdown, report = speed(jobs)
    return {
        "what_if_100k_jobs_s": round(took_s, 1),
        "what_if_100k": {
            "jobs": jobs,
            "looks": report.looks,
            "succeeded": report.succeeded,
            "slowdown": round(slowdown, 2),
            "undisturbed_s": round(took_s / slowdown, 1),
        },
        "generated": compared([a_generated_trace(seed, JOBS) for seed in SEEDS]),
        "skypilot_format": compared([a_trace_with_files(seed, JOBS) for seed in SEEDS]),
    }


def speed(jobs: int) -> tuple[float, float, ReplayReport]:
    """Seconds of processor time for one replay under `prefer-spot`, the slowdown meanwhile, and its report."""
    trace, yardstick = a_generated_trace(0, jobs), Yardstick()
    yardstick.measure()
    began, before_s = time.process_time(), yardstick.total_s
    replay = replayed(trace, policies("prefer-spot"), Assumptions(), yardstick.measure)
    took_s = time.process_time() - began - (yardstick.total_s - before_s)
    return took_s, yardstick.slowdown, report_of(replay)


def compared(traces: list[Trace]) -> dict[str, Mapping[str, float]]:
    """Means over the traces of what each rule costs, and how long its jobs take."""
    found: dict[str, Mapping[str, float]] = {}
    for rule in RULES:
        reports = [report_of(replayed(trace, policies(rule), Assumptions())) for trace in traces]
        names = (
            "cost_usd",
            "completion_mean_s",
            "completion_p95_s",
            "wait_p95_s",
            "goodput",
            "spot_share",
            "failed",
        )
        found[rule] = {
            name: round(sum(getattr(report, name) for report in reports) / len(reports), 4) for name in names
        }
    return found


def policies(rule: str) -> Policies:
    """One pool under a rule; `prefer-spot` returns to spot after half an hour."""
    pool = PoolPolicy(
        sizes=(SIZE,),
        zones=ZONES,
        capacity=CapacityRule(rule),
        max_nodes=NODES,
        idle_s=600,
        return_to_spot_s=1800 if rule == "prefer-spot" else None,
        on_demand_core=8 if rule == "mixed" else 0,
    )
    return Policies(pools={"a100": pool})


def offerings() -> tuple[Offering, ...]:
    """Spot and on-demand nodes of four GPUs in three zones."""
    return tuple(
        Offering(
            size=SIZE, zone=zone, capacity=capacity, resources={"CPU": 96.0, "GPU": 4.0}, price_per_hour=price
        )
        for zone in ZONES
        for capacity, price in ((CapacityType.SPOT, SPOT_USD), (CapacityType.ON_DEMAND, ON_DEMAND_USD))
    )


def _options(seed: int, jobs: int) -> GeneratorOptions:
    # as many jobs a day as the Philly clusters had
    cluster = replace(CLUSTERS["philly"], longest_s=7 * DAY_S)
    return GeneratorOptions(seed=seed, jobs=jobs, span_s=75 * DAY_S * jobs / 112_956, cluster=cluster)


def a_generated_trace(seed: int, jobs: int) -> Trace:
    """Jobs and market of the published distributions."""
    return generated(_options(seed, jobs), offerings(), spot_nodes=NODES // 2)


def a_trace_with_files(seed: int, jobs: int) -> Trace:
    """The same jobs with a market read from files in SkyPilot's format, which are generated as well."""
    arrived: tuple[TraceJob, ...] = generate_jobs(_options(seed, jobs))
    spot = [one.id for one in offerings() if one.capacity is CapacityType.SPOT]
    files = [read_skypilot(_availability(f"{seed} {name}"), name) for name in spot]
    return merged([Trace(offerings=offerings(), jobs=arrived), *files])


def _availability(seed: str, most: int = NODES // 2, points: int = 8_640) -> str:
    """A month of numbers, one every five minutes, with runs of full, partial and no capacity."""
    random = Random(seed)
    data: list[int] = []
    while len(data) < points:
        nodes = random.choice([0, most, most, random.randint(0, most)])
        data += [nodes] * (1 + int(random.weibullvariate(12, 0.6)))
    return json.dumps({"metadata": {"gap_seconds": 300}, "data": data[:points]})
