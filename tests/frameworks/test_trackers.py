"""MLflow, Weights & Biases and TensorBoard in two attempts of a job, the second of which does steps again."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.frameworks.trackers_environment import trackers_python
from trainers.supervisor.tracker_variables import tracker_variables
from trainers.worker_identity import WorkerIdentity

pytestmark = [pytest.mark.soak, pytest.mark.timeout(300)]

#: The second attempt resumes after step 6, of which the first one had done ten, and has another outputs folder.
STEPS = {1: (1, 10), 2: (7, 15)}
MLFLOW = """
import os, sys
import mlflow
from remora.integrations.mlflow import start_run

begin, end, outputs = int(sys.argv[1]), int(sys.argv[2]), os.environ["REMORA_OUTPUTS_DIR"]
start_run(run_name="digits")
for step in range(begin, end + 1):
    mlflow.log_metric("loss", 1 / step, step=step)
    mlflow.log_metrics({"rate": 0.1, "noise": float(begin)}, step=step)
mlflow.log_metric("final", float(end))
mlflow.log_param("size", 3)
mlflow.log_metric("later", 1.0, step=3, synchronous=False).wait()
with open("note.txt", "w") as file:
    file.write(f"to {end}")
mlflow.log_artifact("note.txt", artifact_path=f"from-{begin}")
if begin == 1:
    os._exit(9)
"""
READ_MLFLOW = """
import json, sys
from mlflow import MlflowClient
client = MlflowClient()
runs = [run for one in client.search_experiments() for run in client.search_runs([one.experiment_id])]
read = lambda run, key: [one.step for one in client.get_metric_history(run.info.run_id, key)]
print(json.dumps([{
    "name": run.info.run_name,
    "tags": run.data.tags, "status": run.info.status, "params": run.data.params, "metrics": run.data.metrics,
    "steps": {key: read(run, key) for key in run.data.metrics},
    "artifacts": [f"{one.path}/note.txt" for one in client.list_artifacts(run.info.run_id) if one.is_dir],
    "note": open(client.download_artifacts(run.info.run_id, "from-1/note.txt")).read(),
} for run in runs]))
"""
TENSORBOARD = """
import os, sys
from remora.integrations.tensorboard import summary_writer

writer = summary_writer()
for step in range(int(sys.argv[1]), int(sys.argv[2]) + 1):
    writer.add_scalar("loss", 1 / step + int(sys.argv[1]), step)
writer.flush()
os._exit(9)
"""
READ_TENSORBOARD = """
import json, os
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator(os.environ["REMORA_OUTPUTS_DIR"] + "/tensorboard")
events.Reload()
print(json.dumps([(one.step, one.value) for one in events.Scalars("loss")]))
"""
WANDB = """
import json, sys
import wandb
run = wandb.init(project="digits")
for step in range(int(sys.argv[1]), int(sys.argv[2]) + 1):
    run.log({"loss": 1 / step}, step=step)
run.log({"loss": 99.0}, step=3)
run.finish()
settings = run.settings
print(json.dumps({"id": run.id, "group": run.group, "resume": settings.resume, "folder": run.dir}))
"""
#: The file is a log of LevelDB: blocks of 32 KiB, with records of a checksum, a length, a type and the data.
READ_WANDB = """
import glob, json, struct
from wandb.proto import wandb_internal_pb2 as pb

data = open(glob.glob("FOLDER/../*.wandb")[0], "rb").read()
steps, place, whole = [], 7, b""
while place + 7 <= len(data):
    if 32768 - place % 32768 < 7:
        place += 32768 - place % 32768
        continue
    _, length, kind = struct.unpack_from("<IHB", data, place)
    whole += data[place + 7 : place + 7 + length]
    place += 7 + length
    if kind in (1, 4):
        record, whole = pb.Record.FromString(whole), b""
        if record.WhichOneof("record_type") == "history":
            steps.append(record.history.step.num)
print(json.dumps(steps))
"""


def attempt(number: int, script: str, outputs: Path, *, rank: int = 0, **variables: str) -> str:
    """Run a script as the command of an attempt, which may end with 9 as if it was killed; returns what it printed."""
    identity = WorkerIdentity(
        job_id="job_1", attempt_id=f"att_{number}", attempt=number, generation=1, rank=rank, world_size=2,
        local_rank=0, local_world_size=1, node_rank=rank, num_nodes=2, master_addr="127.0.0.1", master_port=1,
    )  # fmt: skip
    base = {"PATH": os.environ["PATH"], "HOME": str(outputs.parent), **variables}
    own = {"REMORA_JOB_ID": "job_1", "REMORA_ATTEMPT": str(number), "REMORA_OUTPUTS_DIR": str(outputs)}
    if number > 1:
        own["REMORA_RESUME_STEP"] = "6"
    environment = {**base, **own}
    outputs.mkdir(exist_ok=True)
    work = outputs.parent / f"work-{outputs.name}"
    work.mkdir(exist_ok=True)
    done = subprocess.run(
        [trackers_python(), "-c", script, *map(str, STEPS[number])],
        cwd=work, capture_output=True, text=True, timeout=120,
        env={**environment, **tracker_variables(environment, identity, outputs, is_joining=False)},
    )  # fmt: skip
    assert (done.returncode, done.stderr[-6000:] if done.returncode == 1 else "") in [(0, ""), (9, "")]
    return done.stdout


def moved(outputs: Path) -> Path:
    """The outputs as the next worker group finds them: the same files in another folder, and no empty folders."""
    others = outputs.parent / "others"
    for file in [path for path in outputs.rglob("*") if path.is_file()]:
        target = others / file.relative_to(outputs)
        target.parent.mkdir(parents=True, exist_ok=True)
        file.rename(target)
    shutil.rmtree(outputs)
    return others


def test_mlflow_has_one_run_with_every_step_once(tmp_path: Path) -> None:
    attempt(1, MLFLOW, tmp_path / "outputs")
    outputs = moved(tmp_path / "outputs")
    attempt(2, MLFLOW, outputs)
    uri = (outputs / "mlruns" / "job").as_uri()
    [run] = json.loads(attempt(2, READ_MLFLOW, outputs, MLFLOW_TRACKING_URI=uri, MLFLOW_ALLOW_FILE_STORE="1"))
    assert run["name"] == "digits"
    assert (run["tags"]["remora.job"], run["tags"]["remora.attempt"]) == ("job_1", "2")
    assert run["status"] == "FINISHED"
    every = list(range(1, 16))
    assert run["steps"] == {"loss": every, "rate": every, "noise": every, "final": [0, 0], "later": [3]}
    assert run["metrics"]["noise"] == 7.0
    assert run["metrics"]["final"] == 15.0
    assert sorted(run["artifacts"]) == ["from-1/note.txt", "from-7/note.txt"]
    assert run["note"] == "to 10"


def test_tensorboard_shows_the_steps_that_were_done_again_and_not_those_they_replace(tmp_path: Path) -> None:
    attempt(1, TENSORBOARD, tmp_path / "outputs")
    outputs = moved(tmp_path / "outputs")
    attempt(2, TENSORBOARD, outputs)
    shown = json.loads(attempt(2, READ_TENSORBOARD, outputs))
    expected = {step: 1 / step + (1 if step <= 6 else 7) for step in range(1, 16)}
    assert shown == [[step, pytest.approx(value)] for step, value in expected.items()]


def test_wandb_takes_the_run_of_the_job_and_leaves_out_a_step_that_is_not_greater(tmp_path: Path) -> None:
    outputs = tmp_path / "outputs"
    runs = [json.loads(last_line(attempt(number, WANDB, outputs, WANDB_MODE="offline"))) for number in (1, 2)]
    assert [(run["id"], run["group"], run["resume"]) for run in runs] == [("job_1", "job_1", "allow")] * 2
    assert all(Path(run["folder"]).is_relative_to(outputs / "wandb") for run in runs)
    other = json.loads(last_line(attempt(1, WANDB, outputs, rank=1, WANDB_MODE="offline")))
    assert other["id"] != "job_1"
    assert other["group"] == "job_1"
    assert [steps_in(run["folder"], outputs) for run in runs] == [[*range(1, 11)], [*range(7, 16)]]


def last_line(text: str) -> str:
    return text.strip().splitlines()[-1]


def steps_in(folder: str, outputs: Path) -> Any:
    """The steps in W&B's own file of a run."""
    return json.loads(attempt(1, READ_WANDB.replace("FOLDER", folder), outputs))
