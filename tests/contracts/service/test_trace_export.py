"""What a service did, exported over HTTP and by the command line, and replayed."""

from __future__ import annotations

from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from cluster.policies.policies import Policies
from cluster.simulator.assumptions import Assumptions
from cluster.simulator.report import report_of
from cluster.traces.lines import read_lines
from remora.states import JobState, NodeState
from remora.views import RecordedTrace
from service.api.app import create_app
from service.settings import Settings
from service.store.database import Database
from service.what_if.answer import replayed
from tests.service_fakes import World

pytestmark = pytest.mark.postgresql_in_soak


@pytest.fixture
def settings(database_url: str, tmp_path: Path) -> Settings:
    return Settings(home=tmp_path / "home", database_url=database_url, nodes=2, node_cpus=1, lease_s=5.0)


def train(world: World, workers: int) -> str:
    job_id = world.submit(max_workers=workers)
    for _ in world.ticks_until("it starts"):
        if world.job(job_id).state is JobState.ADMITTED:
            break
    driver = world.launcher.driver_of(job_id)
    driver.report("progress", at=world.now, state="running", world_size=workers, total_steps=10)
    driver.report("ended", at=world.now + 60.0, end_reason="completed", message="", exit_code=0)
    world.now += 60.0
    world.tick(2)
    assert world.job(job_id).state is JobState.SUCCEEDED
    return job_id


def test_jobs_of_a_service_are_replayed_under_a_policy(database: Database, settings: Settings) -> None:
    world = World(database, settings)
    for _ in world.ticks_until("two ready nodes"):
        if [node.state for node in world.nodes()] == [NodeState.READY] * 2:
            break
    first, second = train(world, 1), train(world, 2)
    with TestClient(create_app(settings), base_url="http://127.0.0.1") as client:
        answer = client.get("/v1/trace")
        exported = RecordedTrace.model_validate_json(answer.content)
        later = client.get("/v1/trace", params={"since": world.now})
        refused = client.get("/v1/trace", params={"since": -1})
    assert (answer.status_code, exported.jobs, exported.left_out) == (200, 2, 0)
    trace = read_lines(exported.text)
    assert [(job.id, job.work_s) for job in trace.jobs] == [
        (first, pytest.approx(60.0, abs=1.0)),
        (second, pytest.approx(120.0, abs=1.0)),
    ]
    policy = {"sizes": ["local"], "capacity": "on-demand", "max_nodes": 2}
    report = report_of(replayed(trace, Policies.model_validate({"pools": {"local": policy}}), Assumptions()))
    assert report.succeeded == 2
    assert RecordedTrace.model_validate_json(later.content).jobs == 0
    assert refused.status_code == 422
