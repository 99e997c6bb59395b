"""Tokens, roles and the audit, on SQLite and on PostgreSQL."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from service.api import sse
from service.api.authentication import ApiTokens
from service.api.problem_documents import ApiProblem
from service.identities.permissions import PERMISSIONS
from service.identities.principals import Access, Principal
from service.identities.tokens import read
from service.queue.lifecycle import NodeDecision
from service.queue.rows import NodeRow
from service.store import audit, bundles, grants, jobs, nodes, scoped
from service.store import tokens as token_store
from service.store.database import Database
from service.store.ids import new_id
from service.store.tables import audit as audit_table
from service.store.tables import drills
from service.store.tables import tokens as token_table
from tests.contracts.service.test_service_plans import body as plan
from tests.contracts.service.test_who_may_do_what import RULES
from tests.contracts.service.two_projects import COMMAND, Service, packed, routes_of, service_of, two_projects
from tests.statements import statements

pytestmark = pytest.mark.postgresql_in_soak


@pytest.fixture
def service(database: Database, database_url: str, tmp_path: Path) -> Iterator[Service]:
    with service_of(database, database_url, tmp_path / "home") as made:
        yield made


def refused(answer: Any, status: int, code: str) -> str:
    """What a refusal says."""
    assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text
    return str(answer.json()["detail"])


class TestProofs:
    def test_without_one_nothing_is_answered_but_the_signs_of_life(self, service: Service) -> None:
        for path in ("/v1/jobs", "/v1/nothing", "/metrics", "/v1/jobs/%00"):
            answer = service.ask(None, "GET", path)
            refused(answer, 401, "authentication_required")
            assert answer.headers["www-authenticate"] == 'Bearer realm="remora"'
        # The page holds no data, and asks for a token itself.
        for path in ("/healthz", "/"):
            assert service.ask(None, "GET", path).status_code == 200

    @pytest.mark.parametrize(
        "value",
        [
            "Bearer",
            "Bearer x",
            "Basic eDp5",
            "Bearer rmr_x_y",
            "bearer rmr_tok_{id}_{other}",
            "Bearer a b",
            "\u00ff",
        ],
    )
    def test_what_proves_nothing_is_one_sentence(self, service: Service, value: str) -> None:
        found = read(service.operator)
        assert found is not None
        text = value.replace("tok_{id}", found.token_id).replace("{other}", "A" * 43)
        answer = service.ask(None, "GET", "/v1/jobs", headers={"Authorization": text.encode("latin-1")})
        refused(answer, 401, "invalid_token")
        assert 'error="invalid_token"' in answer.headers["www-authenticate"]
        assert "A" * 43 not in answer.text

    def test_two_of_them_are_refused(self, service: Service) -> None:
        headers = [("Authorization", "Bearer a"), ("Authorization", f"Bearer {service.operator}")]
        answer = service.client.get("/v1/jobs", headers=headers)
        refused(answer, 400, "bad_request")

    def test_only_who_proves_the_secret_learns_that_it_expired_or_was_revoked(self, service: Service) -> None:
        text = service.token({"red": "viewer"})
        presented = read(text)
        assert presented is not None
        wrong = f"rmr_{presented.token_id}_{'A' * 43}"
        service.made("DELETE", f"/v1/tokens/{presented.token_id}")
        refused(service.ask(text, "GET", "/v1/jobs"), 401, "token_revoked")
        refused(service.ask(wrong, "GET", "/v1/jobs"), 401, "invalid_token")
        brief = service.token({"red": "viewer"}, expires_in_s=1e-6)
        refused(service.ask(brief, "GET", "/v1/jobs"), 401, "token_expired")

    def test_only_the_digest_is_stored(self, service: Service, database: Database) -> None:
        text = service.token({"red": "viewer"})
        # It may have an underscore itself.
        secret = text.split("_", 3)[3]
        rows = database.query(lambda c: c.execute(sa.select(token_table)).all())
        assert secret not in repr(rows)
        assert secret not in repr(service.audit())
        assert "rmr_" not in repr(service.made("GET", "/v1/tokens"))

    def test_its_use_is_noted_once_a_minute(self, service: Service, database: Database) -> None:
        text = service.token({"red": "viewer"})
        presented = read(text)
        assert presented is not None

        async def uses() -> tuple[float | None, ...]:
            seen: list[float | None] = []
            for now in (2e9, 2e9 + 50, 2e9 + 70):
                proofs = ApiTokens(database, lambda at=now: at)  # type: ignore[misc]
                await proofs.authenticate({"authorization": f"Bearer {text}"})
                await proofs.close()
                row = database.query(lambda c: token_store.get(c, presented.token_id))
                seen.append(row.last_used_at if row is not None else None)
            return tuple(seen)

        database.transact(lambda c: c.execute(sa.update(token_table).values(expires_at=None)))
        assert asyncio.run(uses()) == (2e9, 2e9, 2e9 + 70)


class TestRevocation:
    def test_a_token_that_was_good_is_believed_for_seconds_and_costs_no_statement(
        self, service: Service, database: Database, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        text = service.token({"red": "viewer"})
        presented = read(text)
        assert presented is not None
        now = [1000.0]
        monkeypatch.setattr("service.api.authentication.time.monotonic", lambda: now[0])
        proofs = ApiTokens(database, lambda: 1_700_000_000.0)

        async def known() -> str:
            try:
                found = await proofs.authenticate({"authorization": f"Bearer {text}"})
                await proofs.close()
            except ApiProblem as problem:
                return problem.code
            return "" if found is None else found.id

        async def all_of_it() -> None:
            with statements(database) as sent:
                assert await known() == f"token:{presented.token_id}"
            assert (
                len([one for one in sent if " FROM " in one.replace("\n", " ") and one.startswith("SELECT")])
                == 1
            )
            with statements(database) as sent:
                assert await known() == f"token:{presented.token_id}"
            assert sent == []
            database.transact(lambda c: token_store.revoke(c, presented.token_id, 1_700_000_000.0))
            assert await known() == f"token:{presented.token_id}"
            now[0] += 3.01
            assert await known() == "token_revoked"

        asyncio.run(all_of_it())

    def test_a_stream_ends_when_its_token_is_revoked(
        self, service: Service, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sse, "ALLOWED_S", 0.01)
        monkeypatch.setattr("service.api.authentication.REMEMBERED_S", 0.0)
        job_id = service.submit("red")
        text = service.token({"red": "viewer"})
        presented = read(text)
        assert presented is not None
        context = service.client.app.state.remora  # type: ignore[attr-defined]
        seen = []

        original = context.feed.changed

        async def changed(*arguments: Any) -> bool:
            # The stream has sent what there is, and waits for news of a job that never ends.
            token = presented.token_id
            await context.database.write(lambda c: token_store.revoke(c, token, 1.0))
            seen.append("waits")
            return bool(await original(*arguments))

        monkeypatch.setattr(context.feed, "changed", changed)
        headers = {"Accept": "text/event-stream"}
        answer = service.ask(text, "GET", f"/v1/jobs/{job_id}/events", headers=headers)
        assert answer.status_code == 200
        assert "job.queued" in answer.text
        assert "event: end" not in answer.text
        assert seen == ["waits"]


class TestGiving:
    def test_admins_give_roles_of_their_projects_and_nothing_more(self, service: Service) -> None:
        admin = service.token({"red": "admin", "blue": "submitter"})

        def give(grants: dict[str, str], **fields: Any) -> int:
            body = {"name": "x", "grants": grants, **fields}
            return int(service.ask(admin, "POST", "/v1/tokens", json=body).status_code)

        assert give({"red": "admin"}) == 201
        assert give({"red": "viewer", "blue": "viewer"}) == 403
        assert give({"*": "operator"}) == 403
        assert give({"red": "operator"}) == 422
        assert give({"*": "viewer"}) == 422
        assert give({}) == 422
        assert give({"red": "viewer"}, owner="user:someone") == 403
        assert give({"red": "viewer"}, owner="token:tok_1") == 422
        assert give({"RED": "viewer"}) == 422

    def test_a_token_cannot_make_others_for_itself_that_live_longer(self, service: Service) -> None:
        text = service.token({"red": "submitter"})
        mine = service.ask(text, "GET", "/v1/whoami").json()["id"]
        body = {"name": "x", "grants": {"red": "submitter"}, "owner": mine}
        assert service.ask(text, "POST", "/v1/tokens", json=body).status_code == 422
        assert service.ask(text, "POST", "/v1/tokens", json={**body, "owner": None}).status_code == 403

    def test_all_tokens_of_a_user_are_one_principal(self, service: Service) -> None:
        first, second = (service.token({"red": "submitter"}, owner="user:ada") for _ in range(2))
        other = service.token({"red": "submitter"})
        body = {"command": COMMAND, "project": "red"}
        job = service.ask(first, "POST", "/v1/jobs", json=body).json()
        assert job["submitted_by"] == "user:ada"
        service.made("POST", f"/v1/jobs/{job['id']}/cancel")
        refused(service.ask(other, "DELETE", f"/v1/jobs/{job['id']}"), 403, "forbidden")
        assert service.ask(second, "DELETE", f"/v1/jobs/{job['id']}").status_code == 202

    def test_a_token_with_roles_elsewhere_is_not_an_admins_to_revoke(self, service: Service) -> None:
        text = service.token({"red": "viewer", "blue": "viewer"})
        admin = service.token({"red": "admin"})
        presented = read(text)
        assert presented is not None
        refused(service.ask(admin, "DELETE", f"/v1/tokens/{presented.token_id}"), 403, "forbidden")
        shown = service.ask(admin, "GET", "/v1/tokens").json()["items"]
        assert {"red": "viewer"} in [one["grants"] for one in shown], "its role in blue is not shown"

    def test_roles_of_users_are_replaced_and_removed(self, service: Service, database: Database) -> None:
        path = "/v1/grants/red/user:ada@example.org"
        service.made("PUT", path, json={"role": "viewer"})
        service.made("PUT", path, json={"role": "admin"})
        service.made("PUT", "/v1/grants/blue/group:all", json={"role": "viewer"})
        first = service.made("GET", "/v1/grants", params={"limit": 1})
        second = service.made("GET", "/v1/grants", params={"limit": 1, "cursor": first["next_cursor"]})
        found = [(one["subject"], one["role"]) for page in (first, second) for one in page["items"]]
        assert found == [("group:all", "viewer"), ("user:ada@example.org", "admin")]
        service.made("DELETE", path)
        refused(service.ask(service.operator, "DELETE", path), 404, "grant_not_found")
        for path in ("/v1/grants/red/token:x", "/v1/grants/red/user:%20a", "/v1/grants/RED/user:a"):
            answer = service.ask(service.operator, "PUT", path, json={"role": "viewer"})
            refused(answer, 422, "invalid_parameter")

    def test_a_user_has_the_highest_of_its_own_roles_and_its_groups(
        self, service: Service, database: Database
    ) -> None:
        for subject, project, role in (
            ("user:ada", "red", "viewer"),
            ("group:one", "red", "admin"),
            ("group:two", "red", "submitter"),
            ("group:two", "blue", "viewer"),
            ("group:three", "green", "admin"),
            ("user:ada", "*", "operator"),
        ):
            service.made("PUT", f"/v1/grants/{project}/{subject}", json={"role": role})
        subjects = ["user:ada", "group:one", "group:two"]
        found = database.query(lambda c: grants.of_subjects(c, subjects))
        assert found == {"red": "admin", "blue": "viewer", "*": "operator"}

    def test_tokens_are_forgotten_long_after_their_end(self, service: Service, database: Database) -> None:
        kept, revoked, expired = (service.token({"red": "viewer"}) for _ in range(3))
        ids = [found.token_id for text in (kept, revoked, expired) if (found := read(text)) is not None]
        database.transact(lambda c: token_store.revoke(c, ids[1], 1000.0))
        ends = sa.update(token_table).where(token_table.c.id == ids[2]).values(expires_at=1000.0)
        database.transact(lambda c: c.execute(ends))
        assert database.transact(lambda c: token_store.forget(c, 1000.0, 10)) == 0
        assert database.transact(lambda c: token_store.forget(c, 1000.1, 10)) == 2
        left = {one["id"] for one in service.made("GET", "/v1/tokens")["items"]}
        assert left & set(ids) == {ids[0]}


class TestWallsBetweenProjects:
    def test_two_principals_may_use_the_same_key(self, service: Service) -> None:
        first, second = (service.token({"red": "submitter"}) for _ in range(2))
        body, key = {"command": COMMAND, "project": "red"}, {"Idempotency-Key": "nightly"}
        answers = [
            service.ask(who, "POST", "/v1/jobs", json=body, headers=key) for who in (first, second, first)
        ]
        ids = [one.json()["id"] for one in answers]
        assert ids[0] != ids[1]
        assert ids[0] == ids[2]
        assert answers[2].headers["idempotency-replayed"] == "true"
        schedule = {**body, "schedule": {"cron": "0 3 * * *"}}
        made = [
            service.ask(who, "POST", "/v1/schedules", json=schedule, headers=key).json()["id"]
            for who in (first, second, first)
        ]
        assert made[0] != made[1]
        assert made[0] == made[2]

    def test_a_bundle_that_others_uploaded_is_there_after_its_own_upload(self, service: Service) -> None:
        red, blue = (service.token({project: "submitter"}) for project in ("red", "blue"))
        digest, content = packed("# shared by chance")
        path = f"/v1/bundles/{digest}"
        assert service.ask(red, "PUT", path, content=content).status_code == 201
        assert service.ask(red, "PUT", path, content=content).status_code == 200
        job = {"command": COMMAND, "code": digest}
        assert service.ask(blue, "HEAD", path).status_code == 404
        refused(service.ask(blue, "GET", path), 404, "bundle_not_found")
        refused(
            service.ask(blue, "POST", "/v1/jobs", json={**job, "project": "blue"}), 422, "bundle_not_found"
        )
        refused(service.ask(blue, "PUT", path, content=b"nothing"), 422, "bundle_invalid")
        assert service.ask(blue, "PUT", path, content=content).status_code == 201
        assert service.ask(blue, "POST", "/v1/jobs", json={**job, "project": "blue"}).status_code == 201
        # Another principal of the project has what a job there uses.
        other = service.token({"blue": "viewer"})
        assert service.ask(other, "GET", path).content == content

    def test_a_forgotten_bundle_is_held_by_none(self, service: Service, database: Database) -> None:
        red = service.token({"red": "submitter"})
        digest, content = packed("# short")
        service.ask(red, "PUT", f"/v1/bundles/{digest}", content=content)
        principal = Principal(id=service.ask(red, "GET", "/v1/whoami").json()["id"], name="red")
        held = Access(principal)
        assert database.query(lambda c: bundles.is_held(c, held, digest))
        assert database.transact(lambda c: bundles.choose(c, 9e9, 9e9, 10)) == [digest]
        database.transact(lambda c: bundles.forget(c, digest))
        assert not database.query(lambda c: bundles.is_held(c, held, digest))

    def test_a_dry_run_shows_nothing_of_jobs_of_other_projects(self, service: Service) -> None:
        ended, absent = service.submit("blue"), f"job_{'0' * 26}"
        service.made("POST", f"/v1/jobs/{ended}/cancel")

        def problems(who: str, job_id: str) -> list[tuple[str, str]]:
            body = {"command": COMMAND, "project": "red", "after": [{"job": job_id}]}
            answer = service.ask(who, "POST", "/v1/jobs", json=body, params={"dry_run": "true"})
            assert answer.status_code == 200, answer.text
            return [(one["field"], one["message"].replace(job_id, "ID")) for one in answer.json()["problems"]]

        red = service.token({"red": "submitter"})
        assert problems(red, ended) == problems(red, absent) == [("after.0.job", "there is no job ID")]
        ((field, said),) = problems(service.token({"red": "submitter", "blue": "viewer"}), ended)
        assert (field, "cancelled" in said) == ("after.0", True)

    @pytest.mark.parametrize("kind", ["jobs", "arrays", "schedules", "clone"])
    def test_jobs_of_other_projects_cannot_be_named(self, service: Service, kind: str) -> None:
        blue = service.submit("blue")
        red = service.token({"red": "submitter"})
        mine = service.submit("red")
        more = {
            "arrays": {"array": {"grid": {"lr": [1]}}},
            "schedules": {"schedule": {"cron": "0 3 * * *"}},
        }
        for named in (
            {"after": [{"job": blue}]},
            {"inputs": {"data": {"job": blue, "output": "weights"}}},
        ):
            body: dict[str, Any] = {"command": COMMAND, "project": "red", **more.get(kind, {}), **named}
            path = f"/v1/{kind}"
            if kind == "clone":
                path, body = f"/v1/jobs/{mine}/clone", {"set": named}
            answer = service.ask(red, "POST", path, json=body)
            assert refused(answer, 422, "invalid_spec").endswith(f"there is no job {blue}")
            unknown = answer.text.replace(blue, "job_01M8ASHZMRTG4V0C3A0EVE8X44")
            other = {**body, **_renamed(named, blue)} if kind != "clone" else {"set": _renamed(named, blue)}
            again = service.ask(red, "POST", path, json=other)
            assert _without_id(again.text) == _without_id(unknown), "as for a job that never was"

    def test_a_clone_into_another_project_needs_a_role_there(self, service: Service) -> None:
        job_id = service.submit("red")
        who = service.token({"red": "viewer", "blue": "submitter"})
        answer = service.ask(who, "POST", f"/v1/jobs/{job_id}/clone", json={"set": {"project": "blue"}})
        assert (answer.status_code, answer.json()["project"]) == (201, "blue")
        answer = service.ask(who, "POST", f"/v1/jobs/{job_id}/clone", json={"set": {}})
        refused(answer, 403, "forbidden")

    def test_the_ledger_has_what_ones_own_projects_pay(self, service: Service, database: Database) -> None:
        """A node that was bought for a job of each project, and one that the cluster pays."""
        mine, other = service.submit("red"), service.submit("blue")
        for bought_for in (mine, other, None):
            row = NodeRow(
                id=new_id("node", 1000.0), pool="cpu", created_at=0.0, price_per_hour=3.6, offering="D4/1/spot",
                bought_for=bought_for, launched_at=100.0, ready_at=200.0, ended_at=1100.0,
            )  # fmt: skip
            database.transact(lambda c, row=row: nodes.insert_node(c, NodeDecision(row, ())))

        def lines(who: str) -> set[tuple[str, str]]:
            answer = service.ask(who, "GET", "/v1/ledger?since=0&until=5000").json()
            assert answer["cost"] == pytest.approx(sum(one["cost"] for one in answer["lines"]))
            return {(one["payer"], one["name"]) for one in answer["lines"]}

        red = {("job", mine), ("project", "red")}
        assert lines(service.token({"red": "viewer"})) == red
        assert lines(service.token({"green": "admin"})) == set()
        assert lines(service.operator) == red | {("job", other), ("project", "blue"), ("cluster", "")}

        def costs(
            who: str, path: str = "/v1/costs?since=0&until=5000&by=project,job"
        ) -> set[tuple[str, str]]:
            answer = service.ask(who, "GET", path).json()
            assert answer["cost"] == pytest.approx(sum(one["cost"] for one in answer["lines"]))
            return {(one["of"]["project"], one["of"]["job"]) for one in answer["lines"]}

        submitter = service.token({"red": "submitter", "blue": "viewer"})
        assert costs(submitter) == {("red", mine), ("red", "")}
        assert costs(service.operator) >= {("red", mine), ("blue", other), ("", "")}
        assert service.ask(submitter, "GET", "/v1/goodput?since=0&until=5000").json()[
            "cost"
        ] == pytest.approx(1.0)
        refused(
            service.ask(service.token({"red": "viewer"}), "GET", "/v1/costs?since=0&until=5000"),
            403,
            "forbidden",
        )
        for path in ("/v1/costs?since=0&until=5000&job=", "/v1/goodput?job="):
            refused(service.ask(submitter, "GET", path + other), 403, "forbidden")
            red_only = service.token({"red": "submitter"})
            refused(service.ask(red_only, "GET", path + other), 404, "job_not_found")


def _renamed(named: dict[str, Any], job_id: str) -> dict[str, Any]:
    renamed: dict[str, Any] = json.loads(json.dumps(named).replace(job_id, "job_01M8ASHZMRTG4V0C3A0EVE8X44"))
    return renamed


def _without_id(text: str) -> str:
    return text.partition('"request_id"')[0]


MAKES = (
    "clone_job create_alert create_token drill_node drill_pool open_shell prune put_bundle put_grant"
    " request_profile"
)
UNMAKES = "close_shell delete_alert delete_schedule delete_secret remove_grant revoke_token"
#: Of which the audit says not both what was before and what is after.
FACTS: dict[str, set[str]] = {
    **{
        key: {"after"}
        for key in [*MAKES.split(), "set_secret", "submit_array", "submit_job", "submit_schedule"]
    },
    **{key: {"before"} for key in UNMAKES.split()},
    # Its row says that it has begun.
    "rotate_secrets": set(),
    # The bearer of its token is all that it says.
    "end_session": set(),
    # It changes nothing: a notification says what it is for.
    "test_alert": set(),
}


class TestAudit:
    def test_every_operation_that_writes_leaves_one_row(
        self, database: Database, database_url: str, tmp_path: Path
    ) -> None:
        with two_projects(database, database_url, tmp_path / "home") as service:
            routes = routes_of(service.client)
            writing = {str(one.operation_id) for one in routes if not one.methods <= {"GET", "HEAD"}}
            # A replay is a process: the test below.
            for operation in sorted(writing - {"create_plan", "cancel_plan"}):
                rule, objects = RULES[operation], service.objects["red"]
                # One drill at a time.
                database.transact(lambda c: c.execute(sa.update(drills).values(ended_at=1.0)))
                path = rule.fresh(service, objects) if rule.fresh is not None else rule.path
                path = path.format(**vars(objects), node=service.node)
                options: dict[str, Any] = {} if rule.body is None else {"json": rule.body(objects)}
                if rule.content is not None:
                    options["content"] = rule.content
                before = len(service.audit())
                answer = service.ask(service.operator, rule.method, path, **options)
                assert answer.status_code < 300, f"{operation}: {answer.text}"
                entries = service.audit()[: len(service.audit()) - before]
                wanted = [] if PERMISSIONS[operation].is_read else [operation]
                assert [one["operation"] for one in entries] == wanted
                facts = [{key for key in ("before", "after") if one[key] is not None} for one in entries]
                assert facts == [FACTS.get(operation, {"before", "after"}) for _ in wanted], operation
            drilled = next(one for one in service.audit() if one["operation"] == "drill_pool")
            assert drilled["after"]["nodes"] == [service.node]

    @pytest.mark.soak
    def test_a_replay_leaves_one_row_when_it_begins_and_one_when_it_is_cancelled(
        self, service: Service
    ) -> None:
        body = plan("prefer-spot.yaml", seed=3)
        before = len(service.audit())
        answer = service.ask(service.operator, "POST", "/v1/plans", json=body)
        assert answer.status_code == 202, answer.text
        path = f"/v1/plans/{answer.json()['id']}"
        service.made("DELETE", path)
        entries = service.audit()
        found = [(one["operation"], one["object"]) for one in entries[: len(entries) - before]]
        assert found == [("cancel_plan", answer.json()["id"]), ("create_plan", answer.json()["id"])]

    def test_a_row_says_who_when_from_where_and_what(self, service: Service) -> None:
        job_id = service.submit("red")
        text = service.token({"red": "submitter"})
        headers = {"User-Agent": "a program" + "x" * 500, "X-Request-Id": "r-1"}
        service.ask(text, "POST", f"/v1/jobs/{job_id}/resize", json={"max": 4}, headers=headers)
        (entry, *_) = service.audit()
        mine = service.ask(text, "GET", "/v1/whoami").json()
        assert (entry["principal"], entry["credential"]) == (mine["id"], mine["token_id"])
        assert (entry["operation"], entry["project"], entry["object"]) == ("resize_job", "red", job_id)
        assert (entry["before"], entry["after"]) == ({"workers": [1, 1]}, {"workers": [1, 4]})
        assert (entry["address"], entry["request_id"], entry["outcome"]) == ("testclient", "r-1", "done")
        assert entry["agent"].startswith("a program")
        assert len(entry["agent"]) <= 200

    def test_what_is_refused_for_want_of_a_role_is_noted_and_other_refusals_are_not(
        self, service: Service
    ) -> None:
        job_id, other = service.submit("red"), service.submit("blue")
        viewer = service.token({"red": "viewer"})
        before = len(service.audit())
        assert service.ask(viewer, "POST", f"/v1/jobs/{job_id}/cancel").status_code == 403
        assert service.ask(viewer, "POST", f"/v1/jobs/{other}/cancel").status_code == 404
        assert service.ask(viewer, "POST", "/v1/prune").status_code == 403
        assert service.ask(viewer, "GET", "/v1/policies").status_code == 403
        assert service.ask(viewer, "POST", "/v1/policies/check", json={}).status_code == 403
        entries = service.audit()
        found = [
            (one["operation"], one["object"], one["outcome"]) for one in entries[: len(entries) - before]
        ]
        assert found == [("prune", None, "denied"), ("cancel_job", job_id, "denied")]

    def test_a_write_that_fails_leaves_none_and_a_row_that_fails_undoes_the_write(
        self, service: Service, database: Database, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ended = service.submit("red")
        service.made("POST", f"/v1/jobs/{ended}/cancel")
        job_id = service.submit("red")
        before = len(service.audit())
        refused(service.ask(service.operator, "POST", f"/v1/jobs/{ended}/pause"), 409, "not_changeable")
        assert len(service.audit()) == before

        def broken(*_: object) -> None:
            raise OSError(5, "the disk is broken")

        monkeypatch.setattr(audit, "append", broken)
        refused(service.ask(service.operator, "POST", f"/v1/jobs/{job_id}/cancel"), 500, "internal_error")
        row = database.query(lambda c: jobs.get_job(c, job_id))
        assert row is not None
        assert row.cancel_requested_at is None

    def test_admins_read_that_of_their_projects(self, service: Service) -> None:
        admin = service.token({"red": "admin"})
        red, blue = service.submit("red"), service.submit("blue")
        found = service.ask(admin, "GET", "/v1/audit").json()["items"]
        assert red in [one["object"] for one in found]
        assert {one["project"] for one in found} == {"red"}
        assert service.ask(admin, "GET", "/v1/audit", params={"project": "blue"}).json()["items"] == []
        mine = service.made("GET", "/v1/audit", params={"project": "blue"})["items"]
        assert [one["object"] for one in mine] == [blue]

    def test_it_is_deleted_by_age_alone(self, service: Service, database: Database) -> None:
        for _ in range(3):
            service.submit("red")
        rows = len(service.audit())
        assert database.transact(lambda c: audit.forget(c, 1.0, 100)) == (0, False)
        assert database.transact(lambda c: audit.forget(c, 9e9, 2)) == (2, True)
        left = database.query(
            lambda c: c.execute(sa.select(sa.func.count()).select_from(audit_table)).scalar()
        )
        assert left == rows - 2


class TestCost:
    def test_a_request_with_a_known_token_sends_the_statements_of_one_without_authentication(
        self, service: Service, database: Database
    ) -> None:
        text = service.token({"red": "viewer", "blue": "viewer"})
        job_id = service.submit("red")
        own: Database = service.client.app.state.remora.database  # type: ignore[attr-defined]
        service.ask(text, "GET", "/v1/whoami")
        for path, most in ((f"/v1/jobs/{job_id}", 1), ("/v1/jobs", 2), (f"/v1/jobs/{job_id}/logs", 2)):
            with statements(own) as sent:
                assert service.ask(text, "GET", path).status_code == 200
            assert (
                len([one for one in sent if " FROM " in one.replace("\n", " ") and one.startswith("SELECT")])
                == most
            ), sent

    @pytest.mark.parametrize("projects", [["red"], ["red", "blue", "green"]])
    def test_lists_are_read_by_the_index_of_projects(
        self, service: Service, database: Database, projects: list[str]
    ) -> None:
        if not database.is_sqlite:
            pytest.skip("PostgreSQL scans a small table whatever its indexes")
        for name in ("jobs", "arrays", "schedules", "audit"):
            table = scoped.jobs_table.metadata.tables[name]
            statement = jobs.newest_of(sa.select(table.c.id), table, projects, [], 100)
            text = str(statement.compile(database.engine, compile_kwargs={"literal_binds": True}))
            plan = database.query(lambda c, text=text: c.execute(sa.text(f"EXPLAIN QUERY PLAN {text}")).all())
            steps = [str(row[3]) for row in plan]
            assert any(f"ix_{name}_project_id (project=?)" in step for step in steps), steps
            assert not any(step.startswith(f"SCAN {name}") for step in steps), steps
