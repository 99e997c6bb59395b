"""A hostile job of a real service: behind walls it finds nothing, and without them it finds what they are for."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from remora.machine_isolation import offered

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


def attack(folder: Path, isolation: str, *what: str) -> dict[str, Any]:
    """In a network namespace of its own, where the service may install its rules."""
    inside = 'ip link set lo up && exec "$0" -m tests.e2e.hostile_stage "$@"'
    command = ["unshare", "-n", "sh", "-c", inside, sys.executable, str(folder), isolation, *what]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=800)
    reports = [line for line in done.stdout.splitlines() if line.startswith("REPORT ")]
    assert reports, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(reports[0].removeprefix("REPORT "))
    return found


def test_a_hostile_job_finds_nothing(tmp_path: Path) -> None:
    assert attack(tmp_path, "users")["findings"] == []


def test_workers_of_two_nodes_meet_behind_the_same_rules_and_find_what_their_project_kept(
    tmp_path: Path,
) -> None:
    said = attack(tmp_path, "users", "meet")["said"]
    assert said == [[["2", "made"]] * 2, [["2", "found"]] * 2]


#: Of each kind of attempt one finding, so that an attempt which stopped working is noticed.
WITHOUT_WALLS = (
    "it is the node's user",
    "canary-service is in the environment",
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
