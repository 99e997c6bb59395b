"""What `make demo-azure` runs, from outside: its exit code, and the one line for programs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.demos import run_demo

pytestmark = [pytest.mark.slow, pytest.mark.soak, pytest.mark.timeout(600)]


def test_spot_is_taken_back_and_on_demand_stands_in(tmp_path: Path) -> None:
    home = tmp_path / "demo"
    result, said = run_demo(["examples/demo_azure.py"], home)
    assert (result["state"], result["repeated_steps"], result["preemptions"]) == ("succeeded", 0, 1)
    assert (result["spot_nodes"], result["azure_resources_left"]) == (2, 0)
    assert result["on_demand_nodes"] >= 1
    assert result["foreign_nodes"] == 2
    assert result["foreign_wait_s"] > 0
    # What Ray took where it looked without pause for capacity for a lost worker: more than half of a core.
    assert 0 < result["gcs_core_share"] < 0.3
    for line in result["ledger"].values():
        assert line["vm_seconds"] > 0
        assert line["usd"] > 0
    money = result["accounts"]
    assert abs(sum(money["usd_by_cause"].values()) - money["usd"]) < 1e-9
    assert money["usd_by_cause"]["training"] > 0
    assert "Preempt in 30 s" in said
