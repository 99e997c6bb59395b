"""Owners of jobs: the API and the controller on one database, with fakes for all that runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from fastapi.testclient import TestClient

from remora.states import JobState
from remora.views import Job
from service.api.app import create_app
from service.queue.rows import JobRow
from service.settings import Settings
from service.store import job_history
from service.store.database import Database
from tests.service_fakes import FakeDriver, World

SPEC = {"command": "python train.py"}


class Owner:
    """Submits jobs over HTTP to a service whose nodes and drivers are fakes."""

    def __init__(self, world: World, client: TestClient) -> None:
        self.world = world
        self.client = client

    def submit(self, **fields: Any) -> str:
        """Submit a job; its id."""
        answer = self.client.post("/v1/jobs", json={**SPEC, **fields})
        assert answer.status_code == 201, answer.text
        return str(Job.model_validate_json(answer.content).id)

    def refused(self, **fields: Any) -> str:
        """What is said about a job that is refused."""
        answer = self.client.post("/v1/jobs", json={**SPEC, **fields})
        assert answer.status_code == 422, answer.text
        return "\n".join(f"{one['field']}: {one['message']}" for one in answer.json()["errors"])

    def ask(self, job_id: str, verb: str, status: int = 202, **body: Any) -> dict[str, Any]:
        """Ask for something about a job; the answer's body."""
        answer = self.client.post(f"/v1/jobs/{job_id}/{verb}", **({"json": body} if body else {}))
        assert answer.status_code == status, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def job(self, job_id: str) -> JobRow:
        return self.world.job(job_id)

    def run_until(self, job_id: str, *states: JobState) -> JobRow:
        """Ticks pass until the job is in one of these states."""
        for _ in self.world.ticks_until(f"{job_id} is {states}"):
            if self.world.job(job_id).state in states:
                break
        return self.world.job(job_id)

    def train(self, job_id: str, workers: int = 1) -> FakeDriver:
        """The job starts, and its driver says that a worker group trains."""
        self.run_until(job_id, JobState.ADMITTED)
        driver = self.world.launcher.driver_of(job_id)
        addresses = [str(node.address) for node in self.world.nodes()][:workers]
        driver.report(
            "progress",
            at=self.world.now,
            state="running",
            world_size=workers,
            workers=dict.fromkeys(addresses, 1),
        )
        self.run_until(job_id, JobState.RUNNING)
        return driver

    def end(self, job_id: str, reason: str = "completed") -> None:
        """The job, which has started, ends; one that failed may not be tried again."""
        driver = self.world.launcher.driver_of(job_id)
        driver.report("ended", end_reason=reason, message=f"It ended: {reason}.", exit_code=None)
        self.world.tick()

    def events(self, job_id: str, *kinds: str) -> list[tuple[str, str]]:
        """Kinds and messages of the job's events, of these kinds or of all."""
        page = self.world.database.query(lambda c: job_history.page_of_events(c, job_id, 0, 1000))
        assert [event.seq for event in page] == list(range(1, len(page) + 1))
        return [(event.kind, event.message) for event in page if event.kind in kinds or not kinds]


@contextmanager
def owner_of(database: Database, url: str, home: Path, **settings: Any) -> Iterator[Owner]:
    """An owner, and a service with three nodes of one processor."""
    made = Settings(
        **{"home": home, "nodes": 3, "node_cpus": 1, "lease_s": 5.0, "database_url": url, **settings}
    )
    world = World(database, made)
    app = create_app(made)
    with TestClient(app, base_url="http://127.0.0.1") as client:
        app.state.remora = replace(app.state.remora, clock=lambda: world.now)
        yield Owner(world, client)
