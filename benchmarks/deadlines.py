"""What each capacity rule costs, and which deadlines it misses, on recorded availability of spot machines.

python -m benchmarks.deadlines --availability FILE [--availability FILE ...] [--windows 3]

The files are in SkyPilot's published format; each is one zone.  A window is a part of the files, on which forty jobs
with deadlines arrive.  Printed is one JSON document: for each window and rule the cost, the jobs that were late, the
launches, and what `on-demand` and a greedy buyer (`prefer-spot` without patience) had there.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

from cluster.offerings import CapacityType, Offering
from cluster.policies import CapacityRule, Policies, PoolPolicy
from cluster.simulator.doors import Assumptions
from cluster.simulator.report import report_of
from cluster.traces.skypilot import read_skypilot
from cluster.traces.trace import MarketChange, Trace, TraceJob
from remora.worker_sizes import WorkerSizes
from service.what_if.answer import replayed

SIZE = "Standard_NC6s_v3"
ON_DEMAND_USD, SPOT_USD = 3.06, 0.92
JOBS, NODES = 40, 40
WINDOW_S = 3 * 86_400.0
HOUR_S = 3600.0
RULES = ("on-demand", "greedy", "prefer-spot", "mixed", "spot")


def policies(rule: str) -> Policies:
    """One pool under a rule."""
    is_greedy = rule == "greedy"
    pool = PoolPolicy(
        sizes=(SIZE,),
        zones=("1", "2", "3"),
        capacity=CapacityRule.PREFER_SPOT if is_greedy else CapacityRule(rule),
        max_nodes=NODES,
        idle_s=600,
        patience_s=0 if is_greedy else 600,
        return_to_spot_s=1800 if rule == "prefer-spot" else None,
        on_demand_core=4 if rule == "mixed" else 0,
    )
    return Policies(pools={"gpu": pool})


def offerings(zones: int) -> tuple[Offering, ...]:
    """Spot and on-demand machines of one GPU in each zone."""
    prices = ((CapacityType.SPOT, SPOT_USD), (CapacityType.ON_DEMAND, ON_DEMAND_USD))
    return tuple(
        Offering(
            size=SIZE,
            zone=str(zone),
            capacity=capacity,
            resources={"CPU": 6.0, "GPU": 1.0},
            price_per_hour=price,
        )
        for zone in range(1, zones + 1)
        for capacity, price in prices
    )


def jobs(seed: int, count: int = JOBS) -> tuple[TraceJob, ...]:
    """Jobs of one to four workers with deadlines of 1.3 to 3 times their own length after they arrive."""
    random = Random(seed)
    found = []
    for number in range(count):
        least = random.choice([1, 1, 2])
        most = least * random.choice([1, 2])
        length_s = random.uniform(2.0, 10.0) * HOUR_S
        at_s = random.uniform(0.0, WINDOW_S / 2)
        found.append(
            TraceJob(
                id=f"job_{number:03}",
                at_s=round(at_s),
                sizes=WorkerSizes(least, most),
                resources={"GPU": 1.0},
                work_s=round(length_s * least),
                deadline_s=round(at_s + 600 + length_s * random.uniform(1.3, 3.0)),
            )
        )
    return tuple(sorted(found, key=lambda job: (job.at_s, job.id)))


def window(files: Sequence[Path], begins_s: float, seed: int, count: int = JOBS) -> Trace:
    """The files from that moment on, with jobs."""
    sold = offerings(len(files))
    changes: list[MarketChange] = []
    for number, file in enumerate(files, start=1):
        name = f"{SIZE}/{number}/spot"
        nodes = 0
        for change in read_skypilot(file.read_text(), name, file.name).changes:
            if change.at_s <= begins_s:
                nodes = change.nodes or 0
            elif change.at_s < begins_s + 4 * WINDOW_S:
                changes.append(MarketChange(at_s=change.at_s - begins_s, offering=name, nodes=change.nodes))
        changes.append(MarketChange(at_s=0.0, offering=name, nodes=nodes))
    changes.sort(key=lambda change: (change.at_s, change.offering))
    return Trace(offerings=sold, jobs=jobs(seed, count), changes=tuple(changes))


def figures(trace: Trace, rule: str) -> dict[str, Any]:
    """What a rule does on a window."""
    report = report_of(replayed(trace, policies(rule), Assumptions()))
    names = (
        "cost_usd",
        "deadlines_missed",
        "failed",
        "launches",
        "preemptions",
        "spot_share",
        "completion_mean_s",
    )
    return {name: round(float(getattr(report, name, -1)), 3) for name in names}


def main(words: Sequence[str]) -> int:
    """Print the document."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.deadlines", description=__doc__)
    parser.add_argument("--availability", type=Path, action="append", required=True, metavar="FILE")
    parser.add_argument("--windows", type=int, default=3)
    arguments = parser.parse_args(words)
    found = []
    for number in range(arguments.windows):
        begins_s = number * WINDOW_S
        trace = window(arguments.availability, begins_s, seed=number)
        found.append({"begins_s": begins_s, "rules": {rule: figures(trace, rule) for rule in RULES}})
    print(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
