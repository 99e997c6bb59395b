"""Jobs that wait for the ends of others, on SQLite and on PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from remora.states import JobState
from service.store import dependencies, jobs
from service.store.database import Database
from service.store.ids import new_id
from tests.contracts.service.owners import Owner, owner_of
from tests.statements import statements


@pytest.fixture
def owner(database: Database, database_url: str, tmp_path: Path) -> Iterator[Owner]:
    with owner_of(database, database_url, tmp_path) as made:
        yield made


def test_a_job_waits_for_the_success_of_another_and_then_in_the_queue(owner: Owner) -> None:
    first = owner.submit(name="prepare")
    job_id = owner.submit(after=[first])
    job = owner.job(job_id)
    said = f"waits for the success of prepare ({first})"
    assert (job.state, job.reason, job.message) == (JobState.QUEUED, "waiting_for_jobs", said)
    owner.train(first)
    owner.world.tick(3)
    assert owner.job(job_id).version == job.version, "nothing is written while it waits"
    owner.end(first)
    owner.run_until(job_id, JobState.ADMITTED)
    assert owner.events(job_id, "job.queued", "job.waiting") == [
        ("job.queued", f"job train was accepted; it {said}"),
        ("job.waiting", "the jobs that it waited for have ended; waits to be looked at"),
    ]


@pytest.mark.parametrize(
    ("when", "end", "goes_on"),
    [
        ("success", "start_failed", False),
        ("failure", "start_failed", True),
        ("failure", "completed", False),
        ("any", "start_failed", True),
        ("any", "completed", True),
    ],
)
def test_it_says_which_end_it_waits_for(owner: Owner, when: str, end: str, goes_on: bool) -> None:
    first = owner.submit(name="prepare")
    job_id = owner.submit(after=[{"job": first, "when": when}])
    owner.train(first)
    owner.end(first, end)
    job = owner.run_until(job_id, JobState.ADMITTED, JobState.FAILED)
    assert (job.state is JobState.ADMITTED) is goes_on
    if not goes_on:
        ended_as = "succeeded" if end == "completed" else "failed"
        assert job.reason == "dependency_unmet"
        assert (
            job.message == f"it was to start after the {when} of prepare ({first}), which ended as {ended_as}"
        )
        assert owner.world.attempts(job_id) == []


def test_a_cancelled_job_ends_what_waits_for_its_success_and_so_on(owner: Owner) -> None:
    first = owner.submit(name="a")
    second = owner.submit(name="b", after=[first])
    third = owner.submit(name="c", after=[{"job": second, "when": "success"}])
    fourth = owner.submit(name="d", after=[{"job": second, "when": "failure"}, {"job": first, "when": "any"}])
    owner.ask(first, "cancel")
    assert owner.run_until(third, JobState.FAILED).reason == "dependency_unmet"
    assert (
        owner.job(second).message
        == f"it was to start after the success of a ({first}), which ended as cancelled"
    )
    owner.run_until(fourth, JobState.ADMITTED)


def test_of_several_jobs_it_says_which_ones_have_not_ended(owner: Owner) -> None:
    first, second = owner.submit(name="a"), owner.submit(name="b")
    job_id = owner.submit(after=[first, {"job": second, "when": "any"}])
    assert owner.job(job_id).message == f"waits for the success of a ({first}), the end of b ({second})"
    owner.train(first)
    owner.end(first)
    owner.world.tick()
    job = owner.job(job_id)
    assert (job.reason, job.message) == ("waiting_for_jobs", f"waits for the end of b ({second})")


def test_jobs_that_have_ended_are_known_at_submission(owner: Owner) -> None:
    good, bad = owner.submit(name="good"), owner.submit(name="bad")
    for job_id, end in ((good, "completed"), (bad, "start_failed")):
        owner.train(job_id)
        owner.end(job_id, end)
    job_id = owner.submit(after=[good])
    assert owner.job(job_id).reason == "waiting_for_turn"
    absent = new_id("job", 1000.0)
    assert owner.refused(after=[good, absent]) == f"after.1.job: there is no job {absent}"
    said = f"it was to start after the success of bad ({bad}), which ended as failed"
    assert owner.refused(after=[bad]) == f"after.0: {said}; leave it out, or write another `when`"


def test_the_time_of_the_wait_does_not_count(owner: Owner) -> None:
    first = owner.submit()
    job_id = owner.submit(after=[first], limits={"wait_time": "60s"}, resources={"cpus": 50})
    owner.train(first)
    owner.world.now += 3600.0
    owner.world.controller.holder.step(owner.world.now)
    owner.world.tick(3)
    assert owner.job(job_id).state is JobState.QUEUED
    owner.end(first)
    owner.world.tick(3)
    job = owner.job(job_id)
    assert (job.state, job.reason) == (JobState.QUEUED, "waiting_for_nodes")
    owner.world.now += 61.0
    owner.world.controller.holder.step(owner.world.now)
    assert owner.run_until(job_id, JobState.FAILED).reason == "wait_time_exceeded"


def test_a_controller_that_dies_between_the_end_and_what_follows_loses_nothing(
    owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = owner.submit()
    job_id = owner.submit(after=[first])
    owner.train(first)
    driver = owner.world.launcher.driver_of(first)
    driver.report("ended", end_reason="completed", message="done", exit_code=0)

    class Killed(BaseException):
        """The process dies here."""

    def die(*rest: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(dependencies, "forget", die)
        with pytest.raises(Killed):
            owner.world.tick()
    assert owner.job(first).state is JobState.SUCCEEDED
    assert owner.job(job_id).reason == "waiting_for_jobs", "the transaction was rolled back"
    owner.world.succeed()
    owner.run_until(job_id, JobState.ADMITTED)
    assert len(owner.events(job_id, "job.waiting")) == 1


def test_a_job_that_is_cancelled_waits_for_none(owner: Owner, database: Database) -> None:
    first = owner.submit()
    job_id = owner.submit(after=[first])
    owner.ask(job_id, "cancel")
    assert database.query(lambda c: dependencies.of_jobs(c, [job_id])) == {}
    owner.ask(first, "cancel")
    owner.world.tick(2)
    assert owner.job(job_id).state is JobState.CANCELLED


def test_jobs_that_wait_for_others_are_not_shown_to_a_plan(owner: Owner, database: Database) -> None:
    first = owner.submit()
    waiting = [owner.submit(after=[first]) for _ in range(3)]
    shown = [row.id for row in database.query(lambda c: jobs.queued_jobs(c, "default", owner.world.now, 100))]
    assert shown == [first]
    assert [
        row.id for row in database.query(lambda c: jobs.queued_jobs_of_each(c, "default", owner.world.now, 9))
    ] == [first]
    ahead = database.query(lambda c: jobs.jobs_ahead(c, waiting, owner.world.now, in_projects=False))
    assert ahead == {}


def test_a_tick_sends_as_many_statements_for_ten_times_the_jobs(owner: Owner, database: Database) -> None:
    counts = []
    for number in (2, 2, 20):
        first = owner.submit()
        # They need more than there is, so that none of them starts.
        waiting = [owner.submit(after=[first], resources={"cpus": 50}) for _ in range(number)]
        owner.train(first)
        owner.world.launcher.driver_of(first).report("ended", end_reason="completed", message="", exit_code=0)
        with statements(database) as sent:
            owner.world.tick()
        assert {owner.job(one).reason for one in waiting} == {"waiting_for_nodes"}
        counts.append(len(sent))
        for one in waiting:
            owner.ask(one, "cancel")
        owner.world.tick(2)
    assert counts[1] == counts[2]
