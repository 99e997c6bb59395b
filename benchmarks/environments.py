"""From the submission of a job with packages of its own to its first step, beside the same by hand and by Ray.

`make bench-environments` runs it; it needs a package index.  Every contestant installs `transformers==5.*` (about 30
packages; PyTorch is the node's) and runs the same script, which imports PyTorch and reports one step.  *Cold* is with
nothing on the machine, *warm* with what the run before has left; *by hand* is `uv venv`, `uv pip install` and `python`,
*Ray* a task with `runtime_env={"uv": [...]}`, and *none* a job of ours without an environment.  *Behind walls* are the
two warm ones where jobs are kept apart: there commands with an environment are forked from the node's interpreter.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.remora_cluster import until
from benchmarks.stock_cluster import stock_cluster
from benchmarks.submit import PATIENCE_S, service
from remora import Client
from remora.isolation import Isolation, decide
from remora.machine_isolation import offered
from remora.states import NodeState

PACKAGES = ["transformers==5.*"]
TRIES = 3
#: Seconds without work before each warm try.
REST_S = 5.0
SCRIPT = """
import torch
from remora import training
training.report(1, {"sum": float(torch.ones(8).sum())})
"""
_RAY = """
import json, sys, time, ray
ray.init(log_to_driver=False)
packages = json.loads(sys.argv[1])

@ray.remote(num_cpus=1, runtime_env={"uv": packages})
def step():
    import torch
    return float(torch.ones(8).sum())

ray.get(step.remote())
print("done")
"""


def run() -> dict[str, Any]:
    """The document that is written: seconds of each contestant, and what an environment adds to a warm start."""
    with tempfile.TemporaryDirectory(prefix="remora-environments-") as name:
        folder = Path(name)
        ours, none = remora_seconds(folder, "none")
        is_apart = decide("auto", offered()) is not None
        apart = _medians(*remora_seconds(folder, "auto")) if is_apart else None
        document: dict[str, Any] = {
            "remora": {"cold_s": ours[0], "warm_s": round(median(ours[1:]), 3)},
            "none": {"warm_s": round(median(none), 3)},
            "by_hand": by_hand_seconds(folder),
            "ray": ray_seconds(folder),
            "behind_walls": apart,
        }
    document["warm_more_than_none_s"] = round(document["remora"]["warm_s"] - document["none"]["warm_s"], 3)
    return {"environments": document}


def _medians(ours: list[float], none: list[float]) -> dict[str, float]:
    return {"warm_s": round(median(ours[1:]), 3), "none_warm_s": round(median(none), 3)}


def remora_seconds(folder: Path, isolation: Isolation) -> tuple[list[float], list[float]]:
    """Seconds of jobs with the environment, the first one cold, and of jobs without one, on a service of their own."""
    os.environ["REMORA_ISOLATION"] = isolation
    folder = folder / isolation
    code = folder / "code"
    code.mkdir(parents=True)
    (code / "train.py").write_text(SCRIPT)
    os.environ["UV_CACHE_DIR"] = str(folder / "cache")
    home = folder / "home"
    home.mkdir()
    with service(home) as url, Client(url) as client:
        until(lambda: any(node.state is NodeState.READY for node in client.nodes()), PATIENCE_S)

        def once(packages: list[str]) -> float:
            time.sleep(REST_S)
            environment = {"pip": packages} if packages else {}
            began = time.monotonic()
            job = client.submit({"command": "python train.py", "code": str(code), "environment": environment})
            until(lambda: client.job(job.id).step, PATIENCE_S)
            seconds = time.monotonic() - began
            client.wait(job.id, PATIENCE_S)
            return round(seconds, 3)

        once([])
        # Alternately, so that what else the machine does meets both alike.
        ours, none = [once(PACKAGES), once(PACKAGES)], []
        for _ in range(TRIES):
            none.append(once([]))
            ours.append(once(PACKAGES))
        # The second one still starts the interpreter from which the later ones are forked.
        del ours[1]
        return ours, none


def by_hand_seconds(folder: Path) -> dict[str, float]:
    """What a person would type, until the script is done."""
    uv = str(Path(sys.executable).with_name("uv"))
    layers = next(Path(sys.prefix).glob("lib/python3.*/site-packages"))
    environ = {**os.environ, "UV_CACHE_DIR": str(folder / "cache-by-hand")}

    def once() -> None:
        target = folder / "by-hand"
        shutil.rmtree(target, ignore_errors=True)
        subprocess.run(
            [uv, "venv", "--quiet", "--python", sys.executable, str(target)], check=True, env=environ
        )
        python = target / "bin" / "python"
        install = [uv, "pip", "install", "--quiet", "--python", str(python), *PACKAGES]
        subprocess.run(install, check=True, env=environ)
        (own,) = target.glob("lib/python3.*/site-packages")
        (own / "node.pth").write_text(f"{layers}\n")
        code = SCRIPT.replace("from remora import training\n", "").partition("training.report")[0]
        subprocess.run([python, "-c", code], check=True, env=environ)

    return _cold_and_warm(once)


def ray_seconds(folder: Path) -> dict[str, float]:
    """A task of a stock Ray cluster, from the start of its driver to its result."""
    # Ray needs this package for it, and does not require it.
    needed = folder / "virtualenv"
    uv = Path(sys.executable).with_name("uv")
    subprocess.run([uv, "pip", "install", "--quiet", "--target", needed, "virtualenv"], check=True)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(needed), os.environ.get("PYTHONPATH", "")])
    with stock_cluster(1) as cluster:
        environ = {**cluster.environment(), "UV_CACHE_DIR": str(folder / "cache-of-ray")}

        def once() -> None:
            command = [sys.executable, "-c", _RAY, json.dumps(PACKAGES)]
            subprocess.run(command, check=True, env=environ, capture_output=True, timeout=PATIENCE_S * 3)

        return _cold_and_warm(once)


def _cold_and_warm(once: Callable[[], None]) -> dict[str, float]:
    seconds = []
    for _ in range(1 + TRIES):
        began = time.monotonic()
        once()
        seconds.append(time.monotonic() - began)
    return {"cold_s": round(seconds[0], 3), "warm_s": round(median(seconds[1:]), 3)}
