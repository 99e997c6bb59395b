"""Alerts: facts become notifications, and these reach their receivers, on SQLite and on PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from remora.states import JobState
from service.store.database import Database
from service.store.tables import alert_facts, alert_watches, alerts, notifications
from tests.contracts.service.alert_receivers import Receiver, receiver
from tests.contracts.service.owners import Owner, owner_of


class Alerted:
    """An owner, and a receiver of what is reported."""

    def __init__(self, owner: Owner, receiver: Receiver) -> None:
        self.owner = owner
        self.receiver = receiver
        self.world = owner.world

    def create(self, *kinds: str, url: str | None = None, **fields: Any) -> dict[str, Any]:
        body = {"project": "default", "kinds": list(kinds), "webhook": url or f"{self.receiver.url}/hook"}
        answer = self.owner.client.post("/v1/alerts", json={**body, **fields})
        assert answer.status_code == 201, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def tick(self, count: int = 1) -> None:
        """Ticks, each of which ends when what it has sent was answered."""
        for _ in range(count):
            self.world.tick()
            self.world.controller.alerts.wait(20.0)

    def pass_time(self, seconds: float) -> None:
        """The controller keeps its lease meanwhile."""
        self.world.now += seconds
        self.world.controller.holder.step(self.world.now)

    def end(self, reason: str = "completed", **fields: Any) -> str:
        job_id = self.owner.submit(**fields)
        self.owner.run_until(job_id, JobState.ADMITTED)
        self.owner.end(job_id, reason)
        return job_id

    def rows(self, table: sa.Table) -> list[Any]:
        return self.world.database.query(lambda c: c.execute(sa.select(table)).all())

    def shown(self, alert: dict[str, Any]) -> list[dict[str, Any]]:
        answer = self.owner.client.get(f"/v1/alerts/{alert['id']}/notifications")
        found: list[dict[str, Any]] = answer.json()["items"]
        return found


@pytest.fixture
def alerted(database: Database, database_url: str, tmp_path: Path) -> Iterator[Alerted]:
    with (
        receiver() as made,
        owner_of(database, database_url, tmp_path, alert_hosts="127.0.0.1") as owner,
    ):
        yield Alerted(owner, made)
        owner.world.controller.alerts.close()


def test_the_end_of_a_job_reaches_a_webhook_with_a_signature(alerted: Alerted) -> None:
    alert = alerted.create("job_ended")
    job_id = alerted.end()
    alerted.tick(2)
    (request,) = alerted.receiver.received
    assert request.path == "/hook"
    assert request.is_signed_with(alert["secret"])
    assert not request.is_signed_with("whsec_" + "A" * 44)
    (event,) = alerted.owner.events(job_id, "job.succeeded")
    assert request.content["type"] == "job_ended"
    assert request.content["data"]["message"].endswith(event[1]), "the sentence of the event"
    assert request.content["data"]["job_id"] == job_id
    (shown,) = alerted.shown(alert)
    assert (shown["state"], shown["tries"], shown["id"]) == ("delivered", 1, request.id)
    alerted.tick(5)
    assert len(alerted.receiver.received) == 1
    assert alerted.rows(alert_facts) == []
