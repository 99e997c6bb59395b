"""What `make demo-huggingface` runs, from outside: its exit code, and the one line for programs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.e2e.demos import command_of, run_demo

pytestmark = [pytest.mark.slow, pytest.mark.soak, pytest.mark.timeout(600)]


@pytest.mark.framework("transformers", "runs")
@pytest.mark.framework("transformers", "in place")
def test_the_node_of_rank_0_is_lost_and_the_losses_are_those_of_an_undisturbed_job(tmp_path: Path) -> None:
    command = command_of("demo-huggingface", "demo_huggingface.py")
    # With what says where packages come from.
    result, said = run_demo(command, tmp_path / "demo", os.environ)
    assert (result["steps"], result["repeated_steps"]) == (600, 0)
    assert result["recovery_s"] > 0
    # Sums of two workers and of one are rounded in different places.
    assert 0 <= result["max_loss_difference"] < 1e-3
    assert result["environment_s"]["cold"] > result["environment_s"]["warm"] == 0
    assert result["first_step_s"]["cold"] > 0
    assert result["world_sizes"][:2] == [2, 1]
    assert "SIGKILL to every process of" in said
