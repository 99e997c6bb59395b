"""What owners do to an attempt on real nodes: it gets another number of workers, and is paused."""

from __future__ import annotations

from pathlib import Path

import pytest

from remora.spec.worker_sizes import sizes_of
from remora.states import EndReason
from tests.integration.trainers.elastic_training import Training
from tests.integration.trainers.lab import Lab, Running, until
from tests.integration.trainers.scripts import LOCKSTEP

pytestmark = [pytest.mark.slow, pytest.mark.soak, pytest.mark.timeout(600)]


def resize(run: Running, least: int, most: int, order: float) -> None:
    """Send it to the driver, and wait until it has taken that."""
    attempt_id, sizes = run.plan.attempt_id, sizes_of({}, least, most)
    until(lambda: run.launcher.resize(attempt_id, sizes, order), "the driver has the new sizes")


def test_a_group_becomes_smaller_and_larger_in_place_and_is_paused_at_a_checkpoint(
    lab: Lab, tmp_path: Path
) -> None:
    lab.nodes(3)
    training = Training(lab, tmp_path, min_workers=1, max_workers=3)
    training.trains(3)
    resize(training.run, 1, 2, order=1.0)
    training.trains(2)
    assert training.regrouped == [("resize", 2)]
    training.holds_no_more_than_its_workers(training.run.node_of(0), training.run.node_of(1))
    resize(training.run, 1, 3, order=2.0)
    training.trains(3)
    assert training.regrouped == [("resize", 2), ("grow", 3)]
    assert len(training.run.events("worker_group.started")) == 1, "the processes stayed"
    assert training.run.events("node.lost") == []

    run = training.run
    lab.stop(run, EndReason.PAUSED)
    end = run.end()
    assert end["end_reason"] == "paused"
    steps = [body["step"] for body in run.bodies("metric")]
    assert run.checkpoints[-1] == steps[-1], "nothing was done after the checkpoint"
    assert run.progress["repeated_steps"] == 0


def test_a_script_that_cannot_regroup_goes_on_smaller_from_a_checkpoint_and_is_paused(lab: Lab) -> None:
    lab.nodes(2)
    hurry = lab.new_path("hurry")
    command = ["python", "train.py", "100000", "0.05", str(hurry)]
    run = lab.run(
        {"train.py": LOCKSTEP},
        *command,
        backend="command",
        min_workers=1,
        max_workers=2,
        checkpoint_interval_s=None,
    )
    run.until(lambda: run.world_sizes == [2] and run.step > 5, "two workers train")
    resize(run, 1, 1, order=1.0)
    run.until(lambda: run.world_sizes == [2, 1] and run.step > run.checkpoints[-1] + 5, "one worker trains")
    assert run.progress["repeated_steps"] == 0
    lab.stop(run, EndReason.PAUSED)
    assert run.end()["end_reason"] == "paused"
    assert run.checkpoints[-1] >= run.step, "the pause waited for its checkpoint"
