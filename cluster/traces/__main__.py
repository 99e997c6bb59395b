"""Prints a generated trace: `python -m cluster.traces --seed 7 --jobs 1000 --days 7 > trace.jsonl`."""

from __future__ import annotations

import argparse
import sys

from cluster.policies.offerings import CapacityType, Offering
from cluster.traces.generator import CLUSTERS, DAY_S, GeneratorOptions, generated
from cluster.traces.lines import write_lines


def main() -> int:
    """Write the lines of one trace."""
    parser = argparse.ArgumentParser(prog="python -m cluster.traces", description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--days", type=float, default=7.0, help="in which the jobs arrive")
    parser.add_argument(
        "--cluster", choices=sorted(CLUSTERS), default="philly", help="whose jobs they are like"
    )
    parser.add_argument("--elastic", type=float, default=0.5, help="part of the jobs with several GPUs")
    parser.add_argument("--size", default="Standard_NC96ads_A100_v4", help="size of the nodes")
    parser.add_argument("--gpus", type=int, default=4, help="GPUs of a node")
    parser.add_argument("--on-demand", type=float, default=14.69, help="USD for an hour of a node")
    parser.add_argument("--spot", type=float, default=5.88, help="the same for spot")
    parser.add_argument("--zones", default="1,2,3")
    parser.add_argument("--spot-nodes", type=int, default=20, help="that each zone has at most")
    chosen = parser.parse_args()
    resources = {"CPU": 24.0 * chosen.gpus, "GPU": float(chosen.gpus)}
    offerings = [
        Offering(size=chosen.size, zone=zone, capacity=capacity, resources=resources, price_per_hour=price)
        for zone in chosen.zones.split(",")
        for capacity, price in ((CapacityType.SPOT, chosen.spot), (CapacityType.ON_DEMAND, chosen.on_demand))
    ]
    options = GeneratorOptions(
        seed=chosen.seed,
        jobs=chosen.jobs,
        span_s=chosen.days * DAY_S,
        cluster=CLUSTERS[chosen.cluster],
        elastic=chosen.elastic,
    )
    for line in write_lines(generated(options, offerings, chosen.spot_nodes)):
        print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
