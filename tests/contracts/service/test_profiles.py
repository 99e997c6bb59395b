"""Profiles that owners ask for, on both databases: each has an end, whichever process dies between."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from remora.states import EndReason
from remora.views import Profile
from service.queue.profiles import LOST_S, MOST_PROFILES
from service.settings import Settings
from service.store import profiles as store
from service.store.database import Database
from tests.contracts.service.owners import Owner, owner_of
from trainers.plan import DriverGone, ProfileRequest
from trainers.profiles import profile_name
from trainers.storage import Storage

pytestmark = pytest.mark.postgresql_in_soak

FILE = "0123456789abcdef" * 2
TRACE = gzip.compress(b'{"traceEvents": []}')


@pytest.fixture
def owner(database: Database, database_url: str, tmp_path: Path) -> Iterator[Owner]:
    with owner_of(database, database_url, tmp_path) as made:
        yield made


@pytest.fixture
def settings(database_url: str, tmp_path: Path) -> Settings:
    return Settings(home=tmp_path, database_url=database_url)


def stored() -> dict[str, Any]:
    digest = hashlib.sha256(TRACE).hexdigest()
    return {"file": FILE, "steps": 5, "size_bytes": len(TRACE), "sha256": digest}


def the_one(owner: Owner, job_id: str) -> Profile:
    (found,) = owner.client.get(f"/v1/jobs/{job_id}/profiles").json()["items"]
    return Profile.model_validate(found)


def test_a_profile_is_asked_for_made_listed_and_downloaded(owner: Owner, settings: Settings) -> None:
    job_id = owner.submit()
    driver = owner.train(job_id)
    asked = owner.ask(job_id, "profiles", steps=5, rank=0)
    assert (asked["number"], asked["state"], asked["steps"]) == (1, "requested", 5)
    owner.world.tick(3)
    assert driver.profiles_requested == [ProfileRequest(number=1, rank=0, steps=5)]
    assert the_one(owner, job_id).state == "running"
    Storage(settings.storage).write_bytes(profile_name(job_id, FILE), TRACE)
    driver.report("profile", number=1, **stored())
    owner.world.tick()
    made = the_one(owner, job_id)
    assert (made.state, made.profiled_steps, made.size_bytes) == ("ready", 5, len(TRACE))
    answer = owner.client.get(f"/v1/jobs/{job_id}/profiles/1/content")
    assert (answer.status_code, answer.content) == (200, TRACE)
    assert answer.headers["content-disposition"] == f'attachment; filename="{job_id}-profile-1.json.gz"'
    kinds = [kind for kind, _ in owner.events(job_id)]
    assert kinds.count("job.profile_requested") == 1


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        ({"steps": 101}, 409, "ask for 1 to 100"),
        ({"rank": 1}, 409, "no rank 1: it has 1 workers now, from rank 0"),
        ({"steps": 0}, 422, "steps"),
        ({"rank": -1}, 422, "rank"),
        ({"seconds": 1}, 422, "seconds"),
    ],
)
def test_what_cannot_be_profiled_is_refused_in_one_sentence(
    owner: Owner, body: dict[str, int], status: int, text: str
) -> None:
    job_id = owner.submit()
    owner.train(job_id)
    answer = owner.client.post(f"/v1/jobs/{job_id}/profiles", json=body)
    assert answer.status_code == status
    assert text in answer.json()["detail"]
    assert owner.client.get(f"/v1/jobs/{job_id}/profiles").json()["items"] == []


@pytest.mark.parametrize("ended", [False, True])
def test_a_job_without_workers_is_not_profiled(owner: Owner, ended: bool) -> None:
    job_id = owner.submit(workers=9)
    if ended:
        owner.ask(job_id, "cancel")
    answer = owner.client.post(f"/v1/jobs/{job_id}/profiles", json={})
    assert (answer.status_code, answer.json()["code"]) == (409, "not_changeable")
    assert "has ended already" in answer.text if ended else "no workers that train now" in answer.text


def test_one_profile_is_made_at_a_time_and_a_job_has_some_at_most(owner: Owner) -> None:
    job_id = owner.submit()
    driver = owner.train(job_id)
    for number in range(1, MOST_PROFILES + 1):
        owner.ask(job_id, "profiles", steps=1)
        again = owner.client.post(f"/v1/jobs/{job_id}/profiles", json={})
        assert (again.status_code, "under way already" in again.text) == (409, True)
        driver.report("profile", number=number, **stored())
        owner.world.tick()
    full = owner.client.post(f"/v1/jobs/{job_id}/profiles", json={})
    assert (full.status_code, "as many as it may" in full.text) == (409, True)


def test_why_there_is_no_trace_is_said_and_a_download_says_it_too(owner: Owner) -> None:
    job_id = owner.submit()
    driver = owner.train(job_id)
    owner.ask(job_id, "profiles", steps=1)
    driver.report("profile", number=1, message="its script has not imported PyTorch")
    owner.world.tick()
    failed = the_one(owner, job_id)
    assert (failed.state, failed.message) == ("failed", "its script has not imported PyTorch")
    answer = owner.client.get(f"/v1/jobs/{job_id}/profiles/1/content")
    assert (answer.status_code, answer.json()["code"]) == (404, "profile_not_found")
    assert "has not imported PyTorch" in answer.text
    assert owner.client.get(f"/v1/jobs/{job_id}/profiles/2/content").status_code == 404


def test_a_trace_that_is_gone_or_cut_is_not_sent(owner: Owner, settings: Settings) -> None:
    job_id = owner.submit()
    driver = owner.train(job_id)
    owner.ask(job_id, "profiles", steps=5)
    driver.report("profile", number=1, **stored())
    owner.world.tick()
    for content in (None, TRACE[:-1]):
        if content is not None:
            Storage(settings.storage).write_bytes(profile_name(job_id, FILE), content)
        answer = owner.client.get(f"/v1/jobs/{job_id}/profiles/1/content")
        assert (answer.status_code, "not in the storage" in answer.text) == (404, True)


@pytest.mark.parametrize("file", ["../../etc/passwd", "0" * 31, "G" * 32])
def test_a_driver_names_no_file_outside(owner: Owner, file: str) -> None:
    job_id = owner.submit()
    driver = owner.train(job_id)
    owner.ask(job_id, "profiles", steps=5)
    driver.report("profile", number=1, **{**stored(), "file": file})
    owner.world.tick()
    assert the_one(owner, job_id).state == "running"
    assert "record.refused" in dict(owner.events(job_id))


def test_a_driver_that_cannot_be_reached_is_asked_again(owner: Owner) -> None:
    job_id = owner.submit()
    driver = owner.train(job_id)
    owner.world.launcher.failing["request_profile"] = ConnectionError("the head does not answer")
    owner.ask(job_id, "profiles", steps=5)
    owner.world.tick(2)
    assert the_one(owner, job_id).state == "requested"
    del owner.world.launcher.failing["request_profile"]
    owner.world.tick()
    assert len(driver.profiles_requested) == 1


def test_a_controller_that_dies_before_it_has_written_that_asks_with_the_same_number(
    owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = owner.submit()
    driver = owner.train(job_id)
    owner.ask(job_id, "profiles", steps=5)

    class Killed(BaseException):
        """The process dies here."""

    def die(*rest: object, **named: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(store, "save", die)
        with pytest.raises(Killed):
            owner.world.tick()
    owner.world.succeed()
    owner.world.tick(2)
    first, second = driver.profiles_requested
    assert first == second, "the driver can see that it is the same"


def test_a_driver_that_dies_ends_the_profile(owner: Owner) -> None:
    job_id = owner.submit()
    driver = owner.train(job_id)
    owner.ask(job_id, "profiles", steps=5)
    owner.world.tick()
    driver.gone = DriverGone(EndReason.DRIVER_LOST, "its process died")
    owner.world.tick(2)
    failed = the_one(owner, job_id)
    assert (failed.state, failed.message) == ("failed", "the attempt ended before the profile was there")
    again = owner.train(job_id)
    owner.world.tick(2)
    assert again.profiles_requested == []


def test_a_driver_that_never_says_how_it_went_ends_the_profile(owner: Owner) -> None:
    job_id = owner.submit()
    driver = owner.train(job_id)
    owner.ask(job_id, "profiles", steps=5)
    owner.world.tick()
    owner.world.now += LOST_S + 1.0
    owner.world.tick()
    failed = the_one(owner, job_id)
    assert failed.state == "failed"
    assert failed.message is not None
    assert "older release" in failed.message
    driver.report("profile", number=1, at=owner.world.now, **stored())
    owner.world.tick()
    late = the_one(owner, job_id)
    assert (late.state, late.message) == ("ready", None), "a trace that was stored after all is not lost"
    driver.report("profile", number=1, at=owner.world.now, message="its worker has ended")
    owner.world.tick()
    assert the_one(owner, job_id) == late, "what is ready stays as it is"


def test_a_deleted_job_leaves_no_profile(owner: Owner, settings: Settings) -> None:
    job_id = owner.submit()
    driver = owner.train(job_id)
    owner.ask(job_id, "profiles", steps=5)
    Storage(settings.storage).write_bytes(profile_name(job_id, FILE), TRACE)
    driver.report("profile", number=1, **stored())
    owner.world.tick()
    owner.end(job_id)
    assert owner.client.delete(f"/v1/jobs/{job_id}").status_code == 202
    for _ in owner.world.ticks_until("its rows are gone"):
        if not owner.world.database.query(lambda c: store.of_job(c, job_id)):
            break
    assert not Storage(settings.storage).exists(profile_name(job_id, FILE))
