"""A schedule submits with what its submitter may do at that time, on SQLite and on PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from remora.roles import Role
from service import first_operator
from service.store import grants
from service.store.database import Database
from service.store.grants import GrantRow
from service.store.policies import page_of_cluster_events
from service.store.schedules import due
from service.store.tables import schedules, tokens
from tests.contracts.service.owners import Owner, owner_of

pytestmark = pytest.mark.postgresql_in_soak

HOUR = 3600.0


class Team:
    """A service that asks for tokens, and its controller."""

    def __init__(self, owner: Owner, operator: str) -> None:
        self.owner = owner
        self.operator = operator
        self.hour = 0

    def ask(self, who: str, method: str, path: str, **options: Any) -> Any:
        answer = self.owner.client.request(
            method, path, headers={"Authorization": f"Bearer {who}"}, **options
        )
        assert answer.is_success, answer.text
        return answer.json()

    def token(self, **fields: Any) -> dict[str, Any]:
        # Proofs are looked at by the machine's clock.
        body = {"name": "nightly", "grants": {"vision": "submitter"}, "expires_in_s": None, **fields}
        made: dict[str, Any] = self.ask(self.operator, "POST", "/v1/tokens", json=body)
        return made

    def schedule(self, who: str, **fields: Any) -> str:
        """At the beginning of each hour."""
        body = {
            "command": "true",
            "project": "vision",
            "schedule": {"cron": "0 * * * *", "overlap": "allow"},
            **fields,
        }
        return str(self.ask(who, "POST", "/v1/schedules", json=body)["id"])

    def run(self, schedule: str) -> tuple[str, str]:
        """Its next time comes: what became of it."""
        self.hour += 1
        world = self.owner.world
        world.now = self.hour * HOUR
        world.controller.holder.step(world.now)
        world.tick()
        newest = self.ask(self.operator, "GET", f"/v1/schedules/{schedule}/runs")["items"][0]
        assert newest["at"] == self.hour * HOUR
        return newest["outcome"], newest["message"]

    def events(self) -> list[str]:
        found = self.owner.world.database.query(lambda c: page_of_cluster_events(c, after=0, limit=100))
        return [one.kind for one in found if one.kind.startswith("schedule.")]


@pytest.fixture
def team(database: Database, database_url: str, tmp_path: Path) -> Iterator[Team]:
    with owner_of(database, database_url, tmp_path, authentication="required") as owner:
        yield Team(owner, first_operator.ensure(database, tmp_path, 1000.0).read_text().strip())


def test_one_whose_token_is_revoked_pauses_with_a_reason(team: Team) -> None:
    token = team.token()
    schedule = team.schedule(token["token"])
    assert team.run(schedule) == ("submitted", "submitted")
    submitted = team.ask(team.operator, "GET", "/v1/jobs")["items"][0]
    (entry, *_) = team.ask(team.operator, "GET", "/v1/audit")["items"]
    assert (entry["operation"], entry["object"]) == ("run_schedule", submitted["id"])
    assert (entry["principal"], entry["credential"]) == (f"token:{token['id']}", token["id"])
    assert entry["after"]["schedule"] == schedule
    team.ask(team.operator, "DELETE", f"/v1/tokens/{token['id']}")
    for _ in range(2):
        assert team.run(schedule) == ("paused", f"paused: the token {token['id']} was revoked")
    assert team.events() == ["schedule.paused"]
    jobs = team.ask(team.operator, "GET", "/v1/jobs")["items"]
    assert len(jobs) == 1


def test_one_whose_token_has_expired_pauses(team: Team) -> None:
    token = team.token()
    schedule = team.schedule(token["token"])
    expiry = sa.update(tokens).where(tokens.c.id == token["id"]).values(expires_at=1.5 * HOUR)
    team.owner.world.database.transact(lambda connection: connection.execute(expiry))
    assert team.run(schedule)[0] == "submitted"
    assert team.run(schedule) == ("paused", f"paused: the token {token['id']} has expired")


def test_one_of_a_user_pauses_without_a_role_and_goes_on_with_one(team: Team) -> None:
    """The user had its role as a member of a group of its issuer."""
    schedule = team.schedule(team.operator)

    def work(connection: sa.Connection) -> None:
        of_user = {"submitted_by": "user:corp/ann", "credential": None, "groups": ["group:corp/team"]}
        connection.execute(sa.update(schedules).values(of_user))

    database = team.owner.world.database
    database.transact(work)
    assert team.run(schedule) == (
        "paused",
        "paused: user:corp/ann may not submit to the project vision any more",
    )
    given = GrantRow(
        subject="group:corp/team", project="vision", role=Role.SUBMITTER, created_by="x", created_at=1.0
    )
    database.transact(lambda connection: grants.put(connection, given))
    assert team.run(schedule)[0] == "submitted"
    database.transact(lambda connection: grants.remove(connection, "group:corp/team", "vision"))
    assert team.run(schedule)[0] == "paused"
    assert team.events() == ["schedule.paused", "schedule.resumed", "schedule.paused"]


def test_one_that_the_release_before_stored_goes_on_as_before(team: Team) -> None:
    """That release wrote neither tokens nor groups: of a user without groups nothing is known to be lost."""
    token = team.token()
    schedule = team.schedule(token["token"])
    database = team.owner.world.database

    def as_stored(**columns: Any) -> None:
        # Without the columns that the release did not know, as an insert of it leaves them.
        kept = [one.name for one in schedules.columns if one.name not in ("credential", "groups")]

        def work(connection: sa.Connection) -> None:
            row = {**connection.execute(sa.select(schedules)).one()._mapping, **columns}
            connection.execute(sa.text("DELETE FROM schedule_runs"))
            connection.execute(sa.delete(schedules))
            old = sa.table("schedules", *(sa.column(name, schedules.c[name].type) for name in kept))
            connection.execute(sa.insert(old), {name: row[name] for name in kept})

        database.transact(work)

    as_stored(submitted_by="user:corp/ann")
    assert team.run(schedule)[0] == "submitted"
    as_stored(submitted_by=f"token:{token['id']}")
    assert team.run(schedule)[0] == "submitted"
    team.ask(team.operator, "DELETE", f"/v1/tokens/{token['id']}")
    assert team.run(schedule) == ("paused", f"paused: the token {token['id']} was revoked")


def test_what_its_submitter_no_longer_sees_is_no_reference_of_its_jobs(team: Team) -> None:
    other = team.ask(team.operator, "POST", "/v1/jobs", json={"command": "true", "project": "speech"})["id"]
    token = team.token(grants={"vision": "submitter", "speech": "viewer"}, owner="user:ann")
    after = [{"job": other, "when": "any"}]
    schedule = team.schedule(token["token"], after=after)
    assert team.run(schedule)[0] == "submitted"

    def work(connection: sa.Connection) -> None:
        connection.execute(sa.text("DELETE FROM token_grants WHERE project = 'speech'"))

    team.owner.world.database.transact(work)
    outcome, said = team.run(schedule)
    assert (outcome, f"there is no job {other}" in said) == ("refused", True)


def test_one_from_before_authentication_goes_on(team: Team) -> None:
    schedule = team.schedule(team.operator)

    def work(connection: sa.Connection) -> None:
        connection.execute(sa.update(schedules).values(submitted_by=None, credential=None))

    team.owner.world.database.transact(work)
    assert team.owner.world.database.query(lambda c: due(c, HOUR, 10)) == [schedule]
    assert team.run(schedule)[0] == "submitted"
