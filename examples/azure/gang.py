"""A Ray program that knows nothing of Remora: a placement group of two bundles, each on a node of its own.

`python examples/azure/gang.py ADDRESS` in the environment of the cluster.  It prints one line of JSON: the nodes that
it had, and the seconds that it waited for them.
"""

from __future__ import annotations

import json
import os
import sys
import time

import ray
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

BUNDLES = 2


@ray.remote(num_cpus=2)
def work() -> str:
    """Compute something, and say on which node."""
    until = time.monotonic() + 3.0
    while time.monotonic() < until:
        sum(range(10_000))
    return os.environ["REMORA_NODE_ID"]


def main() -> None:
    ray.init(address=sys.argv[1], log_to_driver=False)
    asked_at = time.monotonic()
    group = placement_group(
        [{"CPU": 2}] * BUNDLES,
        strategy="STRICT_SPREAD",
        # So that the demo is the same each time, it leaves the machines of the job alone.
        bundle_label_selector=[{"remora-pool": "programs"}] * BUNDLES,
    )
    ray.get(group.ready())
    waited_s = time.monotonic() - asked_at
    placed = [PlacementGroupSchedulingStrategy(group, at) for at in range(BUNDLES)]
    nodes = ray.get([work.options(scheduling_strategy=one).remote() for one in placed])
    print(json.dumps({"nodes": sorted(set(nodes)), "waited_s": round(waited_s, 1)}))


if __name__ == "__main__":
    main()
