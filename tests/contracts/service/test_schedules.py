"""Jobs that are submitted again and again, on SQLite and on PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from remora.states import JobState
from service.store import bundles, schedules, submissions
from service.store.bundles import bundle_name
from service.store.database import Database
from service.store.tables import bundles as bundles_table
from tests.contracts.service.owners import Owner, owner_of
from trainers.storage import Storage

pytestmark = pytest.mark.postgresql_in_soak

HOUR = 3600.0
SPEC = {"command": "python train.py", "name": "nightly"}


@pytest.fixture
def owner(database: Database, database_url: str, tmp_path: Path) -> Iterator[Owner]:
    with owner_of(database, database_url, tmp_path) as made:
        yield made


def submit(owner: Owner, status: int = 201, key: str | None = None, **fields: Any) -> dict[str, Any]:
    """At the beginning of each hour; the world begins at 00:16:40."""
    headers = {} if key is None else {"Idempotency-Key": key}
    body = {**SPEC, "schedule": "0 * * * *", **fields}
    answer = owner.client.post("/v1/schedules", json=body, headers=headers)
    assert answer.status_code == status, answer.text
    made: dict[str, Any] = answer.json()
    return made


def go_to(owner: Owner, now: float) -> None:
    """The time comes, and one tick with it."""
    owner.world.now = now
    owner.world.controller.holder.step(now)
    owner.world.tick()


def runs(owner: Owner, schedule: dict[str, Any]) -> list[tuple[float, str]]:
    answer = owner.client.get(f"/v1/schedules/{schedule['id']}/runs")
    assert answer.status_code == 200, answer.text
    return [(one["at"], one["outcome"]) for one in answer.json()["items"]]


def jobs_of(owner: Owner, schedule: dict[str, Any]) -> list[dict[str, Any]]:
    """Newest first."""
    found = owner.client.get("/v1/jobs", params={"label": f"schedule={schedule['id']}"})
    items: list[dict[str, Any]] = found.json()["items"]
    return items


def finish(owner: Owner, job_id: str) -> None:
    owner.train(job_id)
    owner.end(job_id)


def test_a_job_is_submitted_at_each_time(owner: Owner) -> None:
    schedule = submit(owner, labels={"team": "vision"})
    assert (schedule["next_at"], schedule["cron"], schedule["zone"]) == (HOUR, "0 * * * *", "UTC")
    owner.world.tick(5)
    assert jobs_of(owner, schedule) == []
    go_to(owner, HOUR + 1.0)
    (job,) = jobs_of(owner, schedule)
    assert (job["name"], job["spec"]["schedule"], job["labels"]["team"]) == ("nightly", None, "vision")
    (queued,) = owner.events(job["id"], "job.queued")
    assert queued[1] == f"job nightly was accepted, by the schedule {schedule['id']}"
    owner.world.tick(5)
    assert len(jobs_of(owner, schedule)) == 1
    finish(owner, job["id"])
    go_to(owner, 2 * HOUR + 1.0)
    assert runs(owner, schedule) == [(2 * HOUR, "submitted"), (HOUR, "submitted")]
    shown = owner.client.get(f"/v1/schedules/{schedule['id']}").json()
    assert (shown["next_at"], shown["last_run"]["job_id"]) == (3 * HOUR, jobs_of(owner, schedule)[0]["id"])


@pytest.mark.parametrize(
    ("overlap", "outcome", "state"),
    [
        ("skip", "overlapped", None),
        ("allow", "submitted", "waiting_for_turn"),
        ("wait", "submitted", "waiting_for_jobs"),
    ],
)
def test_a_time_at_which_the_job_before_has_not_ended(
    owner: Owner, overlap: str, outcome: str, state: str | None
) -> None:
    schedule = submit(owner, schedule={"cron": "0 * * * *", "overlap": overlap}, resources={"cpus": 50})
    go_to(owner, HOUR + 1.0)
    go_to(owner, 2 * HOUR + 1.0)
    assert runs(owner, schedule)[0] == (2 * HOUR, outcome)
    jobs = jobs_of(owner, schedule)
    assert len(jobs) == (1 if state is None else 2)
    if overlap == "wait":
        assert jobs[0]["spec"]["after"] == [{"job": jobs[1]["id"], "when": "any"}]
        assert jobs[0]["reason"] == state
    owner.ask(jobs[-1]["id"], "cancel")
    go_to(owner, 3 * HOUR + 1.0)
    assert runs(owner, schedule)[0] == (3 * HOUR, "submitted")


@pytest.mark.parametrize(("missed", "outcome"), [("latest", "submitted"), ("skip", "missed")])
def test_times_at_which_no_controller_ran(owner: Owner, missed: str, outcome: str) -> None:
    schedule = submit(owner, schedule={"cron": "0 * * * *", "missed": missed})
    go_to(owner, 5 * HOUR + 600.0)
    assert runs(owner, schedule) == [(5 * HOUR, outcome), (HOUR, "missed")]
    assert len(jobs_of(owner, schedule)) == (1 if missed == "latest" else 0)
    go_to(owner, 6 * HOUR + 60.0)
    if missed == "latest":
        assert runs(owner, schedule)[0][1] == "overlapped"
    else:
        assert runs(owner, schedule)[0] == (6 * HOUR, "submitted"), "a minute late is in time"


@pytest.mark.parametrize("at", ["before the job", "after the job"])
def test_a_controller_that_dies_submits_each_time_once(
    owner: Owner, at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    schedule = submit(owner)

    class Killed(BaseException):
        """The process dies here."""

    def die(*rest: object, **named: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        if at == "before the job":
            patch.setattr(submissions, "submit", die)
        else:
            patch.setattr(schedules, "move", die)
        with pytest.raises(Killed):
            go_to(owner, HOUR + 1.0)
    assert (jobs_of(owner, schedule), runs(owner, schedule)) == ([], [])
    owner.world.succeed()
    owner.world.tick(3)
    assert len(jobs_of(owner, schedule)) == 1
    assert runs(owner, schedule) == [(HOUR, "submitted")]


def test_a_controller_whose_lease_is_lost_submits_nothing(owner: Owner) -> None:
    schedule = submit(owner)
    owner.world.tick()
    first = owner.world.controller
    owner.world.succeed()
    owner.world.tick()
    owner.world.now = HOUR + 1.0
    assert not first.tick(owner.world.now)
    assert jobs_of(owner, schedule) == []
    owner.world.controller.holder.step(owner.world.now)
    owner.world.tick()
    assert len(jobs_of(owner, schedule)) == 1


def test_a_clock_that_is_set_back_does_not_bring_a_time_again(owner: Owner) -> None:
    schedule = submit(owner)
    go_to(owner, HOUR + 1.0)
    owner.ask(jobs_of(owner, schedule)[0]["id"], "cancel")
    owner.world.set_clock(-1800.0)
    owner.world.tick(3)
    go_to(owner, HOUR + 2.0)
    assert runs(owner, schedule) == [(HOUR, "submitted")]


def test_an_array_is_submitted_as_one(owner: Owner) -> None:
    array = {"grid": {"lr": [1, 2]}}
    schedule = submit(owner, command="x ${{array.lr}}", array=array)
    go_to(owner, HOUR + 1.0)
    first, second = jobs_of(owner, schedule)
    assert first["array"]["array_id"] == second["array"]["array_id"]
    go_to(owner, 2 * HOUR + 1.0)
    assert runs(owner, schedule)[0][1] == "overlapped"


def test_what_cannot_be_submitted_says_why_and_the_schedule_stays(
    database: Database, database_url: str, tmp_path: Path
) -> None:
    with owner_of(database, database_url, tmp_path, max_active_jobs=1) as owner:
        other = owner.submit(resources={"cpus": 50})
        schedule = submit(owner)
        go_to(owner, HOUR + 1.0)
        newest = owner.client.get(f"/v1/schedules/{schedule['id']}").json()["last_run"]
        said = "1 jobs wait or run and the limit is 1"
        assert (newest["outcome"], newest["message"], newest["job_id"]) == ("refused", said, None)
        assert owner.client.get("/v1/jobs").json()["items"][0]["id"] == other
        owner.ask(other, "cancel")
        go_to(owner, 2 * HOUR + 1.0)
        assert runs(owner, schedule)[0] == (2 * HOUR, "submitted")


def test_its_code_is_kept(owner: Owner, database: Database) -> None:
    digest = f"sha256:{'1' * 64}"
    Storage(owner.world.settings.storage).write_bytes(bundle_name(digest), b"zip")
    database.transact(lambda c: bundles.use(c, digest, owner.world.now))
    schedule = submit(owner, code=digest, command="true")
    day = 86_400.0
    going = database.transact(lambda c: bundles.choose(c, before=30 * day, now=31 * day, most=10))
    assert going == []
    assert owner.client.delete(f"/v1/schedules/{schedule['id']}").status_code == 200
    going = database.transact(lambda c: bundles.choose(c, before=32 * day, now=33 * day, most=10))
    assert going == [digest]


def test_code_that_is_gone_is_a_refused_time_and_leaves_nothing_behind(
    database: Database, database_url: str, tmp_path: Path
) -> None:
    digest = f"sha256:{'2' * 64}"
    with owner_of(database, database_url, tmp_path, retention_days=0) as owner:
        Storage(owner.world.settings.storage).write_bytes(bundle_name(digest), b"zip")
        database.transact(lambda c: bundles.use(c, digest, owner.world.now))
        schedule = submit(owner, code=digest, command="true")
        gone = sa.update(bundles_table).where(bundles_table.c.digest == digest).values(gone_at=1.0)
        database.transact(lambda c: c.execute(gone))
        go_to(owner, HOUR + 1.0)
        assert runs(owner, schedule) == [(HOUR, "refused")]
        assert jobs_of(owner, schedule) == []
        shown = owner.client.get(f"/v1/schedules/{schedule['id']}").json()
        assert shown["last_run"]["message"] == "its code is not there any more; submit it again"


def test_a_schedule_that_is_deleted_submits_nothing_and_its_jobs_stay(owner: Owner) -> None:
    schedule = submit(owner)
    go_to(owner, HOUR + 1.0)
    path = f"/v1/schedules/{schedule['id']}"
    assert owner.client.delete(path).status_code == 200
    go_to(owner, 2 * HOUR + 1.0)
    assert len(jobs_of(owner, schedule)) == 1
    assert [owner.client.get(path).status_code, owner.client.delete(path).status_code] == [404, 404]
    assert owner.client.get("/v1/schedules").json()["items"] == []


def test_the_same_key_makes_one_schedule(owner: Owner) -> None:
    first = submit(owner, key="k")
    assert submit(owner, key="k")["id"] == first["id"]
    assert submit(owner, 409, key="k", priority=3)["code"] == "idempotency_key_reused"
    assert len(owner.client.get("/v1/schedules").json()["items"]) == 1


def test_what_cannot_be_is_refused(owner: Owner) -> None:
    for schedule, said in (
        ("0 25 * * *", "'25' is no hour; it goes from 0 to 23"),
        ("0 0 30 2 *", "is no time that ever comes"),
        ({"cron": "0 0 * * *", "zone": "Mars/Olympus"}, "is no time zone that is known"),
        ({"zone": "UTC"}, "schedule.cron: missing"),
        (3, "schedule: 3 given, expected a time of cron"),
        ({"cron": "* * * * *", "overlap": "never"}, "schedule.overlap: 'never' given"),
    ):
        assert said in submit(owner, 422, schedule=schedule)["detail"]
    assert "schedule: missing; submit one job" in submit(owner, 422, schedule=None)["detail"]
    wait = {"cron": "0 * * * *", "overlap": "wait"}
    refused = submit(owner, 422, command="x ${{array.a}}", array={"grid": {"a": [1]}}, schedule=wait)
    assert "write skip or allow" in refused["detail"]
    answer = owner.client.post("/v1/jobs", json={**SPEC, "schedule": "0 * * * *"})
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, "schedule")


def test_many_that_are_due_share_ticks(owner: Owner) -> None:
    made = [submit(owner, resources={"cpus": 50}) for _ in range(45)]
    go_to(owner, HOUR + 1.0)
    counts = [sum(len(runs(owner, one)) for one in made)]
    for _ in range(3):
        owner.world.tick()
        counts.append(sum(len(runs(owner, one)) for one in made))
    assert counts == [20, 40, 45, 45]
    assert {job["state"] for one in made for job in jobs_of(owner, one)} == {JobState.QUEUED.value}
