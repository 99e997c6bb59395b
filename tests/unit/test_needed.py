"""What a machine lacks is left out with a sentence, and fails in CI: nothing is weaker there in silence."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PARTITIONS = [
    "tests/integration/network/test_network_cut.py",
    "tests/integration/cluster/test_zone_cut_off.py",
]


def run_without_programs(*files: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """A run of these tests on a machine whose PATH is empty."""
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-rA", *files],
        cwd=ROOT,
        env={"PATH": "/nowhere", **variables},
        capture_output=True,
        text=True,
    )


def test_ci_does_not_go_without_partitions_of_the_network_nor_a_storage_in_azure() -> None:
    azure = "tests/contracts/trainers/test_storage.py::test_nothing_is_an_empty_file_too"
    files = [*PARTITIONS, "tests/chaos/test_chaos.py"]
    done = run_without_programs(*files, azure, CI="true")
    assert done.returncode == 1, done.stdout
    failed = {
        line.split()[1].split("::")[0] for line in done.stdout.splitlines() if line.startswith("ERROR ")
    }
    assert failed == {*files, azure.split("::")[0]}, done.stdout
    assert "apt-get install iproute2" in done.stdout or "CAP_NET_ADMIN" in done.stdout
    assert "make azurite" in done.stdout


def test_a_laptop_leaves_them_out_and_says_so() -> None:
    done = run_without_programs(*PARTITIONS)
    assert done.returncode == 0, done.stdout
    assert "NO NODE IS CUT OFF FROM THE NETWORK" in done.stdout
    assert " passed" not in done.stdout
