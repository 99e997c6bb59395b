"""Stacks that owners request, on both databases: each request reaches the driver, whichever process dies between."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from remora.states import EndReason, JobState
from service.store.database import Database
from tests.contracts.service.owners import Owner, owner_of
from trainers.plan import DriverGone

pytestmark = pytest.mark.postgresql_in_soak


@pytest.fixture
def owner(database: Database, database_url: str, tmp_path: Path) -> Iterator[Owner]:
    with owner_of(database, database_url, tmp_path) as made:
        yield made


def test_the_driver_of_a_job_that_trains_is_asked_once_for_each_request(owner: Owner) -> None:
    job_id = owner.submit()
    driver = owner.train(job_id)
    owner.ask(job_id, "stacks")
    owner.world.tick(4)
    (attempt,) = owner.world.attempts(job_id)
    assert driver.stacks_requested == [attempt.stacks_requested_at]
    owner.ask(job_id, "stacks")
    owner.world.tick(2)
    assert len(driver.stacks_requested) == 2
    assert driver.stacks_requested == sorted(set(driver.stacks_requested))
    kinds = [kind for kind, _ in owner.events(job_id)]
    assert kinds.count("job.stacks_requested") == 2


@pytest.mark.parametrize("ended", [False, True])
def test_a_job_without_workers_is_refused_in_one_sentence(owner: Owner, ended: bool) -> None:
    job_id = owner.submit(workers=9)
    if ended:
        owner.ask(job_id, "cancel")
    answer = owner.client.post(f"/v1/jobs/{job_id}/stacks")
    assert (answer.status_code, answer.json()["code"]) == (409, "not_changeable")
    assert "has ended already" in answer.text if ended else "no workers that train now" in answer.text


def test_a_driver_that_cannot_be_reached_is_asked_again(owner: Owner) -> None:
    job_id = owner.submit()
    driver = owner.train(job_id)
    owner.world.launcher.failing["request_stacks"] = ConnectionError("the head does not answer")
    owner.ask(job_id, "stacks")
    owner.world.tick(2)
    assert owner.job(job_id).state is JobState.RUNNING
    del owner.world.launcher.failing["request_stacks"]
    owner.world.tick()
    assert len(driver.stacks_requested) == 1


def test_a_controller_that_dies_before_it_has_written_that_asks_with_the_same_order(
    owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    from service.loops import track

    job_id = owner.submit()
    driver = owner.train(job_id)
    owner.ask(job_id, "stacks")

    class Killed(BaseException):
        """The process dies here."""

    def die(*rest: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(track, "_stacks_taken", die)
        with pytest.raises(Killed):
            owner.world.tick()
    owner.world.succeed()
    owner.world.tick(2)
    assert len(driver.stacks_requested) == 2
    assert driver.stacks_requested[0] == driver.stacks_requested[1], "the driver can see that it is the same"


def test_an_attempt_that_began_after_the_request_is_not_asked(owner: Owner) -> None:
    job_id = owner.submit()
    driver = owner.train(job_id)
    owner.world.launcher.loses_stacks = True
    owner.ask(job_id, "stacks")
    owner.world.tick()
    owner.world.launcher.loses_stacks = False
    driver.gone = DriverGone(EndReason.DRIVER_LOST, "its process died")
    owner.run_until(job_id, JobState.QUEUED)
    again = owner.train(job_id)
    owner.world.tick(3)
    assert again.plan.attempt == 2
    assert again.stacks_requested == []
