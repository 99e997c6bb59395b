"""A job that logs to MLflow and TensorBoard loses its node: both have each step once afterwards."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.frameworks.trackers_environment import trackers_python
from tests.integration.trainers.lab import Lab, Running

pytestmark = [pytest.mark.slow, pytest.mark.soak, pytest.mark.timeout(600)]

SCRIPT = """
import sys, time
import mlflow
from remora import training
from remora.integrations.mlflow import start_run
from remora.integrations.tensorboard import summary_writer

saved, done = training.resume_from(), 0
if saved is not None:
    done = int((saved / "done").read_text())
start_run(run_name="digits")
writer = summary_writer()
for step in range(done + 1, int(sys.argv[1]) + 1):
    training.report(step, {"loss": 1 / step})
    mlflow.log_metric("loss", 1 / step, step=step)
    writer.add_scalar("loss", 1 / step, step)
    time.sleep(0.05)
    if training.should_checkpoint() or step == int(sys.argv[1]):
        writer.flush()
        with training.checkpoint(step) as folder:
            (folder / "done").write_text(str(step))
writer.close()
mlflow.end_run()
"""
READ = """
import json, sys
from mlflow import MlflowClient
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

client = MlflowClient(f"file://{sys.argv[1]}/mlruns/job")
runs = client.search_runs(["0"])
history = [[one.step for one in client.get_metric_history(run.info.run_id, "loss")] for run in runs]
events = EventAccumulator(f"{sys.argv[1]}/tensorboard", size_guidance={"scalars": 0})
events.Reload()
scalars = [one.step for one in events.Scalars("loss")]
print(json.dumps({"mlflow": history, "tensorboard": scalars, "tags": runs[0].data.tags}))
"""


def outputs_of(run: Running, folder: Path) -> Path:
    """The newest version of the job's outputs, copied into a folder."""
    newest = run.bodies("output")[-1]
    for name, file in newest["files"].items():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(Path(newest["location"], file["stored"]), target)
    return folder


def test_each_step_is_there_once_after_a_loss(lab: Lab, tmp_path: Path) -> None:
    lab.nodes(2)
    run = lab.run(
        {"train.py": SCRIPT}, trackers_python(), "train.py", "600",
        min_workers=1, max_workers=1, checkpoint_interval_s=4.0,
    )  # fmt: skip
    run.until(lambda: run.checkpoints and run.bodies("output"), "a checkpoint and outputs are stored")
    reached = run.step
    run.until(lambda: run.step >= reached + 20, "it goes on for steps that will be done again")
    lab.provider.kill(run.node_of(0))
    assert run.end()["end_reason"] == "completed", run.text()
    assert run.progress["repeated_steps"] > 0
    folder = outputs_of(run, tmp_path / "outputs")
    read = [trackers_python(), "-c", READ, str(folder)]
    environment = {"MLFLOW_ALLOW_FILE_STORE": "true", "PATH": "/usr/bin:/bin"}
    done = subprocess.run(read, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, f"{sorted(str(one) for one in folder.rglob('*'))}\n{done.stderr[-3000:]}"
    found = json.loads(done.stdout)
    [history] = found["mlflow"]
    assert len(set(history)) == len(history)
    assert len(set(found["tensorboard"])) == len(found["tensorboard"])
    assert history[-1] == found["tensorboard"][-1] == 600
    # What was written since the newest version of the outputs is lost with the node, and done again from a checkpoint.
    assert len(history) > 500
    assert found["tags"]["remora.job"] == run.plan.job_id
