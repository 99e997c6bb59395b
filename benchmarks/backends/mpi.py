"""Steps of an unmodified script for MPI under Remora beside the same script under plain mpirun, two ranks each."""

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

from benchmarks.backends import FrameworkMissing
from benchmarks.remora_cluster import Run, remora_cluster
from benchmarks.steady import ROOT, take_turn

SCRIPT = Path(__file__).with_name("mpi_train.py")
#: Blocks, of which the first is thrown away, and steps of each.
BLOCKS, STEPS = 7, 20


def run(blocks: int = BLOCKS, steps: int = STEPS) -> dict[str, Any]:
    """Its part of the document."""
    if shutil.which("mpirun") is None:
        raise FrameworkMissing("Open MPI is not installed; install openmpi-bin")
    seconds = measure(blocks, steps)
    return {"steady_ratio": {"mpi": round(seconds["remora"] / seconds["mpirun"], 3)}}


def measure(blocks: int, steps: int) -> dict[str, float]:
    """Median seconds of a step for each contestant; they take turns, block by block."""
    with (
        tempfile.TemporaryDirectory(prefix="remora-mpi-") as name,
        remora_cluster(2) as cluster,
        ExitStack() as running,
    ):
        turns, code = Path(name) / "turns", Path(name) / "code"
        turns.mkdir()
        code.mkdir()
        for file in (SCRIPT, ROOT / "benchmarks" / "turns.py"):
            shutil.copy(file, code)
        words = [str(turns), str(blocks), str(steps)]
        running.enter_context(mpirun(code, ["mpirun", *words]))
        command = ["python", SCRIPT.name, "remora", *words]
        two = {"min_workers": 2, "max_workers": 2}
        attempt = Run(cluster, code, command, backend="mpi", checkpoint_interval_s=None, **two)
        running.callback(attempt.close)
        times: dict[str, list[float]] = {"mpirun": [], "remora": []}
        for block in range(blocks):
            for contestant, kept in times.items():
                seconds = take_turn(turns, contestant, block)
                if block > 0:
                    kept.extend(seconds[1:])
        (turns / "end").touch()
        return {contestant: median(seconds) for contestant, seconds in times.items()}


@contextmanager
def mpirun(folder: Path, words: list[str]) -> Iterator[None]:
    """The script as its manual starts it; ranks that wait let others run, as Remora's do, and speak over TCP as well.

    Under Remora the two ranks are on two nodes, which share no memory.
    """
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("RAY_", "REMORA_", "PYTHONPATH"))}
    allowed = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMP_NUM_THREADS": "1"}
    settings = {"btl": "tcp,self", "btl_tcp_if_include": "127.0.0.0/8", "mpi_yield_when_idle": "1"}
    mca = [word for name, value in settings.items() for word in ("--mca", name, value)]
    command = [
        "mpirun",
        "-n",
        "2",
        "--oversubscribe",
        "--bind-to",
        "none",
        *mca,
        sys.executable,
        SCRIPT.name,
        *words,
    ]
    with (folder.parent / "mpirun.log").open("wb") as log:
        process = subprocess.Popen(
            command, cwd=folder, env={**kept, **allowed}, stdout=log, stderr=log, start_new_session=True
        )
    try:
        yield
    finally:
        process.terminate()
        process.wait()


if __name__ == "__main__":
    print(json.dumps(run(), indent=1))
