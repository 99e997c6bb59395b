"""TensorFlow on real nodes, in an environment of its own that has TensorFlow and `remora`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from remora.states import EndReason
from tests.integration.trainers.lab import Lab, Running
from tests.integration.trainers.tensorflow_environment import tensorflow_python

pytestmark = [pytest.mark.slow, pytest.mark.soak, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[3]
EXAMPLE = (ROOT / "examples" / "tensorflow" / "train.py").read_text()
#: Keras' own loop and callback; nothing of Remora is in it.
FIT = (ROOT / "examples" / "keras" / "train.py").read_text()


@pytest.mark.backend("tensorflow", "runs")
@pytest.mark.backend("tensorflow", "silent death")
@pytest.mark.backend("tensorflow", "resumes other size")
def test_a_job_loses_a_node_and_goes_on_with_fewer_workers_from_its_checkpoint(lab: Lab) -> None:
    lab.nodes(2)
    run = lab.run(
        {"train.py": EXAMPLE}, tensorflow_python(), "train.py", "--steps", "1500",
        backend="tensorflow", min_workers=1, max_workers=2, checkpoint_interval_s=1.0,
        variables={"CUDA_VISIBLE_DEVICES": "-1"},
    )  # fmt: skip
    run.until(lambda: run.checkpoints, "a checkpoint is committed")
    config = json.loads(run.child(1).environ()["TF_CONFIG"])
    assert config["task"] == {"type": "worker", "index": 1}
    assert len(set(config["cluster"]["worker"])) == 2
    lab.provider.kill(run.node_of(1))
    assert run.end()["end_reason"] == "completed", run.text()
    begun = [line for line in run.text("stdout").splitlines() if "begins after step" in line]
    assert sorted(begun[:2]) == [f"worker {rank} of 2 begins after step 0" for rank in (0, 1)]
    assert begun[2].startswith("worker 0 of 1 begins after step ")
    assert int(begun[2].rsplit(" ", 1)[1]) > 0
    assert "1500 steps, loss 0.0" in run.text("stdout")


def test_an_environment_without_tensorflow_says_what_to_do(lab: Lab) -> None:
    lab.nodes(1)
    run = lab.run(
        {"train.py": EXAMPLE}, "python", "train.py", backend="tensorflow", min_workers=1, max_workers=1
    )
    end = run.end()
    assert end["end_reason"] == "exit_code"
    assert "No module named 'keras'. List it in `environment.pip`" in end["message"]


@pytest.mark.framework("Keras", "resumes")
@pytest.mark.backend("tensorflow", "unmodified script")
def test_model_fit_with_its_own_backup_goes_on_after_a_loss_and_in_a_later_attempt(lab: Lab) -> None:
    lab.nodes(2)
    fields: dict[str, Any] = {
        "backend": "tensorflow", "min_workers": 1, "max_workers": 1,
        "outputs": ("training",), "output_paths": {"training": "training"},
        "variables": {"CUDA_VISIBLE_DEVICES": "-1"},
    }  # fmt: skip
    first = lab.run({"train.py": FIT}, tensorflow_python(), "train.py", "--epochs", "100000", **fields)
    first.until(lambda: epochs_stored(first), "an epoch is stored")
    lab.provider.kill(first.node_of(0))
    first.until(lambda: len(first.world_sizes) == 2, "it starts on the other node")
    before = len(epochs_begun(first))
    first.until(lambda: len(epochs_begun(first)) > before + 1, "it trains there")
    assert epochs_begun(first).count(1) == 1, "it went on, and did not start again"
    lab.stop(first, EndReason.CANCELLED)
    assert first.end()["end_reason"] == "cancelled"
    first.close()

    done = epochs_stored(first)
    second = lab.run(
        {}, tensorflow_python(), "train.py", "--epochs", str(done + 1),
        bundle=first.plan.bundle, job_id=first.plan.job_id, attempt=2, **fields,
    )  # fmt: skip
    assert second.end()["end_reason"] == "completed", second.text()
    assert epochs_begun(second) == [done + 1]
    assert f"began with epoch {done + 1}, loss 0.0" in second.text("stdout")
    assert set(second.bodies("output")[-1]["files"]) == {"training/model.keras"}, (
        "the backup is of no use now"
    )


def epochs_begun(run: Running) -> list[int]:
    return [int(number) for number in re.findall(r"^Epoch (\d+)/", run.text("stdout"), re.MULTILINE)]


def epochs_stored(run: Running) -> int:
    """How many epochs the newest stored backup has done."""
    for newest in reversed(run.bodies("output")):
        stored = newest["files"].get("training/backup/training_metadata.json")
        if stored is not None and "training/backup/latest.weights.h5" in newest["files"]:
            done: int = json.loads(Path(newest["location"], stored["stored"]).read_text())["epoch"]
            return done
    return 0
