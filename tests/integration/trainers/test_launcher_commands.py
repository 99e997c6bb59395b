"""A command that starts a launcher runs its script once for each worker, and an event says so."""

from __future__ import annotations

import pytest

from tests.integration.trainers.lab import Lab

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


def test_torchrun_is_left_out_and_its_script_runs_on_every_worker(lab: Lab) -> None:
    lab.nodes(2)
    script = "import os, sys; print(os.environ['RANK'], 'of', os.environ['WORLD_SIZE'], *sys.argv[1:])"
    command = ["torchrun", "--nproc-per-node", "2", "--rdzv-backend", "c10d", "train.py", "--lr", "0.1"]
    run = lab.run({"train.py": script}, *command)
    assert run.end()["end_reason"] == "completed"
    assert sorted(run.text("stdout").splitlines()) == ["0 of 2 --lr 0.1", "1 of 2 --lr 0.1"]
    (event,) = run.events("attempt.launcher_left_out")
    assert event["data"]["command"] == ["python", "train.py", "--lr", "0.1"]
    assert event["data"]["ignored"] == ["--rdzv-backend c10d"]
