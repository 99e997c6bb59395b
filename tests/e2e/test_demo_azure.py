"""What `make demo-azure` runs, from outside: its exit code, and the one line for programs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.processes import processes_with

pytestmark = [pytest.mark.slow, pytest.mark.soak, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]


def test_spot_is_taken_back_and_on_demand_stands_in(tmp_path: Path) -> None:
    home = tmp_path / "demo"
    done = subprocess.run(
        [sys.executable, "examples/demo_azure.py", "--home", home],
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=580,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-3000:]
    result = json.loads(done.stdout.splitlines()[-1])
    assert (result["state"], result["repeated_steps"], result["preemptions"]) == ("succeeded", 0, 1)
    assert (result["spot_nodes"], result["azure_resources_left"]) == (2, 0)
    assert result["on_demand_nodes"] >= 1
    assert result["foreign_nodes"] == 2
    assert result["foreign_wait_s"] > 0
    # What Ray took where it looked without pause for room for a lost worker: more than half of a core.
    assert 0 < result["gcs_core_share"] < 0.3
    for line in result["ledger"].values():
        assert line["vm_seconds"] > 0
        assert line["usd"] > 0
    assert "Preempt in 30 s" in done.stdout
    assert processes_with(str(home)) == []
