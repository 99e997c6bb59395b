"""What a machine lacks is left out with a sentence, and fails in CI: nothing is weaker there in silence."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CUTS = ["tests/integration/network/test_network_cut.py", "tests/integration/cluster/test_zone_cut_off.py"]


def run_without_programs(*files: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """A run of these tests on a machine whose PATH is empty."""
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *files],
        cwd=ROOT,
        env={"PATH": "/nowhere", **variables},
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize("file", [*CUTS, "tests/chaos/test_chaos.py"])
def test_ci_does_not_go_without_cuts_of_the_network(file: str) -> None:
    done = run_without_programs(file, CI="true")
    assert done.returncode == 1, done.stdout
    assert "apt-get install iproute2" in done.stdout or "CAP_NET_ADMIN" in done.stdout


def test_ci_does_not_go_without_a_storage_in_azure() -> None:
    done = run_without_programs(
        "tests/contracts/trainers/test_storage.py::test_nothing_is_an_empty_file_too", CI="true"
    )
    assert "make azurite" in done.stdout, done.stdout
    assert done.returncode == 1


@pytest.mark.parametrize("file", CUTS)
def test_a_laptop_leaves_them_out_and_says_so(file: str) -> None:
    done = run_without_programs(file)
    assert done.returncode == 0, done.stdout
    assert "NO NODE IS CUT OFF FROM THE NETWORK" in done.stdout
