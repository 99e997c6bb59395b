"""What `make demo-team` runs, from outside: its exit code, and the one line for programs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from remora.machine_isolation import offered
from tests.e2e.processes import processes_with
from tests.e2e.test_demo import command_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.soak,
    pytest.mark.timeout(400),
    pytest.mark.skipif(offered().uids is None, reason="needs a machine that keeps commands apart"),
]

ROOT = Path(__file__).parents[2]


def test_a_team_keeps_its_jobs_and_secrets_from_another(tmp_path: Path) -> None:
    home = tmp_path / "demo"
    done = subprocess.run(
        [sys.executable, *command_of("demo-team", "demo_team.py"), "--home", home],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=380,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["hostile_findings"] == []
    assert result["leaked_secrets"] == []
    assert result["cross_project_reads"] == []
    assert result["isolation"] == "users"
    assert result["start_overhead_ms"] < 1000
    assert result["audit_entries"] >= 9
    assert processes_with(str(home)) == []
