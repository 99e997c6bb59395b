"""What `make demo-team` runs, from outside: its exit code, and the one line for programs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from remora.machine_isolation import offered
from tests.e2e.demos import command_of, run_demo

pytestmark = [
    pytest.mark.slow,
    pytest.mark.soak,
    pytest.mark.timeout(400),
    pytest.mark.skipif(offered().uids is None, reason="needs a machine that keeps commands apart"),
]


def test_a_team_keeps_its_jobs_and_secrets_from_another(tmp_path: Path) -> None:
    command = command_of("demo-team", "demo_team.py")
    result, _ = run_demo(command, tmp_path / "demo", os.environ, timeout_s=380.0)
    assert result["hostile_findings"] == []
    assert result["leaked_secrets"] == []
    assert result["cross_project_reads"] == []
    assert result["isolation"] == "users"
    assert result["start_overhead_ms"] < 1000
    assert result["audit_entries"] >= 9
