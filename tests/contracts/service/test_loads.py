"""How busy workers are: what drivers report becomes some rows for each, and is listed for jobs and for nodes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from remora.states import JobState
from service.store.database import Database
from service.store.loads import PLACE_S, PLACES, RECENT_S
from service.store.tables import loads
from tests.contracts.service.owners import Owner, owner_of
from tests.service_fakes import FakeDriver

pytestmark = pytest.mark.postgresql_in_soak


@pytest.fixture
def owner(database: Database, database_url: str, tmp_path: Path) -> Iterator[Owner]:
    with owner_of(database, database_url, tmp_path) as made:
        yield made


def say(owner: Owner, driver: FakeDriver, **cpu: float) -> None:
    """The driver of a job whose worker is on the first node reports its load."""
    at = owner.world.now
    address = str(owner.world.nodes()[0].address)
    load = {"at": at, "address": address, "cpu": 1.0, "gpu": None, "gpus": 0, **cpu}
    driver.report("progress", at=at, loads={0: load})
    owner.world.tick()


def listed(owner: Owner, path: str, **query: Any) -> list[dict[str, Any]]:
    answer = owner.client.get(path, params=query)
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["items"]
    return found


def rows(owner: Owner) -> int:
    count = sa.select(sa.func.count()).select_from(loads)
    return int(owner.world.database.query(lambda connection: connection.execute(count).scalar_one()))


def test_the_load_of_a_worker_is_listed_with_the_newest_value_last(owner: Owner) -> None:
    job_id = owner.submit()
    driver = owner.train(job_id)
    say(owner, driver, cpu=0.5)
    owner.world.now += PLACE_S
    say(owner, driver, cpu=0.75, gpu=0.25, gpus=2)
    (worker,) = listed(owner, f"/v1/jobs/{job_id}/loads")
    assert (worker["rank"], worker["attempt"], worker["gpus"]) == (0, 1, 2)
    assert [(point["cpu"], point["gpu"]) for point in worker["points"]] == [(0.5, None), (0.75, 0.25)]
    (node,) = listed(owner, "/v1/loads")
    assert node["node_id"] == owner.world.nodes()[0].id
    assert (node["workers"], node["gpus"], node["points"]) == (1, 2, worker["points"])


def test_a_worker_has_some_rows_however_long_it_runs_and_old_ones_are_not_shown(owner: Owner) -> None:
    job_id = owner.submit()
    driver = owner.train(job_id)
    for number in range(2 * PLACES):
        owner.world.now += PLACE_S
        say(owner, driver, cpu=float(number))
    assert rows(owner) == PLACES
    (worker,) = listed(owner, f"/v1/jobs/{job_id}/loads")
    shown = [point["cpu"] for point in worker["points"]]
    assert shown == sorted(shown)
    assert shown[-1] == 2 * PLACES - 1
    owner.world.now += RECENT_S
    assert listed(owner, f"/v1/jobs/{job_id}/loads") == listed(owner, "/v1/loads") == []


def test_a_load_that_breaks_its_contract_is_refused_and_one_without_any_is_fine(owner: Owner) -> None:
    job_id = owner.submit()
    driver = owner.train(job_id)
    say(owner, driver, gpu=1.5)
    assert rows(owner) == 0
    assert "record.refused" in dict(owner.events(job_id))
    driver.report("progress", at=owner.world.now, step=3)
    owner.world.tick()
    assert owner.job(job_id).step == 3


def test_pages_of_loads_follow_each_other(owner: Owner) -> None:
    jobs = [owner.submit(), owner.submit()]
    drivers = [owner.train(job_id) for job_id in jobs]
    at, addresses = owner.world.now, [str(node.address) for node in owner.world.nodes()]
    for address in addresses[:2]:
        load = {"at": at, "address": address, "cpu": 1.0}
        drivers[0].report("progress", at=at, loads={addresses.index(address): load})
    owner.world.tick()
    first = owner.client.get(f"/v1/jobs/{jobs[0]}/loads", params={"limit": 1}).json()
    second = owner.client.get(
        f"/v1/jobs/{jobs[0]}/loads", params={"limit": 1, "cursor": first["next_cursor"]}
    ).json()
    assert [page["items"][0]["rank"] for page in (first, second)] == [0, 1]
    assert owner.client.get("/v1/loads", params={"cursor": "x"}).status_code == 422


def test_a_job_that_ended_has_no_load_and_one_that_is_deleted_no_rows(owner: Owner) -> None:
    job_id = owner.submit()
    driver = owner.train(job_id)
    say(owner, driver)
    owner.end(job_id)
    assert owner.job(job_id).state is JobState.SUCCEEDED
    assert listed(owner, f"/v1/jobs/{job_id}/loads") == []
    assert owner.client.delete(f"/v1/jobs/{job_id}").status_code == 202
    for _ in owner.world.ticks_until("its rows are gone"):
        if not rows(owner):
            break
