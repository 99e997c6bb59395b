"""Scripts for torchrun: their launcher is left out, and their own snapshots outlive their workers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from remora.spec import JobSpec
from tests.integration.trainers.lab import Lab

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

EXAMPLE = Path(__file__).parents[3] / "examples" / "torchrun"


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


def test_a_script_with_its_own_snapshot_goes_on_from_it_with_the_workers_that_are_left(lab: Lab) -> None:
    lab.nodes(2)
    job = JobSpec.from_yaml(EXAMPLE / "job.yaml")
    # One snapshot after the first epoch, and then enough time for a machine to go.
    longer = ["--epochs", "800", "--save-every", "1000000"]
    run = lab.run(
        {"train.py": (EXAMPLE / "train.py").read_text()}, *job.command, *longer,
        outputs=tuple(job.outputs), min_workers=job.min_workers, max_workers=job.max_workers,
    )  # fmt: skip
    run.until(
        lambda: any("snapshots/snapshot.pt" in body["files"] for body in run.bodies("output")), "it is stored"
    )
    lab.provider.kill(run.node_of(1))
    assert run.end()["end_reason"] == "completed"
    assert run.world_sizes == [2, 1]
    assert re.findall(r"Resuming training from snapshot at epoch (\d+)", run.text()) == ["1"]
    assert "[0] Epoch 799 " in run.text()
