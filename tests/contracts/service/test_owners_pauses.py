"""Jobs that their owners pause and resume, on SQLite and on PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from remora.states import AttemptState, EndReason, JobState
from service.store.database import Database
from tests.contracts.service.owners import Owner, owner_of

pytestmark = pytest.mark.postgresql_in_soak


@pytest.fixture
def owner(database: Database, database_url: str, tmp_path: Path) -> Iterator[Owner]:
    with owner_of(database, database_url, tmp_path) as made:
        yield made


SAID = "its owner paused it; `remora resume` lets it go on"


def test_a_job_that_waits_is_paused_at_once_and_starts_when_it_is_resumed(owner: Owner) -> None:
    job_id = owner.submit(limits={"wait_time": "60s"})
    answer = owner.ask(job_id, "pause")
    assert (answer["state"], answer["reason"], answer["message"]) == ("paused", "paused_by_owner", SAID)
    again = owner.ask(job_id, "pause")
    assert again["version"] == answer["version"]
    owner.world.now += 3600.0
    owner.world.controller.holder.step(owner.world.now)
    owner.world.tick(5)
    assert owner.job(job_id).state is JobState.PAUSED
    answer = owner.ask(job_id, "resume")
    assert (answer["state"], answer["pause_requested_at"], answer["paused_at"]) == ("queued", None, None)
    owner.run_until(job_id, JobState.ADMITTED)
    assert owner.events(job_id, "job.paused", "job.queued")[1:] == [
        ("job.paused", SAID),
        ("job.queued", "its owner resumed it"),
    ]


def test_a_job_that_trains_ends_its_attempt_and_goes_on_in_another_one(owner: Owner) -> None:
    job_id = owner.submit(retry={"limit": 0})
    driver = owner.train(job_id)
    driver.report("metric", step=7, world_size=1, values={})
    owner.world.tick()
    lost_s = owner.job(job_id).lost_s
    assert owner.ask(job_id, "pause")["message"] == "it is being paused"
    job = owner.run_until(job_id, JobState.PAUSED)
    assert (driver.stop_reason, job.reason, job.world_size) == (EndReason.PAUSED, "paused_by_owner", 0)
    (attempt,) = owner.world.attempts(job_id)
    assert (attempt.state, attempt.end_reason, attempt.message) == (
        AttemptState.ENDED, EndReason.PAUSED, "its owner paused it"
    )  # fmt: skip
    other = owner.submit()
    owner.run_until(other, JobState.ADMITTED)
    owner.world.now += 86_400.0
    owner.world.controller.holder.step(owner.world.now)
    owner.world.tick(2)
    owner.ask(job_id, "resume")
    second = owner.train(job_id)
    assert second.plan.attempt == 2
    second.report("metric", at=owner.world.now, step=8, world_size=1, values={})
    owner.world.tick()
    job = owner.job(job_id)
    assert (job.user_failures, job.losses, job.step) == (0, 0, 8)
    assert job.lost_s - lost_s < 60.0
    kinds = [kind for kind, _ in owner.events(job_id)]
    assert kinds[kinds.index("job.paused") + 1] == "job.queued"


def test_a_driver_that_does_not_end_is_killed_when_its_checkpoint_had_time(owner: Owner) -> None:
    job_id = owner.submit()
    driver = owner.train(job_id)
    driver.obeys = False
    owner.ask(job_id, "pause")
    owner.world.tick()
    owner.world.now += 250.0
    owner.world.controller.holder.step(owner.world.now)
    owner.world.tick()
    assert owner.job(job_id).state is JobState.RUNNING
    owner.world.now += 60.0
    owner.world.controller.holder.step(owner.world.now)
    owner.run_until(job_id, JobState.PAUSED)
    assert owner.world.attempts(job_id)[0].id in owner.world.launcher.killed


def test_it_is_resumed_before_it_was_paused(owner: Owner) -> None:
    job_id = owner.submit()
    driver = owner.train(job_id)
    owner.ask(job_id, "pause")
    owner.ask(job_id, "resume")
    owner.world.tick(3)
    assert (owner.job(job_id).state, driver.stop_reason) == (JobState.RUNNING, None)
    owner.ask(job_id, "pause")
    driver.obeys = False
    owner.world.tick()
    owner.ask(job_id, "resume")
    driver.report("ended", end_reason="paused", message="paused", exit_code=None)
    owner.world.tick()
    owner.run_until(job_id, JobState.ADMITTED)
    assert (owner.job(job_id).attempt, owner.job(job_id).losses) == (2, 0)


def test_it_is_cancelled_while_it_is_paused_or_being_paused(owner: Owner) -> None:
    first, second = owner.submit(), owner.submit()
    owner.ask(first, "pause")
    assert owner.ask(first, "cancel")["state"] == "cancelled"
    driver = owner.train(second)
    driver.obeys = False
    owner.ask(second, "pause")
    owner.world.tick()
    assert driver.stop_reason is EndReason.PAUSED
    owner.ask(second, "cancel")
    owner.world.tick()
    assert driver.stop_reason is EndReason.CANCELLED
    owner.world.now += 11.0
    owner.world.controller.holder.step(owner.world.now)
    assert owner.run_until(second, JobState.CANCELLED).message == "its owner cancelled it"
    answer = owner.client.post(f"/v1/jobs/{second}/resume")
    assert (answer.status_code, answer.json()["code"]) == (409, "not_changeable")


@pytest.mark.parametrize("lost", ["the request", "the end"])
def test_a_controller_that_dies_between_two_writes_loses_nothing(owner: Owner, lost: str) -> None:
    job_id = owner.submit()
    driver = owner.train(job_id)
    if lost == "the request":
        owner.world.launcher.loses_stops = True
    else:
        driver.obeys = False
    owner.ask(job_id, "pause")
    owner.world.tick()
    assert owner.world.attempts(job_id)[0].stop_reason is EndReason.PAUSED
    owner.world.launcher.loses_stops = False
    owner.world.succeed()
    if lost == "the end":
        driver.report("ended", end_reason="paused", message="paused", exit_code=None)
    owner.run_until(job_id, JobState.PAUSED)
    owner.world.succeed()
    owner.ask(job_id, "resume")
    owner.run_until(job_id, JobState.ADMITTED)
    assert len(owner.world.attempts(job_id)) == 2


def test_a_failure_while_it_is_being_paused_counts_and_it_is_paused(owner: Owner) -> None:
    job_id = owner.submit()
    driver = owner.train(job_id)
    driver.obeys = False
    owner.ask(job_id, "pause")
    driver.report("ended", end_reason="exit_code", message="It ended.", exit_code=1)
    owner.world.tick()
    job = owner.job(job_id)
    assert (job.state, job.user_failures) == (JobState.PAUSED, 1)


def test_a_paused_job_hears_of_the_jobs_that_it_waits_for(owner: Owner) -> None:
    first, second = owner.submit(name="a"), owner.submit(name="b")
    waits, fails = owner.submit(after=[first]), owner.submit(after=[second])
    for job_id in (waits, fails):
        owner.ask(job_id, "pause")
    owner.ask(waits, "resume")
    assert owner.job(waits).reason == "waiting_for_jobs"
    owner.ask(waits, "pause")
    owner.train(first)
    owner.end(first)
    owner.ask(second, "cancel")
    owner.world.tick(2)
    assert owner.job(waits).state is JobState.PAUSED
    assert owner.job(fails).reason == "dependency_unmet"
    owner.ask(waits, "resume")
    assert owner.job(waits).reason == "waiting_for_turn"
    owner.run_until(waits, JobState.ADMITTED)


def test_what_cannot_be_paused_or_resumed_says_why(owner: Owner) -> None:
    job_id = owner.submit()
    assert owner.ask(job_id, "resume")["state"] == "queued", "nothing keeps it from running"
    owner.ask(job_id, "cancel")
    said = "the job has ended already: cancelled; it cannot be paused"
    assert owner.ask(job_id, "pause", 409)["detail"] == said
