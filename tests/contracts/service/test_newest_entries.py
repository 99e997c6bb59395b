"""The newest events and phases of a job: what is asked for is read, however long the job is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from remora.views import Event, JobPhase
from service.store import phases
from service.store.database import Database
from service.store.job_history import EventFilter
from service.store.tables import events, jobs
from tests.contracts.service.owners import Owner, owner_of
from tests.statements import statements

pytestmark = pytest.mark.postgresql_in_soak


@pytest.fixture
def owner(database: Database, database_url: str, tmp_path: Path) -> Iterator[Owner]:
    with owner_of(database, database_url, tmp_path) as made:
        yield made


def add_checkpoints(owner: Owner, job_id: str, upto: int) -> None:
    """The job has events up to that number, and those that are added say that a checkpoint was committed."""

    def work(connection: sa.Connection) -> None:
        last = owner.job(job_id).event_seq
        made = {"job_id": job_id, "at": 1000.0, "kind": "checkpoint.committed", "message": "", "data": {}}
        rows = [{**made, "seq": seq} for seq in range(last + 1, upto + 1)]
        connection.execute(sa.insert(events), rows)
        connection.execute(sa.update(jobs).where(jobs.c.id == job_id).values(event_seq=upto))

    owner.world.database.transact(work)


def listed(owner: Owner, path: str, **query: Any) -> dict[str, Any]:
    answer = owner.client.get(path, params=query)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_the_tail_has_the_last_events_and_its_pages_follow_each_other(owner: Owner) -> None:
    job_id = owner.submit()
    path = f"/v1/jobs/{job_id}/events"
    add_checkpoints(owner, job_id, 50)
    first = listed(owner, path, tail=5, limit=3)
    assert [one["seq"] for one in first["items"]] == [46, 47, 48]
    second = listed(owner, path, tail=5, limit=3, cursor=first["next_cursor"])
    assert [one["seq"] for one in second["items"]] == [49, 50]
    assert [one["seq"] for one in listed(owner, path, tail=5, after=48)["items"]] == [49, 50]
    assert len(listed(owner, path, tail=1000)["items"]) == 50
    assert listed(owner, path, tail=0)["items"] == []


def test_the_tail_of_some_kinds_is_found_before_all_that_came_later(owner: Owner) -> None:
    job_id = owner.submit()
    path = f"/v1/jobs/{job_id}/events"
    owner.train(job_id)
    before = [one["kind"] for one in listed(owner, path)["items"]]
    add_checkpoints(owner, job_id, 5000)
    found = listed(owner, path, kind="attempt.created,attempt.started", tail=10)["items"]
    assert [one["kind"] for one in found] == ["attempt.created", "attempt.started"]
    assert [one["seq"] for one in found] == [
        before.index(kind) + 1 for kind in ("attempt.created", "attempt.started")
    ]
    (last,) = listed(owner, path, kind=["attempt.created", "attempt.started"], tail=1)["items"]
    assert last["kind"] == "attempt.started"
    assert listed(owner, path, kind="no.such.kind", tail=1)["items"] == []
    assert owner.client.get(path, params={"kind": ""}).status_code == 422
    assert owner.client.get(path, params={"kind": "a\0"}).status_code == 422


def test_a_stream_begins_with_the_tail_and_goes_on_where_it_ended(owner: Owner) -> None:
    job_id = owner.submit()
    add_checkpoints(owner, job_id, 50)
    owner.ask(job_id, "cancel")

    def read(**headers: str) -> list[str]:
        sent = {"Accept": "text/event-stream", **headers}
        with owner.client.stream("GET", f"/v1/jobs/{job_id}/events?tail=3", headers=sent) as answer:
            return [line for line in answer.iter_lines() if line.startswith(("id", "event: end"))]

    last = owner.job(job_id).event_seq
    assert read() == [*(f"id: {seq}" for seq in range(last - 2, last + 1)), "event: end"]
    assert read(**{"Last-Event-ID": "48"}) == [*(f"id: {seq}" for seq in range(49, last + 1)), "event: end"]


def test_the_tail_of_a_long_job_is_read_by_as_few_rows_as_that_of_a_short_one(
    owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = owner.submit()
    read: list[int] = []
    entry = EventFilter.entry

    def counted(wanted: EventFilter, values: Any) -> Event:
        read.append(values["seq"])
        return entry(wanted, values)

    monkeypatch.setattr(EventFilter, "entry", counted)
    sent = []
    for count in (100, 10_000):
        add_checkpoints(owner, job_id, count)
        with statements(owner.world.database) as texts:
            listed(owner, f"/v1/jobs/{job_id}/events", tail=10)
        sent.append(list(texts))
    assert read == [*range(91, 101), *range(9991, 10_001)]
    assert sent[0] == sent[1]


def test_phases_say_from_when_until_when_and_stalls_for_checkpoints_are_among_them(owner: Owner) -> None:
    job_id = owner.submit()
    driver = owner.train(job_id)
    began = owner.world.now
    driver.report("progress", at=began + 1.0, phase="training")
    driver.report("progress", at=began + 9.0, stalled_s=2.5)
    owner.world.now += 10.0
    owner.world.tick()
    found = [JobPhase(**one) for one in listed(owner, f"/v1/jobs/{job_id}/phases")["items"]]
    last, stall, before = found[:3]
    assert (last.phase, last.began_at, last.ended_at) == ("training", began + 9.0, None)
    assert (stall.phase, stall.began_at, stall.ended_at) == ("checkpoint", began + 6.5, began + 9.0)
    assert (before.phase, before.ended_at) == ("training", stall.began_at)
    assert [one.number for one in found] == list(range(len(found), 0, -1))
    owner.end(job_id)
    (newest,) = listed(owner, f"/v1/jobs/{job_id}/phases", limit=1)["items"]
    assert newest["ended_at"] is not None, "its attempt has ended"


def test_pages_of_phases_follow_each_other_over_attempts(owner: Owner) -> None:
    job_id = owner.submit()
    path = f"/v1/jobs/{job_id}/phases"
    owner.train(job_id)
    owner.end(job_id, "node_lost")
    owner.train(job_id)
    every = listed(owner, path)["items"]
    assert {one["attempt"] for one in every} == {1, 2}
    paged, cursor = [], None
    while cursor is not None or not paged:
        page = listed(owner, path, limit=1, **({"cursor": cursor} if cursor else {}))
        paged += page["items"]
        cursor = page["next_cursor"]
    assert paged == every
    assert owner.client.get(path, params={"cursor": "MQ"}).status_code == 422


def test_the_newest_phases_are_found_by_one_statement_in_the_index(owner: Owner) -> None:
    job_id = owner.submit()
    owner.train(job_id)
    with statements(owner.world.database) as sent:
        owner.world.database.query(lambda c: phases.newest_phases(c, job_id, (9, 9), 10))
    (statement,) = [text for text in sent if "phases" in text]
    if owner.world.database.is_sqlite:
        values = (1, job_id, 9, 9, 10, 0)
        plan = owner.world.database.query(
            lambda c: c.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", values).all()
        )
        steps = [str(row[-1]) for row in plan]
        assert all(step.startswith("SEARCH") for step in steps), steps
