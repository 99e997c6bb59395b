"""What `make demo-server` runs, from outside: its exit code, and the one line for programs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.e2e.demos import command_of, run_demo

pytestmark = [pytest.mark.slow, pytest.mark.soak, pytest.mark.timeout(1200)]


def test_jobs_go_on_under_an_upgrade_a_lost_head_and_a_restoration(tmp_path: Path) -> None:
    command = command_of("demo-server", "demo_server.py")
    result, _ = run_demo(command, tmp_path / "demo", os.environ, timeout_s=1180.0)
    assert result["lost_jobs"] == 0
    assert result["doubled_jobs"] == 0
    assert result["repeated_steps"] == 0
    # A job that was paused before the cluster got another secret lost nothing; one that trained resumed.
    assert result["rotate_paused_repeated_steps"] == 0
    assert result["rotate_repeated_steps"] >= 0
    # Measured, and shown on docs/day-two.md: how long depends on the machine.
    for name in ("head_restart_s", "upgrade_pause_s", "rotate_s"):
        assert isinstance(result[name], float), name
        assert result[name] > 0.0, name
