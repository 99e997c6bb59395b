"""DeepSpeed (ZeRO) under Remora: its step time beside its own launcher's, and what another number of workers costs.

`deepspeed_resize` is measured outside a cluster, with the hook that the backend gives every script: 50 million
parameters that two workers saved are loaded by one and by three.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import remora
from benchmarks.backends import FrameworkMissing
from benchmarks.contest import contest, pack_examples
from benchmarks.ratios import Ratio, steady
from benchmarks.remora_cluster import remora_cluster
from remora.free_ports import free_port

SCRIPT = Path(__file__).with_name("zero_train.py")
SITE = Path(remora.__file__).parent / "deepspeed" / "site"
#: Rounds, and steps of each block.
ROUNDS, STEPS = 40, 4
STAGES = (0, 1, 2, 3)
#: Relative difference of losses that counts as none.
TOLERANCE = 1e-6


def run(rounds: int = ROUNDS, steps: int = STEPS) -> dict[str, Any]:
    """Its part of the document."""
    if importlib.util.find_spec("deepspeed") is None:
        raise FrameworkMissing("DeepSpeed is not installed: make deepspeed")
    os.environ["DS_ACCELERATOR"] = "cpu"
    return {
        **steady(deepspeed=measure(rounds, steps)),
        "deepspeed_resize": {str(stage): resize(stage) for stage in STAGES},
    }


def measure(rounds: int, steps: int) -> Ratio:
    """One unmodified script under both, two workers each."""
    with remora_cluster(2) as cluster, contest(cluster, SCRIPT, rounds=rounds, steps=steps) as match:
        pack_examples(match.code)
        launcher = [sys.executable, "-m", "deepspeed.launcher.runner", "--num_gpus", "2", "--no_local_rank"]
        match.peer(
            "deepspeed", [*launcher, f"--master_port={free_port()}", SCRIPT.name, "steady", "deepspeed"]
        )
        match.remora("remora", ["python", SCRIPT.name, "steady", "remora"], backend="deepspeed")
        match.hold()
        return match.ratio("remora", "deepspeed")


def resize(stage: int) -> dict[str, Any]:
    """Seconds of the slower of two loads, and whether the losses after it are those of who never stopped."""
    with tempfile.TemporaryDirectory(prefix="remora-resize-") as name:
        out = Path(name)
        undisturbed = train(out, "save", stage, 2)["losses"]
        resumed = [train(out, "resume", stage, workers) for workers in (1, 3)]
        return {
            "seconds": round(max(one["seconds"] for one in resumed), 2),
            "equal": all(
                abs(mine - theirs) <= TOLERANCE * abs(theirs)
                for one in resumed
                for mine, theirs in zip(one["losses"], undisturbed, strict=True)
            ),
        }


def train(out: Path, mode: str, stage: int, workers: int) -> dict[str, Any]:
    """What rank 0 wrote."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("REMORA_", "RAY_"))}
    shared = {
        **kept, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(SITE), "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(workers), "LOCAL_WORLD_SIZE": str(workers),
    }  # fmt: skip
    processes = []
    for rank in range(workers):
        scratch = out / f"scratch-{workers}-{rank}"
        scratch.mkdir(exist_ok=True)
        place = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        if mode == "resume":
            place |= {"REMORA_RESUME_DIR": str(out / f"saved-{stage}"), "REMORA_SCRATCH_DIR": str(scratch)}
        command = [sys.executable, str(SCRIPT), "resize", str(out), mode, str(stage)]
        with (out / f"{mode}-{workers}-{rank}.log").open("wb") as log:
            processes.append(subprocess.Popen(command, env={**shared, **place}, stdout=log, stderr=log))
    codes = [process.wait() for process in processes]
    if any(codes):
        logs = [file.read_text()[-2000:] for file in sorted(out.glob(f"{mode}-{workers}-*.log"))]
        raise RuntimeError(f"stage {stage} with {workers} workers failed:\n" + "\n".join(logs))
    result: dict[str, Any] = json.loads((out / f"{mode}-{stage}-{workers}.json").read_text())
    return result


if __name__ == "__main__":
    print(json.dumps(run(), indent=1))
