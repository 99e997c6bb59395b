"""Steps of DDP and FSDP2 scripts under Remora beside the same scripts under torchrun, two workers each.

The ratios are those of one unmodified script under both.  `sharded_loop_ratio` is the step time of `ShardedLoop`, with
a snapshot after every step, over the plain FSDP2 loop under torchrun.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.remora_cluster import Run, remora_cluster
from benchmarks.steady import pack_code, take_turn, torchrun

SCRIPT = Path(__file__).with_name("fsdp_train.py")
#: Blocks, of which the first is thrown away, and steps of each.
BLOCKS, STEPS = 5, 8
#: Contestant -> the loop that it trains with, and whether Remora runs it.
CONTESTANTS = {
    "torchrun-ddp": ("ddp", False),
    "remora-ddp": ("ddp", True),
    "torchrun-fsdp": ("fsdp", False),
    "remora-fsdp": ("fsdp", True),
    "remora-sharded": ("sharded", True),
}


def run(blocks: int = BLOCKS, steps: int = STEPS) -> dict[str, Any]:
    """Its part of the document."""
    seconds = measure(blocks, steps)
    plain = seconds["torchrun-fsdp"]
    return {
        "steady_ratio": {
            "ddp": round(seconds["remora-ddp"] / seconds["torchrun-ddp"], 3),
            "fsdp": round(seconds["remora-fsdp"] / plain, 3),
        },
        "sharded_loop_ratio": round(seconds["remora-sharded"] / plain, 3),
    }


def measure(blocks: int, steps: int) -> dict[str, float]:
    """Median seconds of a step for each contestant; they take turns, block by block."""
    with (
        tempfile.TemporaryDirectory(prefix="remora-backends-") as name,
        remora_cluster(6) as cluster,
        ExitStack() as running,
    ):
        turns, code = Path(name) / "turns", Path(name) / "code"
        turns.mkdir()
        pack_code(code)
        shutil.copy(SCRIPT, code)
        for contestant, (loop, is_ours) in CONTESTANTS.items():
            words = [contestant, loop, str(turns), str(blocks), str(steps)]
            if is_ours:
                attempt = Run(
                    cluster,
                    code,
                    ["python", SCRIPT.name, *words],
                    backend="ddp" if loop == "ddp" else "fsdp",
                    min_workers=2,
                    max_workers=2,
                    checkpoint_interval_s=None,
                )
                running.callback(attempt.close)
            else:
                running.enter_context(torchrun(code, words, script=SCRIPT.name))
        times: dict[str, list[float]] = {contestant: [] for contestant in CONTESTANTS}
        for block in range(blocks):
            for contestant, kept in times.items():
                seconds = take_turn(turns, contestant, block)
                if block > 0:
                    kept.extend(seconds[1:])
        (turns / "end").touch()
        return {contestant: median(seconds) for contestant, seconds in times.items()}


if __name__ == "__main__":
    print(json.dumps(run(), indent=1))
