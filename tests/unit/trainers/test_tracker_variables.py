"""What MLflow and W&B find in the environment of a worker, and what they do not."""

from __future__ import annotations

import json
from pathlib import Path

from trainers.supervisor.tracker_variables import tracker_variables
from trainers.worker_identity import WorkerIdentity

OUTPUTS = Path("/node/outputs")


def variables(*, rank: int = 0, is_joining: bool = False, **environment: str) -> dict[str, str]:
    """Of a rank in the second worker group of attempt 3."""
    identity = WorkerIdentity(
        job_id="job_1", attempt_id="att_3", attempt=3, generation=2, rank=rank, world_size=2, local_rank=0,
        local_world_size=1, node_rank=rank, num_nodes=2, master_addr="10.0.0.4", master_port=1,
    )  # fmt: skip
    return tracker_variables(environment, identity, OUTPUTS, is_joining=is_joining)


def test_rank_0_has_the_run_of_the_job() -> None:
    assert variables() == {
        "MLFLOW_RUN_CONTEXT": json.dumps({"remora.job": "job_1", "remora.attempt": "3"}),
        "MLFLOW_TRACKING_URI": "file:///node/outputs/mlruns/3-2",
        "MLFLOW_ALLOW_FILE_STORE": "true",
        "WANDB_RUN_GROUP": "job_1",
        "WANDB_RUN_ID": "job_1",
        "WANDB_RESUME": "allow",
    }


def test_no_two_processes_write_one_run_of_wandb() -> None:
    for others in (variables(rank=1), variables(is_joining=True)):
        assert others["WANDB_RUN_GROUP"] == "job_1"
        assert not {"WANDB_RUN_ID", "WANDB_RESUME"} & set(others)


def test_what_the_job_or_the_node_says_stays() -> None:
    own = {
        "MLFLOW_RUN_CONTEXT": "{}", "MLFLOW_TRACKING_URI": "https://example.org", "WANDB_RUN_GROUP": "mine",
        "WANDB_RUN_ID": "mine", "WANDB_RESUME": "must", "WANDB_MODE": "offline", "WANDB_DIR": "/else",
    }  # fmt: skip
    assert variables(**own) == {}
    assert "MLFLOW_ALLOW_FILE_STORE" not in variables(MLFLOW_TRACKING_URI="https://example.org")


def test_offline_runs_of_wandb_lie_in_the_outputs() -> None:
    assert variables(WANDB_MODE="offline")["WANDB_DIR"] == "/node/outputs"
    assert "WANDB_DIR" not in variables(WANDB_MODE="online")
