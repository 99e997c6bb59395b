"""Scripts for torchrun: their launcher is left out, and their own snapshots outlive their workers."""

from __future__ import annotations

from pathlib import Path

import pytest

from remora.spec.spec import JobSpec
from remora.states import EndReason
from tests.integration.trainers.lab import Lab

pytestmark = [pytest.mark.slow, pytest.mark.soak, pytest.mark.timeout(600)]

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


def test_torchrun_in_a_script_for_a_shell_starts_no_second_training(lab: Lab) -> None:
    lab.nodes(2)
    script = "import os, sys; print(os.environ['RANK'], 'of', os.environ['WORLD_SIZE'], *sys.argv[1:])"
    files = {"src/train.py": script, "run.sh": 'cd src\ntorchrun --nproc_per_node=2 train.py "$@" > ../log\n'}
    command = JobSpec(command='bash run.sh --lr 0.1 && cat log && exit "$RANK"', workers=2).command  # type: ignore[arg-type, call-arg]
    run = lab.run(files, *command)
    end = run.end()
    assert (end["end_reason"], end["exit_code"]) == ("exit_code", 1)
    assert sorted(run.text("stdout").splitlines()) == ["0 of 2 --lr 0.1", "1 of 2 --lr 0.1"]
    said = run.text("stderr")
    assert said == "remora: torchrun is not started: every worker runs `python train.py --lr 0.1`."


def test_a_script_with_its_own_snapshot_goes_on_from_it_with_the_workers_that_are_left(lab: Lab) -> None:
    lab.nodes(2)
    job = JobSpec.from_yaml(EXAMPLE / "job.yaml")
    # One snapshot after the first epoch, and then more epochs than any machine gets through before one goes.
    longer = ["--epochs", "1000000", "--save-every", "1000000"]
    run = lab.run(
        {"train.py": (EXAMPLE / "train.py").read_text()}, *job.command, *longer,
        outputs=tuple(job.outputs), min_workers=job.min_workers, max_workers=job.max_workers,
    )  # fmt: skip
    run.until(
        lambda: any("snapshots/snapshot.pt" in body["files"] for body in run.bodies("output")), "it is stored"
    )
    lab.provider.kill(run.node_of(1))
    # 2,048 samples in batches of 32: 32 steps for each of two workers, 64 for one.
    alone = "Resuming training from snapshot at epoch 1\n[0] Epoch 1 | Steps: 64 "
    run.until(lambda: alone in run.text("stdout"), "one worker goes on from the snapshot")
    assert run.world_sizes == [2, 1]
    lab.stop(run, EndReason.CANCELLED)
    assert run.end()["end_reason"] == "cancelled"
