"""Runs the hostile job of `examples/team` on a real service beside another job, and prints what it found, as JSON.

    python -m tests.e2e.hostile_stage FOLDER ISOLATION [mpi | meet BACKEND PYTHON]

To be run in a network namespace of its own (`unshare -n`): the service installs its rules for connections there, and
the metadata service is an emulated one, at its real address on the loopback interface; root can do that, others do
without.  FOLDER is an empty one.

With `mpi` the hostile job has two ranks of MPI, on two nodes.  With `meet` two workers of an ordinary job, on two
nodes, have to meet behind the same walls and rules, with the framework of a backend, which an interpreter has.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from examples.team.attack import (
    FINDINGS,
    HELD_BYTES,
    canary,
    emulate_metadata,
    free_memory,
    hints,
    left_behind,
    stolen,
)
from remora.states import JobState
from tests.e2e.embedded import Embedded
from tests.e2e.processes import PATIENCE_S, until

ROOT = Path(__file__).parents[2]

VICTIM = """
import os, pathlib, signal, sys, tempfile
for folder in (".", os.environ["REMORA_OUTPUTS_DIR"], tempfile.gettempdir(), "/tmp", "/dev/shm"):
    try:
        pathlib.Path(folder, "canary-of-victim").write_text(os.environ["VICTIM"])
    except OSError as error:
        print(folder, error)
print("READY", flush=True)
signal.pause()
"""
#: The smallest memory for files of a command; the hostile job holds half of it.
SHM_BYTES = 2 * HELD_BYTES


#: By backend: ranks of two nodes find each other and reduce.
MEETS = {
    "ddp": """
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
dist.destroy_process_group()
""",
    "mpi": """
from mpi4py import MPI
total = MPI.COMM_WORLD.allreduce(1)
""",
    "jax": """
import jax
from jax.experimental import multihost_utils
jax.distributed.initialize()
total = multihost_utils.process_allgather(jax.numpy.array([1])).sum()
""",
    "tensorflow": """
import tensorflow as tf
strategy = tf.distribute.MultiWorkerMirroredStrategy()
@tf.function
def reduced():
    return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, tf.constant(1.0))
total = strategy.experimental_local_results(strategy.run(reduced))[0]
""",
}
#: They keep a file for the attempt after this one.
KEEPS = """
import os, pathlib
kept = pathlib.Path(os.environ["XDG_CACHE_HOME"], "kept")
print("MET", int(total), "found" if kept.exists() else "made", flush=True)
kept.touch()
"""
#: After the attack: the ranks are those of one world.
WORLD = """
from mpi4py import MPI
print("RANKS", MPI.COMM_WORLD.allreduce(1), flush=True)
"""


def meet(folder: Path, isolation: str, backend: str, python: str) -> dict[str, Any]:
    """What two ranks on two nodes print, in each of two jobs of one project."""
    service = Embedded(folder / "home", nodes=2, variables=_variables(isolation, cpus=1))
    (folder / "meets").mkdir()
    (folder / "meets" / "train.py").write_text(MEETS[backend] + KEEPS)
    variables = {"CUDA_VISIBLE_DEVICES": "-1"}
    spec = {
        "command": [python, "train.py"],
        "backend": backend,
        "workers": 2,
        "environment": {"variables": variables},
    }
    try:
        service.start()
        with service.client() as client:
            jobs = []
            for _ in range(2):
                jobs.append(_submit(service, folder, "meets", spec))
                done = client.wait(jobs[-1], PATIENCE_S)
                assert done.state is JobState.SUCCEEDED, f"{done.message}: {_log(service, jobs[-1])[-4000:]}"
            return {"said": [re.findall(r"MET (\d) (\w+)", _log(service, job)) for job in jobs]}
    finally:
        service.end()


def main(folder: Path, isolation: str, backend: str = "command") -> dict[str, Any]:
    """The report of the hostile job, with what can be seen of it from outside."""
    if os.geteuid() == 0:
        emulate_metadata()
    ranks = 2 if backend == "mpi" else 1
    service = Embedded(folder / "home", nodes=ranks, variables=_variables(isolation, cpus=3))
    try:
        service.start()
        return _attack(service, folder, backend, ranks)
    finally:
        service.end()


def _variables(isolation: str, cpus: int) -> dict[str, str]:
    return {
        "REMORA_ISOLATION": isolation,
        # Rules are for users.
        "REMORA_NETWORK_RULES": str(os.geteuid() == 0 and isolation != "namespaces").lower(),
        "REMORA_NODE_CPUS": str(cpus),
        "REMORA_MAX_SHM_BYTES": str(SHM_BYTES),
        "REMORA_WARM_MODULES": "json",
        "AZURE_CLIENT_SECRET": canary("service"),
        "SITE_CREDENTIALS": canary("site"),
    }


def _attack(service: Embedded, folder: Path, backend: str, ranks: int) -> dict[str, Any]:
    (folder / "victim").mkdir()
    (folder / "victim" / "victim.py").write_text(VICTIM)
    (folder / "hostile").mkdir()
    source = ROOT / "examples/team/hostile.py"
    (folder / "hostile" / "train.py").write_text(source.read_text() + (WORLD if backend == "mpi" else ""))
    secret = canary("victim")
    spec: dict[str, Any] = {
        "command": ["python", "victim.py", canary("argument")],
        "environment": {"variables": {"VICTIM": secret}},
    }
    victim = _submit(service, folder, "victim", spec)
    with service.client() as client:
        until(lambda: "READY" in _log(service, victim), "the other job runs")
        daemon = f"daemon-{secrets.token_hex(4)}"
        hint = hints(service.home, service.url, victim, daemon)
        variables = {"HOSTILE_HINTS": json.dumps(hint)}
        spec = {
            "command": ["python", "train.py"],
            "backend": backend,
            "workers": ranks,
            "environment": {"variables": variables},
        }
        hostile = _submit(service, folder, "hostile", spec)
        until(lambda: "SCANNING" in _log(service, hostile) or client.job(hostile).terminal, "it tries ports")
        # Processes of the platform start meanwhile, and listen.
        beside = _submit(service, folder, "victim", {"command": ["python", "-c", "pass"]})
        with most_taken() as taken:
            done = client.wait(hostile, PATIENCE_S)
        findings = _report(_log(service, hostile), ranks)
        if backend == "mpi" and _log(service, hostile).count("RANKS 2") != ranks:
            findings.append("it was no job of MPI")
        if done.state is not JobState.SUCCEEDED:
            findings.append(f"it ended as {done.state.value}: {done.message}")
        if max(taken) > HELD_BYTES // 2:
            findings.append("it takes the memory of other jobs")
        if left_behind(daemon):
            findings.append("a process outlived it")
        findings += stolen(service.home / "storage", hostile, hint)
        findings += [] if client.job(victim).state is JobState.RUNNING else ["the other job was ended"]
        client.cancel(victim)
        for other in (victim, beside):
            client.wait(other, PATIENCE_S)
    return {"findings": findings, "log": _log(service, hostile).splitlines()[-20:]}


@contextlib.contextmanager
def most_taken() -> Iterator[list[int]]:
    """Bytes of the machine's memory for files that were taken since, looked at many times while the context is open.

    What the job holds it holds for some seconds, and its log may come later than that.
    """
    before, over, seen = free_memory(), threading.Event(), [0]

    def look() -> None:
        while not over.wait(0.1):
            seen.append(before - free_memory())

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()


def _submit(service: Embedded, folder: Path, name: str, spec: dict[str, Any]) -> str:
    file = folder / f"{name}.json"
    file.write_text(json.dumps({"name": name, "code": str(folder / name), **spec}))
    answer = service.remora("submit", "-q", str(file), folder=folder)
    assert answer.code == 0, answer.err
    return answer.out.strip()


def _log(service: Embedded, job: str) -> str:
    return service.remora("logs", job).out


def _report(log: str, ranks: int) -> list[str]:
    reports = FINDINGS.findall(log)
    lacking = [f"{ranks - len(reports)} of {ranks} ranks made no report"] if len(reports) != ranks else []
    return [*(one for report in reports for one in json.loads(report)), *lacking]


if __name__ == "__main__":
    is_meeting = sys.argv[3:4] == ["meet"]
    play, words = (meet, sys.argv[4:]) if is_meeting else (main, sys.argv[3:])
    print("REPORT " + json.dumps(play(Path(sys.argv[1]), sys.argv[2], *words)), flush=True)
