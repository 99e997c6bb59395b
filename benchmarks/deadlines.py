"""What each capacity rule costs, and which deadlines it misses, on recorded availability of spot machines.

python -m benchmarks.deadlines --availability FILE... [--day 0 --day 3 --day 6] [--seed 0] [--json]

The files are in SkyPilot's published format; each is one zone.  A window begins at a day of the files, and forty jobs
with deadlines arrive in it.  Printed is a table of windows and rules: the cost, the jobs that were late although they
were not under `on-demand`, all that were late, and what was bought.

Ends with 1 where a rule other than `spot` is late with a job that `on-demand` had in time, or where a rule costs more
than `on-demand` or than a greedy buyer (`prefer-spot` without patience).  A core of `mixed` is on demand because its
operator says so, however much spot there is: against the greedy buyer it may cost what these nodes cost beyond spot for
as long as the window lasts, and not more.  Without a core it may cost nothing beyond.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple

from cluster.policies.offerings import CapacityType, Offering
from cluster.policies.policies import CapacityRule, Policies, PoolPolicy
from cluster.simulator.assumptions import Assumptions
from cluster.simulator.report import report_of
from cluster.traces.files import read_skypilot
from cluster.traces.trace import MarketChange, Trace, TraceJob
from remora.spec.worker_sizes import WorkerSizes
from service.what_if.answer import replayed

SIZE = "Standard_NC6s_v3"
ON_DEMAND_USD, SPOT_USD = 3.06, 0.92
JOBS, NODES = 40, 40
WINDOW_S = 3 * 86_400.0
HOUR_S = 3600.0
DAY_S = 86_400.0
#: Nodes of the on-demand core of `mixed`, by rule.
CORES = {"mixed, no core": 0, "mixed, core of 1": 1, "mixed, core of 4": 4}
RULES = ("on-demand", "greedy", "prefer-spot", *CORES, "spot")
#: May be late, as it buys nothing else.
CARELESS = "spot"


class Figures(NamedTuple):
    """What a rule does on a window."""

    cost_usd: float
    late: frozenset[str]
    failed: int
    launches: int
    preemptions: int
    spot_share: float
    completion_mean_s: float
    #: What the core that was ordered costs beyond spot.
    core_usd: float


def policies(rule: str, zones: int = 3) -> Policies:
    """One pool under a rule."""
    is_greedy, name = rule == "greedy", rule.split(",")[0]
    pool = PoolPolicy(
        sizes=(SIZE,),
        zones=tuple(str(zone) for zone in range(1, zones + 1)),
        capacity=CapacityRule.PREFER_SPOT if is_greedy else CapacityRule(name),
        max_nodes=NODES,
        idle_s=600,
        patience_s=0 if is_greedy else 600,
        return_to_spot_s=1800 if rule == "prefer-spot" else None,
        on_demand_core=CORES.get(rule, 0),
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


def figures(trace: Trace, rule: str) -> Figures:
    """What a rule does on a window."""
    zones = len({offering.zone for offering in trace.offerings})
    replay = replayed(trace, policies(rule, zones), Assumptions())
    report = report_of(replay)
    in_time = {sim.job.id for sim in replay.work.ended if (sim.ended_s or 0.0) <= (sim.job.deadline_s or 0.0)}
    return Figures(
        cost_usd=round(report.cost_usd, 2),
        late=frozenset(job.id for job in trace.jobs) - in_time,
        failed=report.failed,
        launches=report.launches,
        preemptions=report.preemptions,
        spot_share=round(report.spot_share, 3),
        completion_mean_s=round(report.completion_mean_s),
        core_usd=round(CORES.get(rule, 0) * replay.now / HOUR_S * (ON_DEMAND_USD - SPOT_USD), 2),
    )


def broken(found: dict[str, Figures]) -> list[str]:
    """What of a window is not as it is promised; empty when all is."""
    safe, greedy = found["on-demand"], found["greedy"]
    said = []
    for rule, one in found.items():
        if rule != CARELESS and (late := one.late - safe.late):
            said.append(f"{rule} is late with {', '.join(sorted(late))}, which on-demand had in time")
        if one.cost_usd > safe.cost_usd:
            said.append(f"{rule} costs {one.cost_usd} USD, and on-demand {safe.cost_usd}")
        if rule != "on-demand" and one.cost_usd > greedy.cost_usd + one.core_usd:
            said.append(f"{rule} costs {one.cost_usd} USD, and the greedy buyer {greedy.cost_usd}")
    return said


def row(rule: str, one: Figures, safe: Figures) -> str:
    """A line of the table."""
    numbers = f"{len(one.late - safe.late):>8} {len(one.late):>6} {one.launches:>9} {one.preemptions:>12}"
    return f"  {rule:<18} {one.cost_usd:>9.2f} {numbers} {one.spot_share:>6.2f}"


def main(words: Sequence[str]) -> int:
    """Print the table, or the document, and what is not as it is promised."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.deadlines", description=__doc__)
    parser.add_argument(
        "--availability", type=Path, action="extend", nargs="+", required=True, metavar="FILE"
    )
    parser.add_argument("--day", type=float, action="append", help="where a window begins; 0, 3 and 6")
    parser.add_argument("--seed", type=int, default=0, help="of the jobs; the day is added")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args(words)
    document, said = [], []
    for day in arguments.day or [0.0, 3.0, 6.0]:
        trace = window(arguments.availability, day * DAY_S, seed=arguments.seed + round(day))
        found = {rule: figures(trace, rule) for rule in RULES}
        said += [f"day {day:g}: {one}" for one in broken(found)]
        document.append(
            {
                "day": day,
                "rules": {rule: {**one._asdict(), "late": sorted(one.late)} for rule, one in found.items()},
            }
        )
        if not arguments.json:
            print(f"day {day:g}, {len(trace.jobs)} jobs")
            print(
                f"  {'rule':<18} {'USD':>9} {'late too':>8} {'late':>6} {'launches':>9} {'preemptions':>12} {'spot':>6}"
            )
            print("\n".join(row(rule, one, found["on-demand"]) for rule, one in found.items()))
    if arguments.json:
        print(json.dumps(document, indent=1))
    for one in said:
        print(one, file=sys.stderr)
    return 1 if said else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
