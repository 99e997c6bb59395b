"""A hostile job of a real service: behind walls it finds nothing, and without them it finds what they are for."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from remora.machine_isolation import offered
from tests.integration.trainers.jax_environment import jax_python
from tests.integration.trainers.tensorflow_environment import tensorflow_python
from tests.rootless import as_other_user, home_of_another

pytestmark = [
    pytest.mark.slow,
    pytest.mark.soak,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        os.geteuid() != 0 or shutil.which("nft", path="/usr/sbin:/sbin") is None or offered().uids is None,
        reason="needs root, nft and a machine that keeps commands apart",
    ),
]

ROOT = Path(__file__).parents[2]
#: An interpreter with the framework of each backend.
PYTHONS: dict[str, Callable[[], str]] = {
    "ddp": lambda: "python",
    "mpi": lambda: "python",
    "jax": jax_python,
    "tensorflow": tensorflow_python,
}
has_namespaces = pytest.mark.skipif(
    not offered("namespaces").has_namespaces, reason=offered("namespaces").why_no_namespaces
)
#: What docs/security.md names as not held there.
WITHOUT_ROOT = [
    "it is the node's user",
    "it takes the memory of other jobs",
    "the API's port can be reached",
    "the head of Ray can be reached",
]


def attack(folder: Path, isolation: str, *what: str) -> dict[str, Any]:
    """In a network namespace of its own, where the service may install its rules."""
    inside = 'ip link set lo up && exec "$0" -m tests.e2e.hostile_stage "$@"'
    command = ["unshare", "-n", "sh", "-c", inside, sys.executable, str(folder), isolation, *what]
    return report_of(
        subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=800)
    )


def without_root(home: Path, isolation: str, *what: str) -> subprocess.CompletedProcess[str]:
    """The same as a user without any rights."""
    stage = ("-m", "tests.e2e.hostile_stage", str(home), isolation, *what)
    return as_other_user(home, *stage, own_network=True, timeout_s=800)


def report_of(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    reports = [line for line in done.stdout.splitlines() if line.startswith("REPORT ")]
    assert reports, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(reports[0].removeprefix("REPORT "))
    return found


def test_a_hostile_job_finds_nothing(tmp_path: Path) -> None:
    assert attack(tmp_path, "users")["findings"] == []


@pytest.mark.usefixtures("mpirun")
def test_hostile_ranks_of_mpi_find_nothing(tmp_path: Path) -> None:
    assert attack(tmp_path, "users", "mpi")["findings"] == []


@pytest.mark.parametrize("backend", ["ddp", "mpi", "jax", "tensorflow"])
def test_workers_of_two_nodes_meet_behind_the_same_rules_and_find_what_their_project_kept(
    tmp_path: Path, backend: str
) -> None:
    said = attack(tmp_path, "users", "meet", backend, PYTHONS[backend]())["said"]
    assert said == [[["2", "made"]] * 2, [["2", "found"]] * 2]


@has_namespaces
def test_without_root_it_reaches_ports_and_the_memory_of_the_machine_and_nothing_else() -> None:
    with home_of_another() as home:
        report = report_of(without_root(home, "namespaces"))
    assert sorted(report["findings"]) == WITHOUT_ROOT


@has_namespaces
@pytest.mark.parametrize("backend", ["ddp", "mpi", "jax", "tensorflow"])
def test_without_root_workers_of_two_nodes_meet_and_find_what_their_project_kept(backend: str) -> None:
    with home_of_another() as home:
        said = report_of(without_root(home, "auto", "meet", backend, PYTHONS[backend]()))["said"]
    assert said == [[["2", "made"]] * 2, [["2", "found"]] * 2]


#: Of each kind of attempt one finding, so that an attempt which stopped working is noticed.
WITHOUT_WALLS = (
    "it is the node's user",
    "canary-site is in the environment",
    "the Ray token is in ",
    "remora.db can be read",
    "canary-victim is in /tmp/canary-of-victim",
    "canary-victim is in /dev/shm/canary-of-victim",
    "/proc shows environ of another job's script",
    "another job's script can be traced",
    "a supervisor can be signalled",
    "the API's port can be reached",
    "the head of Ray can be reached",
    "the metadata service can be reached",
    "Ray can be used",
    "work of the node can be written to",
    "packages of the node can be written to",
    "it can leave its cgroup",
    "it takes the memory of other jobs",
    "the Ray token is in its outputs",
    "the database is in its outputs",
)


def test_without_walls_the_same_job_finds_much(tmp_path: Path) -> None:
    findings = attack(tmp_path, "none")["findings"]
    assert [wanted for wanted in WITHOUT_WALLS if not any(wanted in one for one in findings)] == []
