"""The variables of a DeepSpeed job's command: the hook, the device, and what it may use to convert a checkpoint."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.attempt_plans import plan_of
from trainers.backends import backend_of
from trainers.backends.backend import LaunchContext
from trainers.worker_identity import WorkerIdentity

HERE = Path()


def variables(*, least: int = 1, cpus: float = 1.0, gpus: float = 0.0) -> dict[str, str]:
    """Of a worker on a node with two of four."""
    plan = plan_of(
        job_id="job_1", attempt_id="att_1", attempt=1, command=["python", "train.py"], bundle=None,
        storage_url="", checkpoint_url="", backend="deepspeed", min_workers=least, max_workers=4,
        resources={"CPU": cpus, "GPU": gpus},
    )  # fmt: skip
    identity = WorkerIdentity(
        job_id="job_1", attempt_id="att_1", attempt=1, generation=2, rank=3, world_size=4, local_rank=1,
        local_world_size=2, node_rank=1, num_nodes=2, master_addr="10.0.0.4", master_port=23456,
    )  # fmt: skip
    launch = LaunchContext(
        plan=plan, identity=identity, code=HERE, shared=HERE, exchange=HERE, scratch=HERE, outputs=HERE, resume=None,
        manifest=None, environment={"PYTHONPATH": "/own"},
    )  # fmt: skip
    return backend_of("deepspeed").variables(launch)


@pytest.mark.parametrize(("cpus", "processes"), [(8.0, "16"), (1.0, "2"), (0.25, "1")])
def test_a_checkpoint_is_converted_with_the_processors_of_all_workers_of_the_node(
    cpus: float, processes: str
) -> None:
    assert variables(cpus=cpus)["REMORA_CONVERSION_PROCESSES"] == processes
    # A job of one size may be given another one by its owner.
    assert variables(cpus=cpus, least=4)["REMORA_CONVERSION_PROCESSES"] == processes


def test_the_hook_stands_before_the_modules_of_the_script() -> None:
    site, own = variables()["PYTHONPATH"].split(os.pathsep)
    assert (Path(site) / "sitecustomize.py").is_file()
    assert own == "/own"


def test_what_depends_on_the_job() -> None:
    assert variables()["DS_ACCELERATOR"] == "cpu"
    assert "DS_ACCELERATOR" not in variables(gpus=1.0)
    assert variables()["REMORA_RESIZABLE"] == "1"
    assert "REMORA_RESIZABLE" not in variables(least=4)
