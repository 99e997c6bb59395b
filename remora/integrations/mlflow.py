"""One run of MLflow for a job: every attempt resumes it, and a step that is done again is logged once.

    from remora.integrations.mlflow import start_run

    if training.world().rank == 0:
        start_run(run_name="digits")
        mlflow.log_metric("loss", loss, step=step)

Needs mlflow or mlflow-skinny.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import mlflow
from mlflow import ActiveRun, MlflowClient
from mlflow.entities import Metric
from mlflow.utils.async_logging.run_operations import RunOperations

__all__ = ["start_run"]

_JOB, _ATTEMPT = "remora.job", "remora.attempt"
#: Name of the folder of a job's run, beside those that Remora names after worker groups.
_FOLDER = "job"
#: Folders without which MLflow does not find a run; outputs have no empty ones.
_OF_RUN = ("artifacts", "metrics", "params")
#: Newest step of each metric, by run, of runs that were resumed.
_logged: dict[str, dict[str, int]] = {}


def start_run(
    *, experiment_id: str | None = None, tags: dict[str, Any] | None = None, **options: Any
) -> ActiveRun:
    """Resume the job's run, or begin it: `mlflow.start_run` with these options; call it on one rank.

    The run has the job's id in the tag `remora.job` and the newest attempt in `remora.attempt`.  From then on metrics
    of it whose step is not above the newest one of their name are left out, as W&B does; metrics without a step are
    always logged.  Where the tracking server is the job's own folder, this is one folder for all attempts.  Outside
    Remora it is `mlflow.start_run`.  Raises what MLflow raises, and ValueError for `run_id`.
    """
    if "run_id" in options:
        raise ValueError("start_run finds the run of the job: leave run_id out, or call mlflow.start_run")
    job_id = os.environ.get("REMORA_JOB_ID")
    if job_id is None:
        return mlflow.start_run(experiment_id=experiment_id, tags=tags, **options)
    is_in_outputs = _use_one_folder()
    found = mlflow.search_runs(
        experiment_ids=None if experiment_id is None else [experiment_id],
        filter_string=f"tags.`{_JOB}` = '{job_id}'",
        order_by=["attributes.start_time ASC"],
        max_results=1,
        output_format="list",
    )
    if not found:
        run = mlflow.start_run(experiment_id=experiment_id, tags={_JOB: job_id, **(tags or {})}, **options)
    else:
        _leave_out_repeated(found[0])
        run = mlflow.start_run(run_id=found[0].info.run_id, **options)
    mlflow.set_tag(_ATTEMPT, os.environ.get("REMORA_ATTEMPT", "1"))
    if is_in_outputs:
        # Outputs have no empty folders, and MLflow does not show a run without one of these two.
        mlflow.log_param(_JOB, job_id)
        mlflow.log_text(job_id, f"{_JOB}.txt")
    return run


def _use_one_folder() -> bool:
    """Where runs go to the outputs folder, let them go to one that is the same in every attempt, and return True."""
    outputs = os.environ.get("REMORA_OUTPUTS_DIR")
    if outputs is None or not mlflow.get_tracking_uri().startswith(f"{Path(outputs, 'mlruns').as_uri()}/"):
        return False
    folder = Path(outputs, "mlruns", _FOLDER)
    # MLflow keeps absolute paths, and the outputs folder has another one in each worker group.
    for file in sorted(folder.glob("*/meta.yaml")):
        _replace_line(file, "artifact_location", file.parent.as_uri())
    for file in sorted(folder.glob("*/*/meta.yaml")):
        _replace_line(file, "artifact_uri", (file.parent / "artifacts").as_uri())
        for name in _OF_RUN:
            (file.parent / name).mkdir(exist_ok=True)
    mlflow.set_tracking_uri(folder.as_uri())
    return True


def _replace_line(file: Path, key: str, value: str) -> None:
    lines = file.read_text().splitlines()
    written = [f"{key}: {value}" if line.startswith(f"{key}:") else line for line in lines]
    if written != lines:
        draft = file.with_suffix(".tmp")
        draft.write_text("\n".join(written) + "\n")
        draft.replace(file)


def _leave_out_repeated(run: Any) -> None:
    """From now on log nothing of this run that it has."""
    if not _logged:
        MlflowClient.log_metric = _one(MlflowClient.log_metric)
        MlflowClient.log_batch = _several(MlflowClient.log_batch)
    _logged[run.info.run_id] = {one.key: int(one.step) for one in run.to_proto().data.metrics}


def _is_new(run_id: str, key: str, step: int) -> bool:
    newest = _logged.get(run_id, {}).get(key, 0)
    # Step 0 is also that of a metric without one.
    return newest == 0 or step > newest


def _one(log: Callable[..., Any]) -> Callable[..., Any]:
    called = inspect.signature(log)

    @functools.wraps(log)
    def log_metric(*arguments: Any, **named: Any) -> Any:
        given = called.bind(*arguments, **named).arguments
        if _is_new(given["run_id"], given["key"], int(given.get("step") or 0)):
            return log(*arguments, **named)
        return None if given.get("synchronous") is not False else RunOperations([])

    return log_metric


def _several(log: Callable[..., Any]) -> Callable[..., Any]:
    called = inspect.signature(log)

    @functools.wraps(log)
    def log_batch(*arguments: Any, **named: Any) -> Any:
        bound = called.bind(*arguments, **named)
        run_id, metrics = bound.arguments["run_id"], bound.arguments.get("metrics", ())
        bound.arguments["metrics"] = _new(run_id, metrics)
        return log(*bound.args, **bound.kwargs)

    return log_batch


def _new(run_id: str, metrics: Iterable[Metric]) -> list[Metric]:
    return [one for one in metrics if _is_new(run_id, one.key, int(one.step))]
