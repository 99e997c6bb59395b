"""Requests with tokens of an OpenID Connect issuer that really answers: roles by grants to users and to groups."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from fastapi.testclient import TestClient

from examples.openid_issuer import Issuer, serve_issuer
from remora.roles import EVERYWHERE, Role
from service.api.app import create_app
from service.api.context import Context
from service.openid.issuers import Issuer as IssuerSettings
from service.queue import lifecycle
from service.settings import Settings
from service.store import grants, jobs
from service.store.database import Database
from service.store.grants import GrantRow

pytestmark = pytest.mark.postgresql_in_soak

SPEC = {"command": "python train.py"}


@pytest.fixture(scope="module")
def issuer() -> Iterator[Issuer]:
    with serve_issuer() as serving:
        yield serving


@pytest.fixture
def settings(database_url: str, tmp_path: Path, issuer: Issuer) -> Settings:
    trusted = {"corp": IssuerSettings(issuer=issuer.url, audience="remora", client_id="cli")}
    return Settings(
        home=tmp_path / "home",
        database_url=database_url,
        authentication="required",
        openid=trusted,
        max_requests_per_s=3.0,
    )


@pytest.fixture
def client(settings: Settings) -> Iterator[TestClient]:
    with TestClient(create_app(settings), base_url="http://127.0.0.1") as opened:
        yield opened


@pytest.fixture
def grant(client: TestClient, database: Database) -> Callable[..., None]:
    def give(subject: str, project: str, role: Role) -> None:
        row = GrantRow(subject=subject, project=project, role=role, created_by="test", created_at=1000.0)
        database.transact(lambda connection: grants.put(connection, row))

    return give


def shown(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def test_a_user_is_known_and_sees_nothing_without_a_grant(client: TestClient, issuer: Issuer) -> None:
    headers = shown(issuer.token("alice", ("ml",)))
    me = client.get("/v1/whoami", headers=headers).json()
    assert (me["id"], me["name"]) == ("user:corp/alice", "alice@example.com")
    assert client.get("/v1/jobs", headers=headers).json()["items"] == []
    refused = client.post("/v1/jobs", headers=headers, json=SPEC | {"project": "vision"})
    assert refused.status_code == 403


def test_roles_of_groups_and_of_the_user_add_up(
    client: TestClient, issuer: Issuer, grant: Callable[..., None]
) -> None:
    grant("group:corp/ml", "vision", Role.VIEWER)
    grant("user:corp/alice", "vision", Role.SUBMITTER)
    grant("group:corp/ops", EVERYWHERE, Role.OPERATOR)
    made = client.post("/v1/jobs", headers=shown(issuer.token("alice")), json=SPEC | {"project": "vision"})
    assert made.status_code == 201
    job = f"/v1/jobs/{made.json()['id']}"
    member, operator, stranger = (
        shown(issuer.token(name, groups))
        for name, groups in (("bob", ("ml",)), ("olga", ("ops",)), ("eve", ("sales",)))
    )
    assert [client.get(job, headers=one).status_code for one in (member, operator, stranger)] == [
        200,
        200,
        404,
    ]
    assert client.post(f"{job}/cancel", headers=member).status_code == 403
    assert client.get("/v1/policies", headers=operator).status_code == 200


@pytest.mark.parametrize(
    ("claims", "sentence"),
    [
        ({"aud": "another"}, "the token is for another audience"),
        ({"exp": 1000, "iat": 900}, "the token has expired"),
        ({"iss": "https://elsewhere.example"}, "the token is of an issuer that this service does not trust"),
    ],
)
def test_a_token_that_proves_nothing_is_refused_with_the_reason(
    client: TestClient, issuer: Issuer, claims: dict[str, Any], sentence: str
) -> None:
    answer = client.get("/v1/jobs", headers=shown(issuer.token("alice", **claims)))
    assert (answer.status_code, answer.json()["code"], answer.json()["detail"]) == (
        401,
        "invalid_token",
        sentence,
    )
    assert sentence in answer.headers["www-authenticate"]


def test_an_issuer_that_cannot_be_reached_is_no_fault_of_the_user(settings: Settings) -> None:
    absent = Issuer("http://127.0.0.1:1")
    trusting = settings.model_copy(
        update={"openid": {"corp": IssuerSettings(issuer=absent.url, audience="remora")}}
    )
    with TestClient(create_app(trusting), base_url="http://127.0.0.1") as client:
        answer = client.get("/v1/jobs", headers=shown(absent.token("alice")))
    assert (answer.status_code, answer.json()["code"]) == (503, "issuer_unreachable")
    assert answer.headers["retry-after"] == "10"


def test_programs_ask_without_a_token_how_people_sign_in(client: TestClient, issuer: Issuer) -> None:
    answer = client.get("/v1/sign-in").json()
    assert answer["is_required"] is True
    assert answer["issuers"] == [
        {
            "name": "corp",
            "issuer": issuer.url,
            "client_id": "cli",
            "scopes": ["openid", "profile", "offline_access"],
            "accepts": "access_token",
            "pages": False,
        }
    ]


def test_a_page_has_a_session_whose_writes_need_what_only_it_has_read(
    client: TestClient, issuer: Issuer, grant: Callable[..., None]
) -> None:
    grant("user:corp/alice", "vision", Role.SUBMITTER)
    begun = client.post("/v1/session", headers=shown(issuer.token("alice")))
    assert begun.status_code == 201
    cookie = begun.headers["set-cookie"]
    assert all(part in cookie for part in ("HttpOnly", "SameSite=strict", "Path=/"))
    assert client.get("/v1/whoami").json()["id"] == "user:corp/alice"
    assert client.get("/v1/session").json() == begun.json()
    spec = SPEC | {"project": "vision"}
    for headers in ({}, {"X-CSRF-Token": "guessed"}):
        assert client.post("/v1/jobs", json=spec, headers=headers).json()["code"] == "csrf_token_missing"
    known = {"X-CSRF-Token": begun.json()["csrf_token"]}
    assert client.post("/v1/jobs", json=spec, headers=known).status_code == 201
    assert client.delete("/v1/session", headers=known).status_code == 204
    assert client.get("/v1/whoami").status_code == 401


def test_a_stream_of_a_session_goes_on_as_long_as_its_token_is_good(
    client: TestClient, issuer: Issuer, grant: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the sender may still read is asked by the cookie, too: the stream ends with its job, and not before."""
    monkeypatch.setattr("service.api.sse.ALLOWED_S", 0.01)
    grant("user:corp/alice", "vision", Role.SUBMITTER)
    begun = client.post("/v1/session", headers=shown(issuer.token("alice"))).json()
    known = {"X-CSRF-Token": begun["csrf_token"]}
    job = f"/v1/jobs/{client.post('/v1/jobs', json=SPEC | {'project': 'vision'}, headers=known).json()['id']}"
    context = client.app.state.remora  # type: ignore[attr-defined]
    looks: list[None] = []
    ending: list[asyncio.Task[None]] = []
    original = context.identities.authenticate

    async def counted(headers: dict[str, str]) -> Any:
        looks.append(None)
        if len(looks) == 5:
            ending.append(asyncio.create_task(end_of(context, job.rpartition("/")[2])))
        return await original(headers)

    monkeypatch.setattr(context.identities, "authenticate", counted)
    answer = client.get(f"{job}/events", headers={"Accept": "text/event-stream"})
    assert "event: end" in answer.text
    assert len(looks) >= 5


async def end_of(context: Context, job_id: str) -> None:
    """The job is cancelled, as by another program of its owner."""

    def work(connection: sa.Connection) -> None:
        row = jobs.lock_job(connection, job_id)
        assert row is not None
        jobs.save(connection, row, lifecycle.request_cancel(row, 2000.0))

    await context.database.write(work)


def test_only_operators_name_secrets_of_a_key_vault(
    client: TestClient, issuer: Issuer, grant: Callable[..., None]
) -> None:
    grant("user:corp/alice", "vision", Role.ADMIN)
    grant("group:corp/ops", EVERYWHERE, Role.OPERATOR)
    address = "https://team.vault.azure.net/secrets/db"
    path, body = "/v1/projects/vision/secrets/DB", {"key_vault": address}
    assert client.put(path, headers=shown(issuer.token("alice")), json=body).json()["code"] == "forbidden"
    operator = shown(issuer.token("olga", ("ops",)))
    assert client.put(path, headers=operator, json=body).status_code == 201
    newest = client.get("/v1/audit", headers=operator).json()["items"][0]
    assert newest["after"] == {"version": 1, "key_vault": address}


def test_denials_in_a_row_are_noted_a_few_times(
    client: TestClient, issuer: Issuer, grant: Callable[..., None]
) -> None:
    grant("user:corp/bob", "vision", Role.VIEWER)
    grant("group:corp/ops", EVERYWHERE, Role.OPERATOR)
    operator = shown(issuer.token("olga", ("ops",)))
    headers = shown(issuer.token("bob"))
    made = client.post("/v1/jobs", headers=operator, json=SPEC | {"project": "vision"}).json()["id"]
    refused = [client.post(f"/v1/jobs/{made}/cancel", headers=headers).status_code for _ in range(15)]
    assert set(refused) == {403}
    entries = client.get("/v1/audit", headers=operator, params={"limit": 100}).json()["items"]
    assert len([one for one in entries if one["outcome"] == "denied"]) == 10


def test_an_input_of_a_store_names_no_folder_in_which_jobs_keep_their_files(
    settings: Settings, issuer: Issuer, database: Database
) -> None:
    stores = settings.model_copy(update={"stores": {"archive": str(settings.home / "archive")}})
    row = GrantRow(
        subject="user:corp/alice", project="vision", role=Role.SUBMITTER, created_by="test", created_at=1000.0
    )
    with TestClient(create_app(stores), base_url="http://127.0.0.1") as client:
        database.transact(lambda connection: grants.put(connection, row))
        for path, status in (("jobs", 422), ("jobs/job_1/outputs", 422), ("bundles", 422), ("images", 201)):
            inputs = {"data": {"store": "archive", "path": path}}
            answer = client.post(
                "/v1/jobs",
                headers=shown(issuer.token("alice")),
                json=SPEC | {"project": "vision", "inputs": inputs},
            )
            assert answer.status_code == status, answer.text


def test_a_cookie_that_proves_nothing_is_refused(client: TestClient, issuer: Issuer) -> None:
    for value in ("nonsense", issuer.token("alice", aud="another")):
        client.cookies.set("remora_session", value)
        assert client.get("/v1/sign-in").status_code == 200
        refused = client.get("/v1/whoami")
        assert refused.status_code == 401
        assert "Max-Age=0" in refused.headers["set-cookie"]
    assert client.get("/v1/whoami", headers=shown(issuer.token("alice"))).status_code == 200


def test_a_principal_that_asks_too_often_waits_and_others_do_not(client: TestClient, issuer: Issuer) -> None:
    eager, calm = shown(issuer.token("alice")), shown(issuer.token("bob"))
    answers = [client.get("/v1/whoami", headers=eager) for _ in range(40)]
    limited = [one for one in answers if one.status_code == 429]
    assert limited
    assert {one.json()["code"] for one in limited} == {"too_many_requests"}
    assert all(int(one.headers["retry-after"]) >= 1 for one in limited)
    assert client.get("/v1/whoami", headers=calm).status_code == 200
