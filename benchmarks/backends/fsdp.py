"""Steps of DDP and FSDP2 scripts under Remora beside the same scripts under torchrun, two workers each.

The ratios are those of one unmodified script under both.  `sharded_loop_ratio` is the step time of `ShardedLoop`, with
a snapshot after every step, over the plain FSDP2 loop under torchrun.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.contest import contest, pack_examples
from benchmarks.ratios import steady
from benchmarks.remora_cluster import remora_cluster

SCRIPT = Path(__file__).with_name("fsdp_train.py")
#: Rounds, and steps of each block.
ROUNDS, STEPS = 16, 4


def run(rounds: int = ROUNDS, steps: int = STEPS) -> dict[str, Any]:
    """Its part of the document."""
    with remora_cluster(6) as cluster, contest(cluster, SCRIPT, rounds=rounds, steps=steps) as match:
        pack_examples(match.code)
        # In this order everybody trains right before or after the one that it is compared with.
        match.torchrun("torchrun-ddp", [SCRIPT.name, "torchrun-ddp", "ddp"])
        match.remora("remora-ddp", ["python", SCRIPT.name, "remora-ddp", "ddp"])
        match.remora("remora-fsdp", ["python", SCRIPT.name, "remora-fsdp", "fsdp"], backend="fsdp")
        match.torchrun("torchrun-fsdp", [SCRIPT.name, "torchrun-fsdp", "fsdp"])
        match.remora("remora-sharded", ["python", SCRIPT.name, "remora-sharded", "sharded"], backend="fsdp")
        match.hold()
        sharded = match.ratio("remora-sharded", "torchrun-fsdp")
        return {
            **steady(
                ddp=match.ratio("remora-ddp", "torchrun-ddp"),
                fsdp=match.ratio("remora-fsdp", "torchrun-fsdp"),
            ),
            "sharded_loop_ratio": sharded.figure,
            "sharded_loop_quartiles": sharded.quartiles,
        }


if __name__ == "__main__":
    print(json.dumps(run(), indent=1))
