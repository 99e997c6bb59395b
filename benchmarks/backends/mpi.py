"""Steps of an unmodified script for MPI under Remora beside the same script under plain mpirun, two ranks each."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

from benchmarks.backends import FrameworkMissing
from benchmarks.contest import Contest, contest
from benchmarks.ratios import steady
from benchmarks.remora_cluster import remora_cluster

SCRIPT = Path(__file__).with_name("mpi_train.py")
#: Rounds, and steps of each block.
ROUNDS, STEPS = 64, 10


def run(rounds: int = ROUNDS, steps: int = STEPS) -> dict[str, Any]:
    """Its part of the document."""
    if shutil.which("mpirun") is None:
        raise FrameworkMissing("Open MPI is not installed; install openmpi-bin")
    with remora_cluster(2) as cluster, contest(cluster, SCRIPT, rounds=rounds, steps=steps) as match:
        start_mpirun(match)
        match.remora("remora", ["python", SCRIPT.name, "remora"], backend="mpi")
        match.hold()
        return steady(mpi=match.ratio("remora", "mpirun"))


def start_mpirun(match: Contest) -> None:
    """The script as its manual starts it; ranks that wait let others run, as Remora's do, and speak over TCP as well.

    Under Remora the two ranks are on two nodes, which share no memory.
    """
    settings = {"btl": "tcp,self", "btl_tcp_if_include": "127.0.0.0/8", "mpi_yield_when_idle": "1"}
    mca = [word for name, value in settings.items() for word in ("--mca", name, value)]
    launcher = ["mpirun", "-n", "2", "--oversubscribe", "--bind-to", "none", *mca]
    as_root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    match.peer("mpirun", [*launcher, sys.executable, SCRIPT.name, "mpirun"], **as_root)


if __name__ == "__main__":
    print(json.dumps(run(), indent=1))
