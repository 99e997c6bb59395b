"""Steps of DDP and FSDP2 scripts under Remora beside the same scripts under torchrun, two workers each.

The ratios are those of one unmodified script under both.  `sharded_loop_ratio` is the step time of `ShardedLoop`, with
a snapshot after every step, over the plain FSDP2 loop under torchrun.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.contest import contest, pack_examples
from benchmarks.ratios import Ratio, steady
from benchmarks.remora_cluster import RemoraCluster, remora_cluster

SCRIPT = Path(__file__).with_name("fsdp_train.py")
#: Rounds, and steps of each block: single pairs differ by a tenth, so that many are needed.
ROUNDS, STEPS = 48, 4


def run(rounds: int = ROUNDS, steps: int = STEPS) -> dict[str, Any]:
    """Its part of the document."""
    with remora_cluster(4) as cluster:
        ddp = measure_ddp(cluster, rounds, steps)
        fsdp, sharded = measure_fsdp(cluster, rounds, steps)
        return {
            **steady(ddp=ddp, fsdp=fsdp),
            "sharded_loop_ratio": sharded.figure,
            "sharded_loop_quartiles": sharded.quartiles,
        }


def measure_ddp(cluster: RemoraCluster, rounds: int, steps: int) -> Ratio:
    """One script of DDP under both."""
    with contest(cluster, SCRIPT, rounds=rounds, steps=steps) as match:
        pack_examples(match.code)
        match.torchrun("torchrun", [SCRIPT.name, "torchrun", "ddp"])
        match.remora("remora", ["python", SCRIPT.name, "remora", "ddp"])
        match.hold()
        return match.ratio("remora", "torchrun")


def measure_fsdp(cluster: RemoraCluster, rounds: int, steps: int) -> tuple[Ratio, Ratio]:
    """One script of FSDP2 under both; and `ShardedLoop` over that script under torchrun."""
    with contest(cluster, SCRIPT, rounds=rounds, steps=steps) as match:
        pack_examples(match.code)
        # In this order everybody trains right before or after the one that it is compared with.
        match.remora("remora", ["python", SCRIPT.name, "remora", "fsdp"], backend="fsdp")
        match.torchrun("torchrun", [SCRIPT.name, "torchrun", "fsdp"])
        match.remora("sharded", ["python", SCRIPT.name, "sharded", "sharded"], backend="fsdp")
        match.hold()
        return match.ratio("remora", "torchrun"), match.ratio("sharded", "torchrun")


if __name__ == "__main__":
    print(json.dumps(run(), indent=1))
