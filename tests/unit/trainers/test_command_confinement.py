"""What a job's log says of the view that its commands have."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from tests.attempt_plans import plan_of
from trainers.backends.backend import LaunchContext
from trainers.isolation.confined import confined_job
from trainers.supervisor.command_confinement import CommandConfinement
from trainers.supervisor.preparation import Preparation
from trainers.worker_identity import WorkerIdentity


@pytest.mark.parametrize(("has_namespaces", "rank", "lines"), [(True, 0, 1), (True, 1, 0), (False, 0, 0)])
def test_the_log_says_once_that_a_command_in_namespaces_does_not_see_the_folders_of_the_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_namespaces: bool, rank: int, lines: int
) -> None:
    monkeypatch.setattr("trainers.isolation.confined.decide", lambda *_: "namespaces")
    plan = plan_of(
        job_id="job_1", attempt_id="att_1", attempt=1, command=["python", "train.py"], bundle=None,
        storage_url="", checkpoint_url="", backend="plain", min_workers=1, max_workers=2, resources={"CPU": 1.0},
    )  # fmt: skip
    identity = WorkerIdentity(
        job_id="job_1", attempt_id="att_1", attempt=1, generation=1, rank=rank, world_size=2, local_rank=rank,
        local_world_size=2, node_rank=0, num_nodes=1, master_addr="10.0.0.4", master_port=23456,
    )  # fmt: skip
    launch = LaunchContext(
        plan=plan, identity=identity, code=tmp_path, shared=tmp_path, exchange=tmp_path, scratch=tmp_path,
        outputs=tmp_path, resume=None, manifest=None, environment={},
    )  # fmt: skip
    said: list[str] = []
    with confined_job("namespaces", "att_1", tmp_path, tmp_path) as job:
        assert job is not None
        if not has_namespaces:
            job = dataclasses.replace(job, has_namespaces=False)
        CommandConfinement(
            plan=plan,
            job=job,
            group=tmp_path,
            prepared=Preparation(),
            snapshots=None,
            secrets=None,
            python=None,
        ).apply(launch, said.append)
    assert len(said) == lines
    assert all("/data" in line and "inputs" in line for line in said)
