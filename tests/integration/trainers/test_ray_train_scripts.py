"""Scripts for Ray Train's `TorchTrainer` as jobs on real nodes."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from cluster.ray.drain import drain
from cluster.ray.membership import RayMembership
from tests.integration.trainers.lab import Lab

pytestmark = [pytest.mark.slow, pytest.mark.soak, pytest.mark.timeout(600)]

EXAMPLE = (Path(__file__).parents[3] / "examples" / "ray_train" / "train.py").read_text()
START = ("python", "-m", "remora.integrations.ray_train", "train.py")
#: Every worker reports a checkpoint, with a file that all have and one of its own: first, last, and after a notice.
PARTS = """
import sys, tempfile
from pathlib import Path
import ray.train
from ray.train import Checkpoint, ScalingConfig
from ray.train.collective import broadcast_from_rank_zero
from ray.train.torch import TorchTrainer

def loop():
    rank, done = ray.train.get_context().get_world_rank(), 0
    if (checkpoint := ray.train.get_checkpoint()) is not None:
        with checkpoint.as_directory() as folder:
            done = int((Path(folder) / "done").read_text())
            print(f"rank {rank} finds", *sorted(one.name for one in Path(folder).iterdir()), flush=True)
    assert broadcast_from_rank_zero(rank) == 0
    has_notice = False
    for step in range(done + 1, int(sys.argv[1]) + 1):
        # Nothing else is saved before the notice comes.
        has_notice = has_notice or ray.train.get_preemption_info() is not None
        with tempfile.TemporaryDirectory() as folder:
            checkpoint = None
            if step == 1 or has_notice or step == int(sys.argv[1]):
                (Path(folder) / "done").write_text(str(step))
                (Path(folder) / f"part-{rank}").write_text(str(step))
                checkpoint = Checkpoint.from_directory(folder)
            ray.train.report({"value": step, "name": "text"}, checkpoint=checkpoint)

TorchTrainer(loop, scaling_config=ScalingConfig(num_workers=(1, 2))).fit()
print("once", flush=True)
"""


@pytest.mark.framework("Ray Train", "runs")
@pytest.mark.framework("Ray Train", "resumes")
@pytest.mark.framework("Ray Train", "metrics")
def test_a_script_for_torch_trainer_goes_on_with_one_worker_after_a_loss(lab: Lab) -> None:
    lab.nodes(2)
    run = lab.run({"train.py": EXAMPLE}, *START, "--epochs", "300", min_workers=1, max_workers=2)
    run.until(lambda: run.step >= 20, "it trains")
    lab.provider.kill(run.node_of(1))
    assert run.end()["end_reason"] == "completed", run.text()
    begun = [line for line in run.text("stdout").splitlines() if "begins after epoch" in line]
    assert sorted(begun[:2]) == [f"worker {rank} of 2 begins after epoch 0" for rank in (0, 1)]
    assert begun[2].startswith("worker 0 of 1 begins after epoch ")
    assert int(begun[2].rsplit(" ", 1)[1]) >= 19, "every report is a checkpoint of the job"
    assert "300 epochs, the model of epoch 300, loss 0.0" in run.text("stdout")
    epochs = {body["step"]: body["values"]["epoch"] for body in run.bodies("metric")}
    assert epochs == {number: number for number in range(1, 301)}


def test_a_script_that_saves_after_a_notice_leaves_the_node_with_the_files_of_all_workers(lab: Lab) -> None:
    lab.nodes(2)
    run = lab.run({"train.py": PARTS}, *START, "4000", min_workers=1, max_workers=2)
    run.until(lambda: run.checkpoints, "a checkpoint is committed")
    leaving = run.node_of(1)
    drain(RayMembership().observe()[leaving].ray_node_id, "the cloud takes it", time.time() + 30.0)
    run.until(lambda: run.world_sizes == [2, 1], "it goes on without the node")
    lab.provider.kill(leaving)
    assert run.end()["end_reason"] == "completed", run.text()
    assert run.progress["repeated_steps"] == 0
    text = run.text("stdout")
    assert "rank 0 finds done part-0 part-1" in text
    assert text.splitlines().count("once") == 1, "what follows fit() runs on rank 0 alone"
    assert run.step == 4000
