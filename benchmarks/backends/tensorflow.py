"""Steps of a TensorFlow script under Remora beside the same script in plain processes, two workers each."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.backends import FrameworkMissing
from benchmarks.remora_cluster import Run, remora_cluster
from benchmarks.steady import ROOT, take_turn
from trainers.supervisor.supervisor import free_port

SCRIPT = Path(__file__).with_name("tensorflow_train.py")
PYTHON = ROOT / ".venv-tensorflow" / "bin" / "python"
#: Blocks, of which the first is thrown away, and steps of each.
BLOCKS, STEPS = 7, 20
#: No GPU of the machine is to be shared by both contestants.
_VARIABLES = {"CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "2"}


def run(blocks: int = BLOCKS, steps: int = STEPS) -> dict[str, Any]:
    """Its part of the document."""
    if not PYTHON.exists():
        raise FrameworkMissing("TensorFlow's environment is not there; run `make tensorflow`")
    seconds = measure(blocks, steps)
    return {"steady_ratio": {"tensorflow": round(seconds["remora"] / seconds["plain"], 3)}}


def measure(blocks: int, steps: int) -> dict[str, float]:
    """Median seconds of a step for each contestant; they take turns, block by block."""
    with (
        tempfile.TemporaryDirectory(prefix="remora-tensorflow-") as name,
        remora_cluster(2) as cluster,
        ExitStack() as running,
    ):
        turns, code = Path(name) / "turns", Path(name) / "code"
        turns.mkdir()
        code.mkdir()
        for file in (SCRIPT, ROOT / "benchmarks" / "turns.py"):
            shutil.copy(file, code)
        words = [str(turns), str(blocks), str(steps)]
        running.enter_context(plain(code, ["plain", *words]))
        attempt = Run(
            cluster,
            code,
            [str(PYTHON), SCRIPT.name, "remora", *words],
            backend="tensorflow",
            min_workers=2,
            max_workers=2,
            checkpoint_interval_s=None,
            variables=_VARIABLES,
        )
        running.callback(attempt.close)
        times: dict[str, list[float]] = {"plain": [], "remora": []}
        for block in range(blocks):
            for contestant, kept in times.items():
                seconds = take_turn(turns, contestant, block)
                if block > 0:
                    kept.extend(seconds[1:])
        (turns / "end").touch()
        return {contestant: median(seconds) for contestant, seconds in times.items()}


@contextmanager
def plain(folder: Path, words: list[str]) -> Iterator[None]:
    """Two processes with TF_CONFIG, one thread each as Remora's workers of one CPU have."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("RAY_", "REMORA_", "PYTHONPATH"))}
    cluster = {"worker": [f"127.0.0.1:{free_port()}" for _ in range(2)]}
    processes = []
    with (folder.parent / "plain.log").open("wb") as log:
        for index in range(2):
            config = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": index}})
            processes.append(
                subprocess.Popen(
                    [str(PYTHON), SCRIPT.name, *words],
                    cwd=folder,
                    env={**kept, **_VARIABLES, "OMP_NUM_THREADS": "1", "TF_CONFIG": config},
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            )
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


if __name__ == "__main__":
    print(json.dumps(run(), indent=1))
