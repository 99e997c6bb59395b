"""TensorFlow on real nodes, in an environment of its own that has TensorFlow and `remora`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.integration.trainers.lab import Lab
from tests.integration.trainers.tensorflow_environment import tensorflow_python

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[3]
EXAMPLE = (ROOT / "examples" / "tensorflow" / "train.py").read_text()


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
    assert "No module named 'keras'. Install it on the nodes" in end["message"]
