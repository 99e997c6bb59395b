"""What is said of projects beside what is kept of them: their shares, and the GPUs of their jobs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from service.queue import lifecycle
from service.store import jobs
from service.store.database import Database
from service.store.ids import new_id
from service.store.tables import attempts
from tests.contracts.service.two_projects import Service, service_of
from tests.statements import statements

pytestmark = pytest.mark.postgresql_in_soak

DOCUMENT = """
pools:
  local: {sizes: [local], capacity: on-demand, max_nodes: 4}
projects:
  red: {share: 2, jobs: 9}
"""


@pytest.fixture
def service(database: Database, database_url: str, tmp_path: Path) -> Iterator[Service]:
    with service_of(database, database_url, tmp_path / "home") as opened:
        yield opened


def run(service: Service, project: str, gpus: int, world_size: int) -> None:
    """A job of the project runs with this number of workers, each with `gpus`."""
    fields = {"resources": {"gpus": gpus, "cpus": 1}, "workers": {"min": 1, "max": 4}}
    job_id = service.submit(project, **fields)

    def work(connection: sa.Connection) -> None:
        job = jobs.lock_job(connection, job_id)
        assert job is not None
        jobs.save(connection, job, lifecycle.start_attempt(job, new_id("att", 1000.0), 1000.0))
        ran = sa.update(attempts).where(attempts.c.job_id == job_id).values(world_size=world_size)
        connection.execute(ran)

    service.database.transact(work)


def projects(service: Service, who: str | None = None) -> dict[str, dict[str, Any]]:
    answer = service.ask(who or service.operator, "GET", "/v1/projects", params={"limit": 1000})
    assert answer.status_code == 200, answer.text
    return {one["name"]: one for one in answer.json()["items"]}


def test_gpus_are_counted_as_for_quotas(service: Service) -> None:
    service.made("POST", "/v1/policies", json={"document": DOCUMENT, "based_on": 0})
    run(service, "red", 2, 3)
    run(service, "red", 1, 0)  # about to take all that it may
    service.submit("red")
    run(service, "blue", 1, 2)
    found = projects(service)
    assert (found["red"]["share"], found["blue"]["share"]) == (2.0, 1.0)
    assert found["red"]["uses"]["gpus"] == {"used": 10, "limit": None}
    assert found["red"]["uses"]["jobs"] == {"used": 3, "limit": 9}
    assert found["blue"]["uses"]["gpus"] == {"used": 2, "limit": None}
    # One CPU of each worker, and four nodes: the red jobs hold three of them and their smallest group of one.
    whole = 4.0 * service.settings.node_cpus
    assert found["red"]["share_held"] == pytest.approx(4.0 / whole)
    assert found["blue"]["share_held"] == pytest.approx(2.0 / whole)
    service.made("POST", "/v1/policies", json={"document": DOCUMENT.replace("share: 2, ", ""), "based_on": 1})
    assert projects(service)["red"]["share_held"] is None
    assert list(projects(service, service.token({"blue": "viewer"}))) == ["blue"]


def test_statements_do_not_grow_with_the_projects(service: Service) -> None:
    sent: list[int] = []
    for count in (3, 30):
        for number in range(len(projects(service)), count):
            run(service, f"of-{number}", 1, 1)
        with statements(service.client.app.state.remora.database) as found:  # type: ignore[attr-defined]
            assert len(projects(service)) == count
        sent.append(len(found))
    assert sent[0] == sent[1] > 0
