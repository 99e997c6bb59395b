"""Who may have which alerts, what a request for one may say, and what is shown of it, on SQLite and on PostgreSQL."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from remora.roles import Role
from remora.states import JobState
from service import first_operator
from service.loops.alert_making import FACTS
from service.secrets.key_file import KeyFile
from service.store import alert_facts, grants
from service.store.database import Database
from service.store.grants import GrantRow
from service.store.tables import alerts, notifications
from tests.contracts.service.alert_receivers import Receiver, receiver
from tests.contracts.service.owners import Owner, owner_of
from tests.contracts.service.two_projects import Service, service_of
from tests.service_fakes import World
from tests.statements import statements

pytestmark = pytest.mark.postgresql_in_soak

URL = "https://hooks.example.com/services/sssssecret"


@pytest.fixture
def service(database: Database, database_url: str, tmp_path: Path) -> Iterator[Service]:
    with service_of(database, database_url, tmp_path) as made:
        yield made


def body(**fields: Any) -> dict[str, Any]:
    return {"project": "vision", "kinds": ["job_ended"], "webhook": URL, **fields}


def test_who_may_create_which_alert(service: Service) -> None:
    who = {role: service.token({"vision": role}) for role in ("viewer", "submitter", "admin")}
    who["operator"] = service.operator

    def asked(**fields: Any) -> dict[str, int]:
        return {
            role: service.ask(token, "POST", "/v1/alerts", json=body(**fields)).status_code
            for role, token in who.items()
        }

    assert asked() == {"viewer": 403, "submitter": 201, "admin": 201, "operator": 201}
    assert asked(jobs="all") == {"viewer": 403, "submitter": 403, "admin": 201, "operator": 201}
    assert asked(project=None) == {"viewer": 403, "submitter": 403, "admin": 403, "operator": 201}
    assert asked(project="other") == {"viewer": 403, "submitter": 403, "admin": 403, "operator": 201}
    mine = service.ask(who["submitter"], "GET", "/v1/alerts").json()["items"]
    assert [(one["jobs"], one["project"]) for one in mine] == [("own", "vision")]
    assert len(service.ask(who["admin"], "GET", "/v1/alerts").json()["items"]) == 5
    assert len(service.ask(service.operator, "GET", "/v1/alerts").json()["items"]) == 7
    assert service.ask(who["viewer"], "GET", "/v1/alerts").json()["items"] == []


@pytest.mark.parametrize(
    "fields",
    [
        {"kinds": []}, {"kinds": ["no_such"]}, {"webhook": None}, {"slack": URL}, {"webhook": "http://example.com/"},
        {"webhook": "https://u:p@example.com/"}, {"webhook": "file:///etc/passwd"}, {"webhook": 7}, {"jobs": "some"},
        {"project": "No Name"}, {"project": "*"}, {"wait_s": 0}, {"wait_s": 1e12}, {"wait_s": "1h"},
        {"budget_percents": []}, {"budget_percents": [0]}, {"budget_percents": [1] * 21}, {"slow_factor": 1.0},
        {"unknown": 1}, {"webhook": None, "email": "ann@example.com"},
    ],
)  # fmt: skip
def test_what_is_no_alert_is_refused_in_a_sentence(service: Service, fields: dict[str, Any]) -> None:
    answer = service.ask(service.operator, "POST", "/v1/alerts", json=body(**fields))
    assert answer.status_code == 422, answer.text
    assert answer.json()["detail"]
    assert service.made("GET", "/v1/alerts")["items"] == []


def test_what_is_secret_is_shown_once_and_stands_nowhere(
    service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        made = service.made("POST", "/v1/alerts", json=body())
    secret = made["secret"]
    path = f"/v1/alerts/{made['id']}"
    shown = [service.ask(service.operator, "GET", one).text for one in ("/v1/alerts", path, "/v1/audit")]
    shown += [service.ask(service.operator, "DELETE", "/v1/alerts/alert_none").text, caplog.text]
    stored = service.database.query(lambda c: repr(c.execute(sa.select(alerts)).all()))
    for text in (*shown, stored):
        assert secret not in text
        assert "sssssecret" not in text
    assert "https://hooks.example.com" in shown[0]
    (created,) = [one for one in service.audit() if one["operation"] == "create_alert"]
    assert created["after"]["address"] == "https://hooks.example.com"
    assert created["object"] == made["id"]
    service.made("DELETE", path)
    assert service.audit()[0]["operation"] == "delete_alert"
    assert service.ask(service.operator, "GET", path).status_code == 404


def test_a_project_and_a_principal_have_so_many_alerts_at_most(service: Service) -> None:
    document = "pools: {}\nprojects: {vision: {limits: {alerts: 3}}}\nprincipals: {alerts: 2}\n"
    service.made("POST", "/v1/policies", json={"document": document, "based_on": 0})
    ann, bob = (service.token({"vision": "submitter"}) for _ in range(2))
    statuses = [
        service.ask(who, "POST", "/v1/alerts", json=body()).status_code for who in (ann, ann, ann, bob, bob)
    ]
    assert statuses == [201, 201, 429, 201, 429]
    first = service.ask(ann, "GET", "/v1/alerts").json()["items"][0]["id"]
    assert service.ask(ann, "DELETE", f"/v1/alerts/{first}").status_code == 200
    assert service.ask(bob, "POST", "/v1/alerts", json=body()).status_code == 201


class Team:
    """A service that asks for tokens, its controller, and a receiver."""

    def __init__(self, owner: Owner, operator: str, receiver: Receiver) -> None:
        self.owner, self.operator, self.receiver = owner, operator, receiver

    def ask(self, who: str, method: str, path: str, **options: Any) -> Any:
        answer = self.owner.client.request(
            method, path, headers={"Authorization": f"Bearer {who}"}, **options
        )
        assert answer.is_success, answer.text
        return answer.json()

    def token(self, role: str) -> dict[str, Any]:
        wanted = {"name": "t", "grants": {"vision": role}, "expires_in_s": None}
        made: dict[str, Any] = self.ask(self.operator, "POST", "/v1/tokens", json=wanted)
        return made

    def end_a_job(self, who: str) -> None:
        job_id = self.ask(who, "POST", "/v1/jobs", json={"command": "true", "project": "vision"})["id"]
        self.owner.run_until(job_id, JobState.ADMITTED)
        self.owner.end(job_id)
        for _ in range(3):
            self.owner.world.tick()
            self.owner.world.controller.alerts.wait(20.0)


@pytest.fixture
def team(database: Database, database_url: str, tmp_path: Path) -> Iterator[Team]:
    settings = {"authentication": "required", "alert_hosts": "127.0.0.1"}
    with receiver() as made, owner_of(database, database_url, tmp_path, **settings) as owner:
        yield Team(owner, first_operator.ensure(database, tmp_path, 1000.0).read_text().strip(), made)
        owner.world.controller.alerts.close()


def test_an_alert_reports_what_its_owner_may_see_at_that_time(team: Team) -> None:
    ann, bob = team.token("submitter"), team.token("admin")
    url = f"{team.receiver.url}/ann"
    own = team.ask(ann["token"], "POST", "/v1/alerts", json=body(webhook=url))
    team.ask(bob["token"], "POST", "/v1/alerts", json=body(jobs="all", webhook=f"{team.receiver.url}/bob"))
    team.end_a_job(bob["token"])
    assert [one.path for one in team.receiver.received] == ["/bob"], "not ann's job"
    team.end_a_job(ann["token"])
    assert sorted(one.path for one in team.receiver.received) == ["/ann", "/bob", "/bob"]
    team.ask(team.operator, "DELETE", f"/v1/tokens/{bob['id']}")
    team.end_a_job(ann["token"])
    assert sorted(one.path for one in team.receiver.received) == ["/ann", "/ann", "/bob", "/bob"]
    found = {one["owner"]: one for one in team.ask(team.operator, "GET", "/v1/alerts")["items"]}
    assert found[f"token:{bob['id']}"]["error"] == f"nothing is reported: the token {bob['id']} was revoked"
    assert found[own["owner"]]["error"] is None


def test_an_alert_of_all_jobs_ends_with_the_role_of_an_admin(team: Team) -> None:
    alert = team.ask(
        team.operator, "POST", "/v1/alerts", json=body(jobs="all", webhook=f"{team.receiver.url}/x")
    )
    database = team.owner.world.database

    def own(role: Role) -> None:
        def work(connection: sa.Connection) -> None:
            of_user = {"owner": "user:corp/ann", "credential": None, "groups": []}
            connection.execute(sa.update(alerts).where(alerts.c.id == alert["id"]).values(of_user))
            given = GrantRow(
                subject="user:corp/ann", project="vision", role=role, created_by="x", created_at=1.0
            )
            grants.put(connection, given)

        database.transact(work)

    own(Role.ADMIN)
    team.end_a_job(team.operator)
    assert len(team.receiver.received) == 1
    own(Role.SUBMITTER)
    team.end_a_job(team.operator)
    assert len(team.receiver.received) == 1
    shown = team.ask(team.operator, "GET", f"/v1/alerts/{alert['id']}")
    assert "is no admin of the project vision any more" in shown["error"]


def test_a_rotation_of_the_key_encrypts_where_alerts_are_sent_to(team: Team) -> None:
    wanted = body(jobs="all", webhook=f"{team.receiver.url}/x")
    made = team.ask(team.operator, "POST", "/v1/alerts", json=wanted)
    done = team.ask(team.operator, "POST", "/v1/secrets/rotate")
    assert done["rewritten"] == 1
    assert done["unreadable"] == []
    (key,) = KeyFile(team.owner.world.settings.secrets_key).read()
    rows = team.owner.world.database.query(lambda c: c.execute(sa.select(alerts.c.key_id)).scalars().all())
    assert rows == [key.id]
    team.end_a_job(team.operator)
    (request,) = team.receiver.received
    assert request.is_signed_with(made["secret"])


def test_without_its_key_an_alert_is_kept_and_says_what_to_do(team: Team) -> None:
    wanted = body(jobs="all", webhook=f"{team.receiver.url}/x")
    alert = team.ask(team.operator, "POST", "/v1/alerts", json=wanted)
    path = team.owner.world.settings.secrets_key
    kept = path.read_bytes()
    path.unlink()
    team.end_a_job(team.operator)
    shown = team.ask(team.operator, "GET", f"/v1/alerts/{alert['id']}")
    assert "which the key file does not have" in shown["error"]
    again = team.owner.client.post(
        "/v1/alerts", json=wanted, headers={"Authorization": f"Bearer {team.operator}"}
    )
    assert (again.status_code, again.json()["code"]) == (409, "keys_unusable"), "and no other key is made"
    path.write_bytes(kept)
    path.chmod(0o600)
    team.owner.world.now += 60.0
    team.owner.world.controller.holder.step(team.owner.world.now)
    for _ in range(3):
        team.owner.world.tick()
        team.owner.world.controller.alerts.wait(20.0)
    assert len(team.receiver.received) == 1


class TestGrowth:
    """Statements of a tick for some facts, and for ten times as many."""

    def sent(self, owner: Owner, jobs: int) -> list[str]:
        world: World = owner.world
        job_ids = [world.submit(submitted_by="local") for _ in range(jobs)]
        for job_id in job_ids:
            world.cancel(job_id)
        with statements(world.database) as sent:
            world.controller.alert(lambda: world.now)
        assert world.database.query(alert_facts.is_any) is False
        return [one for one in sent if "leases" not in one]

    def test_of_facts_is_none(self, database: Database, database_url: str, tmp_path: Path) -> None:
        with owner_of(database, database_url, tmp_path, alert_hosts="127.0.0.1") as owner, receiver() as made:
            owner.world.tick(2)
            made.answers += [500] * 50
            wanted = body(project="default", kinds=["job_ended", "job_waits"], webhook=f"{made.url}/x")
            assert owner.client.post("/v1/alerts", json=wanted).status_code == 201
            few = self.sent(owner, 3)
            owner.world.controller.alerts.wait(20.0)
            owner.world.controller.alert(lambda: owner.world.now)
            many = self.sent(owner, 30)
            assert len(many) <= len(few)
            rows = database.query(lambda c: c.execute(sa.select(notifications)).all())
            assert len(rows) == 33
            owner.world.controller.alerts.close()

    def test_of_watches_is_none(self, database: Database, database_url: str, tmp_path: Path) -> None:
        with owner_of(database, database_url, tmp_path) as owner:
            world = owner.world
            world.tick(2)
            wanted = body(project="default", kinds=["job_waits"], wait_s=60.0)
            assert owner.client.post("/v1/alerts", json=wanted).status_code == 201

            def looks(jobs: int) -> int:
                for _ in range(jobs):
                    world.submit(submitted_by="local", worker_resources={"GPU": 8.0})
                world.controller.alert(lambda: world.now)
                # Nothing is sent here: only the looks are counted.
                database.transact(lambda c: c.execute(sa.update(alerts).values(due_at=1e12)))
                world.now += 61.0
                world.controller.holder.step(world.now)
                with statements(database) as sent:
                    world.controller.alert(lambda: world.now)
                return len(sent)

            assert looks(30) <= looks(3)
            rows = database.query(lambda c: c.execute(sa.select(notifications)).all())
            assert len(rows) == 33
            owner.world.controller.alerts.close()

    def test_no_more_facts_than_a_tick_bears_are_taken_at_once(
        self, database: Database, database_url: str, tmp_path: Path
    ) -> None:
        with owner_of(database, database_url, tmp_path) as owner:
            world = owner.world
            world.tick()
            for _ in range(FACTS // 2 + 10):
                world.cancel(world.submit())
            world.controller.alert(lambda: world.now)
            assert database.query(alert_facts.is_any)
            world.controller.alert(lambda: world.now)
            assert not database.query(alert_facts.is_any)
            owner.world.controller.alerts.close()


def test_what_is_sent_is_json_that_says_no_more_than_it_should(team: Team) -> None:
    wanted = body(jobs="all", webhook=f"{team.receiver.url}/x")
    team.ask(team.operator, "POST", "/v1/alerts", json=wanted)
    team.end_a_job(team.operator)
    (request,) = team.receiver.received
    assert set(json.loads(request.body)) == {"type", "timestamp", "data"}
    assert request.headers["content-type"] == "application/json"
    assert "authorization" not in request.headers
