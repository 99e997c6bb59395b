"""Steady step time of `remora.torch` under Remora beside the same loop in plain DDP under torchrun, two workers each.

All contestants are up at the same time and take turns, block by block, so that whatever else the machine does meets all
of them alike.  Figures are medians over all steps but each block's first, and ratios of them.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.remora_cluster import RemoraCluster, Run, remora_cluster, until

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "benchmarks" / "steady_train.py"
#: Seconds until all contestants are up, and that a block may take.
PATIENCE_S = 300.0
#: Blocks, and steps of each, by model; the first block is thrown away.
SIZES = {"digits": (7, 40), "gpt": (5, 8)}


def run() -> dict[str, Any]:
    """Both models, as the part of the document that is written."""
    with remora_cluster(4) as cluster:
        return {what: measure(cluster, what) for what in SIZES}


def measure(cluster: RemoraCluster, what: str) -> dict[str, float]:
    """Median seconds of a step for each contestant."""
    blocks, steps = SIZES[what]
    with tempfile.TemporaryDirectory(prefix="remora-steady-") as name, ExitStack() as running:
        turns, code = Path(name) / "turns", Path(name) / "code"
        turns.mkdir()
        pack_code(code)
        words = [what, str(turns), str(blocks), str(steps)]
        running.enter_context(torchrun(code, ["plain", "plain", *words]))
        for exactness in ("sample-exact", "bitwise"):
            command = ["python", SCRIPT.name, exactness, exactness, *words]
            attempt = Run(cluster, code, command, min_workers=2, max_workers=2, checkpoint_interval_s=None)
            running.callback(attempt.close)
        times: dict[str, list[float]] = {"plain": [], "sample-exact": [], "bitwise": []}
        for block in range(blocks):
            for contestant in times:
                seconds = take_turn(turns, contestant, block)
                if block > 0:
                    times[contestant].extend(seconds[1:])
        (turns / "end").touch()
        return {contestant: median(seconds) for contestant, seconds in times.items()}


def take_turn(turns: Path, contestant: str, block: int) -> list[float]:
    """Let one contestant train a block while the others wait."""
    (turns / f"{contestant}-{block}.go").touch()
    result = turns / f"{contestant}-{block}.json"
    until(result.exists, PATIENCE_S)
    seconds: list[float] = json.loads(result.read_text())
    return seconds


def pack_code(folder: Path) -> None:
    """The script beside the examples that it takes models and data from."""
    folder.mkdir()
    shutil.copy(SCRIPT, folder)
    shutil.copy(SCRIPT.with_name("turns.py"), folder)
    for example in ("elastic", "bytegpt"):
        shutil.copy(ROOT / "examples" / example / "train.py", folder / f"{example}_example.py")


@contextmanager
def torchrun(folder: Path, words: list[str], script: str = SCRIPT.name) -> Iterator[None]:
    """A script as its manual starts it, with one thread per worker as Remora's workers of one CPU have."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("RAY_", "REMORA_", "PYTHONPATH"))}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    with (folder.parent / f"torchrun-{words[0]}.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, script, *words],
            cwd=folder,
            env={**kept, "OMP_NUM_THREADS": "1"},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def ratios(seconds: dict[str, dict[str, float]]) -> dict[str, Any]:
    """What of it stands in the document."""
    steady = {what: round(one["sample-exact"] / one["plain"], 3) for what, one in seconds.items()}
    bitwise = seconds["gpt"]["bitwise"] / seconds["gpt"]["sample-exact"]
    return {"steady_ratio": steady, "bitwise_ratio": round(bitwise, 3)}


if __name__ == "__main__":
    measured = run()
    print(json.dumps({"seconds": measured, **ratios(measured)}, indent=1))
