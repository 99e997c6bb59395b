"""Jobs that get another number of workers, on SQLite and on PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from remora.states import JobState
from service.store.database import Database
from tests.contracts.service.owners import Owner, owner_of
from tests.statements import statements

pytestmark = pytest.mark.postgresql_in_soak


@pytest.fixture
def owner(database: Database, database_url: str, tmp_path: Path) -> Iterator[Owner]:
    with owner_of(database, database_url, tmp_path) as made:
        yield made


def test_a_job_that_waits_starts_with_the_new_number(owner: Owner) -> None:
    job_id = owner.submit(workers=9)
    owner.world.tick(8)
    assert owner.job(job_id).state is JobState.QUEUED
    answer = owner.ask(job_id, "resize", min=1, max=3)
    assert answer["spec"]["workers"] == {"min": 1, "max": 3, "multiple_of": 1}
    owner.run_until(job_id, JobState.ADMITTED)
    sizes = owner.world.launcher.driver_of(job_id).plan.sizes
    assert (sizes.min, sizes.max) == (1, 3)
    assert ("job.resized", "its owner gave it 1 to 3 workers") in owner.events(job_id)


def test_the_driver_of_a_job_that_runs_learns_of_it_once(owner: Owner) -> None:
    job_id = owner.submit(workers={"min": 1, "max": 2})
    driver = owner.train(job_id, workers=2)
    owner.ask(job_id, "resize", max=3)
    owner.world.tick(5)
    assert (driver.plan.sizes.min, driver.plan.sizes.max, len(driver.orders)) == (1, 3, 1)
    (attempt,) = owner.world.attempts(job_id)
    assert attempt.resized_at == owner.job(job_id).resized_at == driver.orders[0]
    assert attempt.short_since is not None, "it waits for a third worker from now on"
    owner.ask(job_id, "resize", max=2)
    owner.world.tick(2)
    assert (driver.plan.sizes.max, len(driver.orders)) == (2, 2)
    assert driver.orders == sorted(driver.orders)
    assert owner.world.attempts(job_id)[0].short_since is None
    version = owner.job(job_id).version
    assert owner.ask(job_id, "resize", max=2)["version"] == version


def test_the_batch_that_its_workers_made_is_that_of_later_attempts(owner: Owner) -> None:
    job_id = owner.submit(workers={"min": 1, "max": 3}, backend="deepspeed")
    driver = owner.train(job_id, workers=2)
    assert owner.world.attempts(job_id)[0].short_since is not None
    driver.report("progress", at=owner.world.now, global_batch=8)
    driver.report("progress", at=owner.world.now, global_batch=2**40)
    owner.world.tick()
    job = owner.job(job_id)
    assert job.spec["elastic"]["global_batch"] == 8
    assert (job.max_workers, job.facts.sizes.in_words()) == (2, "1 or 2")
    assert owner.world.attempts(job_id)[0].short_since is None, "a third worker could not train"
    said = owner.client.post(f"/v1/jobs/{job_id}/resize", json={"min": 3, "max": 3})
    assert said.status_code == 422
    assert "3 workers cannot divide 8 into equal parts" in said.text
    owner.end(job_id, "node_lost")
    owner.run_until(job_id, JobState.ADMITTED)
    plan = owner.world.launcher.driver_of(job_id).plan
    assert plan.attempt == 2
    assert plan.sizes.in_words() == "1 or 2"
    assert plan.elastic_variables["REMORA_GLOBAL_BATCH"] == "8"


def test_a_controller_that_dies_before_the_driver_has_it_sends_it_again(owner: Owner) -> None:
    job_id = owner.submit()
    driver = owner.train(job_id)
    owner.world.launcher.loses_sizes = True
    owner.ask(job_id, "resize", max=3)
    owner.world.tick(3)
    assert owner.world.attempts(job_id)[0].resized_at is None
    owner.world.launcher.loses_sizes = False
    owner.world.succeed()
    owner.world.tick()
    assert driver.plan.sizes.max == 3
    assert owner.world.attempts(job_id)[0].resized_at is not None


def test_one_that_dies_before_it_has_written_that_sends_it_once_more(
    owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    from service.loops import track

    job_id = owner.submit()
    driver = owner.train(job_id)
    owner.ask(job_id, "resize", max=3)

    class Killed(BaseException):
        """The process dies here."""

    def die(*rest: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(track, "_sizes_taken", die)
        with pytest.raises(Killed):
            owner.world.tick()
    owner.world.succeed()
    owner.world.tick()
    assert len(driver.orders) == 2
    assert driver.orders[0] == driver.orders[1], "the driver can see that it is the same"


def test_a_driver_that_cannot_be_reached_is_asked_again(owner: Owner) -> None:
    job_id = owner.submit()
    driver = owner.train(job_id)
    owner.world.launcher.failing["resize"] = ConnectionError("the head does not answer")
    owner.ask(job_id, "resize", max=3)
    owner.world.tick(2)
    assert owner.job(job_id).state is JobState.RUNNING
    del owner.world.launcher.failing["resize"]
    owner.world.tick()
    assert driver.plan.sizes.max == 3


def test_what_the_specification_excludes_is_refused_with_all_problems(owner: Owner) -> None:
    job_id = owner.submit(workers={"min": 1, "max": 2}, elastic={"global_batch": 8, "shards": 4})
    for body, code, said in (
        ({"max": 5}, "invalid_spec", "workers.max is 5 and elastic.shards is 4; every worker needs a shard"),
        ({"min": 3}, "invalid_spec", "min is 3 and max is 2; min must not be above max"),
        ({"max": "x"}, "invalid_spec", "workers.max: 'x' given, expected a whole number from 1 to 4096"),
        ({"most": 3}, "invalid_change", 'give "min", "max" or both'),
        ({}, "invalid_change", 'give "min", "max" or both'),
    ):
        answer = owner.client.post(f"/v1/jobs/{job_id}/resize", json=body)
        assert (answer.status_code, answer.json()["code"]) == (422, code), answer.text
        assert said in answer.json()["detail"]
    owner.ask(job_id, "cancel")
    assert "it cannot be resized" in owner.ask(job_id, "resize", 409, max=1)["detail"]


def test_a_tick_sends_as_many_statements_for_ten_times_the_jobs(
    database: Database, database_url: str, tmp_path: Path
) -> None:
    counts = []
    with owner_of(database, database_url, tmp_path, node_cpus=10) as owner:
        for number in (2, 2, 20):
            job_ids = [owner.submit() for _ in range(number)]
            for job_id in job_ids:
                owner.train(job_id)
                owner.ask(job_id, "resize", max=2)
            with statements(database) as sent:
                owner.world.tick()
            assert all(one.resized_at for job_id in job_ids for one in owner.world.attempts(job_id))
            counts.append(len(sent))
            for job_id in job_ids:
                owner.ask(job_id, "cancel")
            owner.world.tick(3)
    assert counts[1] == counts[2]
