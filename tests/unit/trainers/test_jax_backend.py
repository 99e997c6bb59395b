"""The variables from which JAX takes its coordinator, its processes and its GPUs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.attempt_plans import plan_of
from trainers.backends import backend_of
from trainers.backends.backend import LaunchContext
from trainers.worker_identity import WorkerIdentity

HERE = Path()


def variables(
    *, local_rank: int = 1, gpus: float = 0.0, environment: dict[str, str] | None = None
) -> dict[str, str]:
    """Of rank 3 of 4 on the second of two nodes."""
    plan = plan_of(
        job_id="job_1", attempt_id="att_1", attempt=1, command=["python", "train.py"], bundle=None,
        storage_url="", checkpoint_url="", backend="jax", min_workers=1, max_workers=4,
        resources={"CPU": 1.0, "GPU": gpus},
    )  # fmt: skip
    identity = WorkerIdentity(
        job_id="job_1", attempt_id="att_1", attempt=1, generation=2, rank=3, world_size=4, local_rank=local_rank,
        local_world_size=2, node_rank=1, num_nodes=2, master_addr="10.0.0.4", master_port=23456,
    )  # fmt: skip
    launch = LaunchContext(
        plan=plan, identity=identity, code=HERE, shared=HERE, exchange=HERE, scratch=HERE, outputs=HERE, resume=None,
        manifest=None, environment=environment or {},
    )  # fmt: skip
    return backend_of("jax").variables(launch)


def test_the_coordinator_is_at_the_rendezvous_and_the_rest_is_what_slurm_would_say() -> None:
    assert variables() == {
        "JAX_COORDINATOR_ADDRESS": "10.0.0.4:23456",
        "JAX_NUM_PROCESSES": "4",
        "JAX_PROCESS_ID": "3",
        "SLURM_JOB_ID": "23456",
        "SLURM_STEP_NODELIST": "10.0.0.4",
        "SLURM_STEP_NUM_NODES": "2",
        "SLURM_NTASKS": "4",
        "SLURM_PROCID": "3",
        "SLURM_LOCALID": "1",
    }


@pytest.mark.parametrize(
    ("local_rank", "gpus", "own"),
    [(0, 1.0, "0"), (1, 1.0, "1"), (0, 4.0, "0,1,2,3"), (1, 4.0, "4,5,6,7"), (1, 0.5, "0"), (2, 0.5, "1")],
)
def test_a_worker_has_its_part_of_the_gpus_that_the_node_gave_the_worker_group(
    local_rank: int, gpus: float, own: str
) -> None:
    assert variables(local_rank=local_rank, gpus=gpus)["JAX_LOCAL_DEVICE_IDS"] == own


def test_devices_that_the_job_names_are_left_alone() -> None:
    assert "JAX_LOCAL_DEVICE_IDS" not in variables(gpus=1.0, environment={"JAX_LOCAL_DEVICE_IDS": "0"})
