"""The environment variables by which libraries that track experiments find the run of their job (pure).

Sources: https://docs.wandb.ai/guides/track/environment-variables and MLflow's `mlflow.environment_variables`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from trainers.worker_identity import WorkerIdentity


def tracker_variables(
    environment: Mapping[str, str], identity: WorkerIdentity, outputs: Path, *, is_joining: bool
) -> dict[str, str]:
    """What is added to a command's environment, which keeps every variable that it has.

    `is_joining`: the worker joins a group in place, and its rank is not yet known.
    """
    added = _of_mlflow(environment, identity, outputs) | _of_wandb(environment, identity, outputs, is_joining)
    return {name: value for name, value in added.items() if name not in environment}


def _of_mlflow(environment: Mapping[str, str], identity: WorkerIdentity, outputs: Path) -> dict[str, str]:
    tags = {"remora.job": identity.job_id, "remora.attempt": str(identity.attempt)}
    variables = {"MLFLOW_RUN_CONTEXT": json.dumps(tags)}
    if "MLFLOW_TRACKING_URI" not in environment:
        # One for each worker group: MLflow writes absolute paths into it.
        group = f"{identity.attempt}-{identity.generation}"
        variables["MLFLOW_TRACKING_URI"] = (outputs / "mlruns" / group).as_uri()
        # Else MLflow 3.17 refuses a folder; a database would leave the artifacts outside of it.
        variables["MLFLOW_ALLOW_FILE_STORE"] = "true"
    return variables


def _of_wandb(
    environment: Mapping[str, str], identity: WorkerIdentity, outputs: Path, is_joining: bool
) -> dict[str, str]:
    variables = {"WANDB_RUN_GROUP": identity.job_id}
    if identity.rank == 0 and not is_joining:
        # A run is written by one process at a time, so that other ranks which log have runs of their own.
        variables |= {"WANDB_RUN_ID": identity.job_id, "WANDB_RESUME": "allow"}
    if environment.get("WANDB_MODE") == "offline":
        # Else they lie in the working folder, which is gone with the worker group.
        variables["WANDB_DIR"] = str(outputs)
    return variables
