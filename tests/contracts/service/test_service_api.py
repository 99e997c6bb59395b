"""What clients rely on, on SQLite and on PostgreSQL; bad input is answered, never a 500."""

from __future__ import annotations

import contextlib
import csv
import hashlib
import io
import json
import os
import tarfile
import time
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import sqlalchemy as sa
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from remora.roles import Role
from remora.views import ClusterLedger, CostReport, GoodputReport, Job, Node, Page, Problem
from service.api.app import create_app
from service.api.hidden_job_ids import ForeignJobs
from service.api.sse import StreamOwner
from service.identities.principals import LOCAL, Access
from service.queue import lifecycle
from service.queue.ledger import Entries, UseRow
from service.queue.lifecycle import NodeDecision
from service.queue.rows import NodeRow
from service.settings import Settings
from service.store import idempotency_keys, jobs, leases, ledger, nodes
from service.store.database import Database
from service.store.idempotency_keys import SavedAnswer
from service.store.ids import new_id
from service.store.ingest import ingest
from service.store.tables import phases
from tests.service_fakes import hold_lease, records

SPEC = {"command": "python train.py", "workers": {"min": 1, "max": 3}}


@pytest.fixture
def settings(database_url: str, tmp_path: Path) -> Settings:
    return Settings(
        home=tmp_path / "home",
        database_url=database_url,
        max_body_bytes=10_000,
        max_bundle_bytes=100_000,
        max_active_jobs=20,
    )


@pytest.fixture
def client(settings: Settings) -> Iterator[TestClient]:
    with TestClient(create_app(settings), base_url="http://127.0.0.1") as opened:
        yield opened


def submit(client: TestClient, **fields: Any) -> Job:
    answer = client.post("/v1/jobs", json={**SPEC, **fields})
    assert answer.status_code == 201, answer.text
    return Job.model_validate_json(answer.content)


def problem(answer: Any, status: int, code: str) -> Problem:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    found = Problem.model_validate_json(answer.content)
    assert (found.status, found.code) == (status, code)
    assert found.request_id == answer.headers["x-request-id"]
    assert "\n" not in found.detail or code == "invalid_spec"
    return found


def stored_at(tmp_path: Path, name: str) -> Path:
    """A folder of a job in the service's own storage."""
    return tmp_path / "home/storage/jobs" / name


def run_attempt(database: Database, job_id: str, *kinds_and_bodies: tuple[str, dict[str, Any]]) -> None:
    """What the controller does when a driver reports these records."""

    def work(connection: sa.Connection) -> None:
        lease = hold_lease(connection)
        job = jobs.lock_job(connection, job_id)
        assert job is not None
        decision = lifecycle.start_attempt(job, new_id("att", 1000.0), 1000.0)
        jobs.save(connection, job, decision)
        assert decision.attempt is not None
        ingest(connection, lease, decision.attempt.id, records(*kinds_and_bodies), 1002.0)

    database.transact(work)


class TestSubmitting:
    def test_a_job_is_accepted_and_found_again(self, client: TestClient) -> None:
        answer = client.post("/v1/jobs", json=SPEC)
        job = Job.model_validate_json(answer.content)
        assert answer.status_code == 201
        assert answer.headers["location"] == f"/v1/jobs/{job.id}"
        assert answer.headers["etag"] == '"1"'
        assert (job.name, job.state, job.spec["command"]) == ("train", "queued", ["python", "train.py"])
        assert Job.model_validate_json(client.get(f"/v1/jobs/{job.id}").content) == job
        unchanged = client.get(f"/v1/jobs/{job.id}", headers={"If-None-Match": '"1"'})
        assert unchanged.status_code == 304

    def test_its_place_in_the_line_is_counted_when_it_is_read(
        self, client: TestClient, database: Database
    ) -> None:
        ids = [submit(client).id for _ in range(3)]

        def report(job_id: str, message: str) -> None:
            def work(connection: sa.Connection) -> None:
                job = jobs.lock_job(connection, job_id)
                assert job is not None
                jobs.save(connection, job, lifecycle.wait(job, "waiting_for_turn", message, 1000.0))

            database.transact(work)

        for job_id, message in zip(
            ids, ("is next: it needs 1 CPU", *["waits in the queue"] * 2), strict=True
        ):
            report(job_id, message)
        before = client.get(f"/v1/jobs/{ids[2]}")
        assert before.json()["message"] == "waits in the queue: 2 jobs are ahead of it"
        listed = {one["id"]: one["message"] for one in client.get("/v1/jobs").json()["items"]}
        assert listed[ids[1]] == "waits in the queue: 1 job is ahead of it"
        known = {"If-None-Match": before.headers["etag"]}
        assert client.get(f"/v1/jobs/{ids[2]}", headers=known).status_code == 304
        client.post(f"/v1/jobs/{ids[1]}/cancel")
        after = client.get(f"/v1/jobs/{ids[2]}", headers=known)
        assert after.json()["message"] == "waits in the queue: 1 job is ahead of it"
        assert after.json()["version"] == before.json()["version"]

    def test_the_same_key_gives_the_same_answer(self, client: TestClient) -> None:
        key = {"Idempotency-Key": "a key"}
        first = client.post("/v1/jobs", json=SPEC, headers=key)
        again = client.post("/v1/jobs", json=dict(reversed(SPEC.items())), headers=key)
        assert (again.status_code, again.content) == (201, first.content)
        assert again.headers["idempotency-replayed"] == "true"
        assert "idempotency-replayed" not in first.headers
        other = client.post("/v1/jobs", json={**SPEC, "name": "other"}, headers=key)
        problem(other, 409, "idempotency_key_reused")
        assert len(client.get("/v1/jobs").json()["items"]) == 1

    def test_a_refused_body_does_not_use_its_key_up(self, client: TestClient) -> None:
        key = {"Idempotency-Key": "k"}
        problem(client.post("/v1/jobs", json={}, headers=key), 422, "invalid_spec")
        assert client.post("/v1/jobs", json=SPEC, headers=key).status_code == 201

    def test_one_key_many_times_at_once_makes_one_job(self, client: TestClient) -> None:
        def post(_: int) -> str:
            return str(client.post("/v1/jobs", json=SPEC, headers={"Idempotency-Key": "k"}).json()["id"])

        with ThreadPoolExecutor(8) as pool:
            assert len(set(pool.map(post, range(16)))) == 1

    def test_of_two_requests_with_one_key_that_do_not_see_each_other_the_second_gets_the_firsts_answer(
        self, client: TestClient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Both look for an answer before one of them has saved it."""
        key = {"Idempotency-Key": "k"}
        first = client.post("/v1/jobs", json=SPEC, headers=key)
        find, looks = idempotency_keys.find_answer, list[str]()

        def find_too_early(connection: sa.Connection, key: str) -> SavedAnswer | None:
            looks.append(key)
            return None if len(looks) == 1 else find(connection, key)

        monkeypatch.setattr(idempotency_keys, "find_answer", find_too_early)
        second = client.post("/v1/jobs", json=SPEC, headers=key)
        assert (second.status_code, second.content, looks) == (201, first.content, ["k", "k"])
        assert second.headers["idempotency-replayed"] == "true"
        assert len(client.get("/v1/jobs").json()["items"]) == 1, "what the second one wrote was taken back"
        looks.clear()
        other = client.post("/v1/jobs", json={**SPEC, "name": "other"}, headers=key)
        problem(other, 409, "idempotency_key_reused")

    @pytest.mark.parametrize("key", ["", "x" * 129, "tab\there"])
    def test_a_bad_key_is_refused(self, client: TestClient, key: str) -> None:
        answer = client.post("/v1/jobs", json=SPEC, headers={"Idempotency-Key": key})
        problem(answer, 422, "invalid_idempotency_key")

    def test_every_wrong_field_is_named(self, client: TestClient) -> None:
        wrong = {"workers": -1, "priorty": 3, "placement": {"fabric": "ethernet"}}
        found = problem(client.post("/v1/jobs", json={**SPEC, **wrong}), 422, "invalid_spec")
        assert {one.field for one in found.errors} == {"workers", "priorty", "placement.fabric"}
        assert "priority" in next(one.message for one in found.errors if one.field == "priorty")

    @pytest.mark.parametrize("path", ["/v1/jobs", "/v1/arrays"])
    def test_an_image_is_refused_where_no_node_can_run_it(
        self, client: TestClient, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, path: str
    ) -> None:
        monkeypatch.setenv("PATH", str(tmp_path))
        spec: dict[str, Any] = {**SPEC, "environment": {"image": "localhost/x"}}
        if path == "/v1/arrays":
            spec["array"] = {"grid": {"a": [1]}}
        found = problem(client.post(path, json=spec), 422, "invalid_spec")
        assert found.detail.startswith(
            "environment.image: the nodes of this cluster have no podman, which runs"
        )

    def test_code_must_be_an_uploaded_bundle(self, client: TestClient) -> None:
        found = problem(client.post("/v1/jobs", json={**SPEC, "code": "."}), 422, "invalid_spec")
        assert "upload it" in found.detail
        digest = "sha256:" + "0" * 64
        problem(client.post("/v1/jobs", json={**SPEC, "code": digest}), 422, "bundle_not_found")

    def test_more_jobs_than_allowed_are_refused_with_the_number(self, client: TestClient) -> None:
        for _ in range(20):
            submit(client)
        found = problem(client.post("/v1/jobs", json=SPEC), 429, "too_many_jobs")
        assert "20" in found.detail


@pytest.mark.postgresql_in_soak
class TestBadBodies:
    @pytest.mark.parametrize(
        ("body", "status", "code"),
        [
            (b"", 400, "invalid_json"),
            (b"{", 400, "invalid_json"),
            (b"\xff\xfe", 400, "invalid_encoding"),
            (b"[]", 422, "invalid_spec"),
            (b"null", 422, "invalid_spec"),
            (b'{"command": NaN}', 400, "invalid_json"),
            (b'{"command": "a", "command": "b"}', 400, "invalid_json"),
            (b"[" * 5000, 400, "invalid_json"),
            (b'{"priority": ' + b"9" * 5000 + b"}", 400, "invalid_json"),
            (b'{"command": "a\\u0000b"}', 422, "invalid_spec"),
            (b'{"command": "\\ud800"}', 422, "invalid_spec"),
            (b'{"\\ud800": 1, "command": "a"}', 422, "invalid_spec"),
            (b'{"command": "a", "priority": 1e400}', 422, "invalid_spec"),
            (b'{"command": "a", "resources": {"memory": 1' + b"0" * 400 + b"}}", 422, "invalid_spec"),
            (b'{"command": "a", "workers": ' + b"9" * 400 + b"}", 422, "invalid_spec"),
            (b'{"command": "a", "retry": {"backoff": ' + b"9" * 400 + b"}}", 422, "invalid_spec"),
            (b'{"command": "' + b"x" * 10_000 + b'"}', 413, "too_large"),
        ],
    )
    def test_each_gets_its_answer(self, client: TestClient, body: bytes, status: int, code: str) -> None:
        answer = client.post("/v1/jobs", content=body, headers={"Content-Type": "application/json"})
        problem(answer, status, code)

    def test_only_json_is_taken(self, client: TestClient) -> None:
        for headers in ({"Content-Type": "text/plain"}, {}):
            answer = client.post("/v1/jobs", content=b"{}", headers=headers)
            problem(answer, 415, "unsupported_media_type")

    def test_a_stream_without_a_length_is_measured_as_it_comes(self, client: TestClient) -> None:
        sent: list[int] = []

        def body() -> Iterator[bytes]:
            for number in range(1000):
                sent.append(number)
                yield b" " * 1000

        answer = client.post("/v1/jobs", content=body(), headers={"Content-Type": "application/json"})
        problem(answer, 413, "too_large")

    junk = st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
        max_leaves=6,
    )
    fields = st.sampled_from(
        [
            *("command", "name", "project", "workers", "resources", "checkpoint", "retry", "limits"),
            *("priority", "environment", "code", "elastic", "after", "x"),
        ]
    )

    @hypothesis_settings(
        max_examples=60,
        deadline=None,
        derandomize=True,
    )
    @given(body=st.dictionaries(fields, junk))
    def test_no_body_makes_a_500(self, client: TestClient, body: dict[str, Any]) -> None:
        try:
            raw = json.dumps(body).encode()
        except UnicodeEncodeError:
            return
        answer = client.post("/v1/jobs", content=raw, headers={"Content-Type": "application/json"})
        assert answer.status_code in (201, 400, 413, 422, 429), answer.text


@pytest.mark.postgresql_in_soak
class TestBadPaths:
    @pytest.mark.parametrize(
        "job_id", ["x", "job_x", "job_" + "0" * 26, "job_%00", "%ff%fe", "'; DROP TABLE jobs"]
    )
    @pytest.mark.parametrize(
        "rest", ["", "/attempts", "/events", "/logs", "/metrics", "/checkpoints", "/outputs", "/ledger"]
    )
    def test_a_job_that_does_not_exist(self, client: TestClient, job_id: str, rest: str) -> None:
        problem(client.get(f"/v1/jobs/{job_id}{rest}"), 404, "job_not_found")

    def test_cancelling_what_does_not_exist(self, client: TestClient) -> None:
        problem(client.post(f"/v1/jobs/job_{'0' * 26}/cancel"), 404, "job_not_found")

    def test_streaming_what_does_not_exist_is_a_404_not_a_stream(self, client: TestClient) -> None:
        for rest in ("events", "logs"):
            answer = client.get(f"/v1/jobs/job_{'0' * 26}/{rest}", headers={"Accept": "text/event-stream"})
            problem(answer, 404, "job_not_found")

    @pytest.mark.parametrize(
        "query",
        [
            *("stat=queued", "state=dreaming", "limit=0", "limit=x", "limit=10000", "limit=" + "9" * 50),
            *("project=%00", "project=%ff", "project=a%0a"),
        ],
    )
    def test_bad_parameters_are_named(self, client: TestClient, query: str) -> None:
        found = problem(client.get(f"/v1/jobs?{query}"), 422, "invalid_parameter")
        assert found.errors[0].field.split(".")[0] == query.split("=")[0]

    @pytest.mark.parametrize("cursor", ["x", "%00", "ééé", "am9i", "MQ"])
    def test_bad_cursors_are_refused(self, client: TestClient, cursor: str) -> None:
        problem(client.get(f"/v1/jobs?cursor={cursor}"), 422, "invalid_cursor")
        if cursor != "MQ":
            problem(client.get(f"/v1/jobs/{submit(client).id}/events?cursor={cursor}"), 422, "invalid_cursor")

    @pytest.mark.parametrize("last", ["x", "-1", "9" * 30, "1.5", "\u0661"])
    def test_a_bad_last_event_id_is_refused(self, client: TestClient, last: str) -> None:
        headers = {"Accept": "text/event-stream", "Last-Event-ID": last.encode()}
        answer = client.get(f"/v1/jobs/{submit(client).id}/events", headers=headers)  # type: ignore[arg-type]
        problem(answer, 422, "invalid_parameter")

    def test_nothing_there(self, client: TestClient) -> None:
        for path in ("/web/nothing.js", "/v1", "/v1/job", "/v1/jobs/", "/docs"):
            problem(client.get(path), 404, "not_found")

    @pytest.mark.parametrize(
        ("method", "path", "allowed"),
        [
            ("DELETE", "/v1/jobs", "GET, POST"),
            ("GET", "/v1/jobs/x/cancel", "POST"),
            ("POST", "/v1/bundles/x", "GET, HEAD, PUT"),
            ("PATCH", "/healthz", "GET"),
        ],
    )
    def test_the_allow_header_is_complete(
        self, client: TestClient, method: str, path: str, allowed: str
    ) -> None:
        answer = client.request(method, path)
        problem(answer, 405, "method_not_allowed")
        assert answer.headers["allow"] == allowed

    def test_other_hosts_and_origins_are_refused(self, client: TestClient) -> None:
        problem(client.get("/v1/jobs", headers={"Host": "evil.example"}), 421, "unknown_host")
        foreign = {"Origin": "https://evil.example"}
        problem(client.post("/v1/jobs", json=SPEC, headers=foreign), 403, "foreign_origin")
        problem(client.get("/v1/jobs", headers={"Origin": "null"}), 403, "foreign_origin")
        # Another port of this machine may be anybody's.
        neighbour = {"Host": "127.0.0.1:7265", "Origin": "http://127.0.0.1:8888"}
        problem(client.post("/v1/jobs", json=SPEC, headers=neighbour), 403, "foreign_origin")
        for site in ("cross-site", "same-site"):
            problem(
                client.post("/v1/jobs", json=SPEC, headers={"Sec-Fetch-Site": site}), 403, "foreign_origin"
            )
            problem(client.get("/v1/jobs", headers={"Sec-Fetch-Site": site}), 403, "foreign_origin")
            link = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
            assert client.get("/v1/jobs", headers=link).status_code == 200
            problem(client.post("/v1/jobs", json=SPEC, headers=link), 403, "foreign_origin")

    def test_pages_of_the_service_itself_are_answered(self, client: TestClient) -> None:
        own = {"Host": "LocalHost:7265", "Origin": "http://localhost:7265", "Sec-Fetch-Site": "same-origin"}
        assert client.post("/v1/jobs", json=SPEC, headers=own).status_code == 201
        assert client.get("/v1/jobs", headers={"Sec-Fetch-Site": "none"}).status_code == 200

    @pytest.mark.parametrize("name", ["Host", "Origin", "Sec-Fetch-Site"])
    def test_a_request_addresses_one_host(self, client: TestClient, name: str) -> None:
        own = {"Host": "127.0.0.1", "Origin": "http://127.0.0.1", "Sec-Fetch-Site": "same-origin"}
        headers = [*own.items(), (name, own[name])]
        found = problem(client.post("/v1/jobs", json=SPEC, headers=headers), 400, "bad_request")
        assert found.detail == f"the request has the header {name} more than once"

    def test_open_streams_have_a_bound(self, client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("service.api.sse.MOST_STREAMS", 4)
        job = submit(client)
        assert client.post(f"/v1/jobs/{job.id}/cancel").status_code == 202
        streams = client.app.state.remora.streams  # type: ignore[attr-defined]
        headers = {"Accept": "text/event-stream"}
        with contextlib.ExitStack() as others:
            for _ in range(4):
                others.enter_context(streams.one(StreamOwner(LOCAL, "default")))
            for kind in ("events", "logs"):
                answer = client.get(f"/v1/jobs/{job.id}/{kind}", headers=headers)
                problem(answer, 429, "too_many_streams")
        for _ in range(5):  # each that has ended is no longer counted
            streams.check(StreamOwner(LOCAL, "default"))
            assert client.get(f"/v1/jobs/{job.id}/events", headers=headers).status_code == 200

    def test_parameters_have_bounds(self, client: TestClient) -> None:
        found = problem(client.get("/v1/jobs?" + "&".join(map(str, range(2000)))), 414, "query_too_long")
        assert found.detail == "the parameters have more than 8192 bytes"
        found = problem(client.get("/v1/jobs?" + "&".join(map(str, range(1000)))), 422, "invalid_parameter")
        assert len(found.errors) == 50
        found = problem(client.get(f"/v1/jobs?state={'x,' * 1000}"), 422, "invalid_parameter")
        assert [one.message for one in found.errors] == ["Value error, write at most 50 of them"]

    def test_every_loopback_address_is_known(self, client: TestClient) -> None:
        assert client.get("/healthz", headers={"Host": "localhost:7265"}).status_code == 200
        assert client.get("/healthz", headers={"Host": "[::1]:7265"}).status_code == 200

    def test_a_request_id_is_taken_over_or_made(self, client: TestClient) -> None:
        assert client.get("/healthz", headers={"X-Request-Id": "mine-1"}).headers["x-request-id"] == "mine-1"
        assert (
            client.get("/healthz", headers={"X-Request-Id": "not mine"}).headers["x-request-id"] != "not mine"
        )


@pytest.mark.postgresql_in_soak
class TestReading:
    def test_pages_hold_every_job_once_newest_first(self, client: TestClient) -> None:
        made = [submit(client).id for _ in range(7)]
        seen: list[str] = []
        cursor = ""
        while True:
            answer = client.get(f"/v1/jobs?limit=3{cursor}")
            page = Page[Job].model_validate_json(answer.content)
            seen += [job.id for job in page.items]
            if page.next_cursor is None:
                break
            submit(client)
            cursor = f"&cursor={page.next_cursor}"
        assert seen == made[::-1]

    def test_pages_of_large_jobs_end_early(self, client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("service.api.pages.PAGE_BYTES", 40_000)
        made = [submit(client, command=["echo", "x" * 3000]).id for _ in range(18)]
        pages, cursor = [], ""
        while True:
            answer = client.get(f"/v1/jobs?limit=15{cursor}")
            assert len(answer.content) < 46_000
            pages.append(Page[Job].model_validate_json(answer.content))
            if pages[-1].next_cursor is None:
                break
            cursor = f"&cursor={pages[-1].next_cursor}"
        assert [job.id for page in pages for job in page.items] == made[::-1]
        assert [len(page.items) for page in pages] == [10, 8]

    def test_filters(self, client: TestClient) -> None:
        queued, other = submit(client), submit(client, project="vision")
        client.post(f"/v1/jobs/{other.id}/cancel")

        def ids(query: str) -> list[str]:
            return [item["id"] for item in client.get(f"/v1/jobs?{query}").json()["items"]]

        assert ids("state=queued") == [queued.id]
        assert ids("state=queued,cancelled") == [other.id, queued.id]
        assert ids("state=queued&state=cancelled") == [other.id, queued.id]
        assert ids("project=vision") == [other.id]
        assert ids("project=vision&state=queued") == []

    def test_what_an_attempt_left_behind(self, client: TestClient, database: Database) -> None:
        job = submit(client)
        run_attempt(
            database,
            job.id,
            ("progress", {"state": "running", "world_size": 2}),
            ("log", {"rank": 0, "stream": "stdout", "text": "one"}),
            ("log", {"rank": 1, "stream": "stderr", "text": "two"}),
            ("log", {"rank": 0, "stream": "stdout", "text": "three \u00e9"}),
            ("metric", {"step": 1, "world_size": 2, "values": {"loss": 0.5}}),
            ("metric", {"step": 2, "world_size": 2, "values": {"loss": float("inf")}}),
            ("ended", {"end_reason": "exit_code", "message": "rank 1 returned 3", "exit_code": 3}),
        )
        path = f"/v1/jobs/{job.id}"
        (attempt,) = client.get(f"{path}/attempts").json()["items"]
        assert (attempt["end_reason"], attempt["exit_code"]) == ("exit_code", 3)
        assert [event["kind"] for event in client.get(f"{path}/events?after=3").json()["items"]] == [
            "attempt.started",
            "job.running",
            "training.began",
            "attempt.ended",
            "job.queued",
        ]

        def texts(query: str) -> list[str]:
            return [line["text"] for line in client.get(f"{path}/logs?{query}").json()["items"]]

        assert texts("") == ["one", "two", "three \u00e9"]
        assert texts("rank=0") == ["one", "three \u00e9"]
        assert texts("rank=0&tail=1") == ["three \u00e9"]
        assert texts("tail=0") == []
        assert texts("tail=100") == texts("")
        assert texts("after=1&limit=1") == ["two"]
        assert texts("attempt=2") == []
        assert texts("contains=T") == ["two", "three \u00e9"]
        assert texts("contains=T&rank=0&tail=5") == ["three \u00e9"]
        assert texts("contains=%25") == texts("contains=_") == []
        assert client.get(f"{path}/logs?contains=a%00").status_code == 422
        plain = client.get(f"{path}/logs", headers={"Accept": "text/plain"})
        assert plain.content.decode() == "one\ntwo\nthree \u00e9\n"
        first = client.get(f"{path}/metrics?limit=1").json()
        assert first["items"][0]["values"] == {"loss": 0.5}
        (second,) = client.get(f"{path}/metrics?cursor={first['next_cursor']}").json()["items"]
        assert second["values"] == {"loss": None}
        assert client.get(f"{path}/metrics?after_step=2").json()["items"] == []

    def test_health_and_readiness(self, client: TestClient, database: Database) -> None:
        assert client.get("/healthz").json()["status"] == "ok"
        waiting = client.get("/readyz")
        assert (waiting.status_code, waiting.json()["controller_age_s"]) == (503, None)
        database.transact(lambda c: leases.take(c, None, "controller", "test", time.time()))
        assert client.get("/readyz").status_code == 200

    def test_a_dead_controller_whose_clock_was_ahead_does_not_look_alive_for_long(
        self, client: TestClient, database: Database, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        lease = database.transact(lambda c: leases.take(c, None, "controller", "test", time.time() + 3600.0))
        assert lease is not None
        assert client.get("/readyz").status_code == 200
        running = time.monotonic()
        monkeypatch.setattr("service.api.cluster.time.monotonic", lambda: running + 16.0)
        assert client.get("/readyz").status_code == 503
        assert database.transact(lambda c: leases.renew(c, lease, 0.0))
        assert client.get("/readyz").status_code == 200, "it is renewed, whatever the time of day"

    def test_few_points_stand_for_all_steps(self, client: TestClient, database: Database) -> None:
        job_id = submit(client).id
        values = [0.5, -3.0, 9.0, 1.0, float("nan"), 2.0, 7.0, 8.0, 6.0, 5.0]
        reported = [
            ("metric", {"step": step, "world_size": 1, "values": {"loss": value}})
            for step, value in enumerate(values, start=10)
        ]
        run_attempt(database, job_id, *reported)
        items = client.get(f"/v1/jobs/{job_id}/metrics?points=3").json()["items"]
        assert [
            (one["step"], one["least"]["loss"], one["greatest"]["loss"], one["values"]["loss"])
            for one in items
        ] == [(13, -3.0, 9.0, 1.0), (17, 2.0, 8.0, 8.0), (19, 5.0, 6.0, 5.0)]
        (whole,) = client.get(f"/v1/jobs/{job_id}/metrics?points=1&after_step=11").json()["items"]
        assert (whole["least"], whole["greatest"]) == ({"loss": 1.0}, {"loss": 9.0})
        assert len(client.get(f"/v1/jobs/{job_id}/metrics?points=500").json()["items"]) == 10
        assert client.get(f"/v1/jobs/{job_id}/metrics?points=5&after_step=99").json()["items"] == []
        problem(client.get(f"/v1/jobs/{job_id}/metrics?points=0"), 422, "invalid_parameter")

    def test_a_point_reports_its_last_step_and_of_every_name_in_its_part(
        self, client: TestClient, database: Database
    ) -> None:
        other, job_id = submit(client).id, submit(client).id
        run_attempt(database, other, ("metric", {"step": 3, "world_size": 1, "values": {"loss": -1.0}}))
        reported: list[tuple[int, int, dict[str, float]]] = [
            (5, 3, {"loss": 4.0, "val": 0.5}),
            (6, 3, {"loss": 3.0}),
            (1000, 2, {"loss": 2.0, "val": 0.25}),
            (1007, 2, {"loss": float("inf")}),
        ]
        run_attempt(
            database,
            job_id,
            *(
                ("metric", {"step": step, "world_size": size, "values": found})
                for step, size, found in reported
            ),
        )
        every = client.get(f"/v1/jobs/{job_id}/metrics").json()["items"]
        first, last = client.get(f"/v1/jobs/{job_id}/metrics?points=4").json()["items"]
        assert (first["values"], first["least"], first["greatest"]) == (
            {"loss": 3.0, "val": 0.5}, {"loss": 3.0, "val": 0.5}, {"loss": 4.0, "val": 0.5},
        )  # fmt: skip
        assert (last["values"], last["least"], last["greatest"]) == (
            {"loss": None, "val": 0.25}, {"loss": 2.0, "val": 0.25}, {"loss": 2.0, "val": 0.25},
        )  # fmt: skip
        for few, of in ((first, every[1]), (last, every[3])):
            assert [few[key] for key in ("step", "at", "attempt", "world_size")] == [
                of[key] for key in ("step", "at", "attempt", "world_size")
            ]

    def test_what_is_old_is_deleted_when_asked_for(self, client: TestClient, database: Database) -> None:
        kept, old = submit(client).id, submit(client).id
        ended = ("ended", {"end_reason": "completed", "message": "", "exit_code": 0})
        run_attempt(database, old, ("log", {"rank": 0, "stream": "stdout", "text": "x"}), ended)
        database.transact(lambda c: c.exec_driver_sql("UPDATE attempts SET released_at = 1002.0"))
        assert client.post("/v1/prune?older_than_s=1e12").json() == {
            "jobs": 0, "nodes": 0, "rows": 0, "has_more": False
        }  # fmt: skip
        # It ended in 1970.
        answer = client.post("/v1/prune?keep_jobs=100").json()
        assert (answer["jobs"], answer["has_more"]) == (1, False)
        assert [one["id"] for one in client.get("/v1/jobs").json()["items"]] == [kept]
        problem(client.post("/v1/prune?keep_jobs=-1"), 422, "invalid_parameter")

    def test_a_service_that_keeps_everything_deletes_what_it_is_asked_to_and_nothing_by_itself(
        self, settings: Settings, database: Database
    ) -> None:
        with TestClient(
            create_app(settings.model_copy(update={"retention_days": 0.0})), base_url="http://127.0.0.1"
        ) as client:
            old = submit(client).id
            run_attempt(database, old, ("ended", {"end_reason": "completed", "message": "", "exit_code": 0}))
            database.transact(lambda c: c.exec_driver_sql("UPDATE attempts SET released_at = 1002.0"))
            reported = problem(client.post("/v1/prune"), 422, "invalid_parameter")
            assert [one.field for one in reported.errors] == ["older_than_s"]
            assert client.get(f"/v1/jobs/{old}").status_code == 200
            assert client.post("/v1/prune?older_than_s=60").json()["jobs"] == 1

    def test_all_that_was_deleted_is_reported_however_many_steps_it_took(
        self, client: TestClient, database: Database
    ) -> None:
        ended = ("ended", {"end_reason": "completed", "message": "", "exit_code": 0})
        for _ in range(25):
            run_attempt(
                database, submit(client).id, ("log", {"rank": 0, "stream": "stdout", "text": "x"}), ended
            )
        database.transact(lambda c: c.exec_driver_sql("UPDATE attempts SET released_at = 1002.0"))
        database.transact(lambda c: c.exec_driver_sql("UPDATE jobs SET ended_at = 1e12"))
        none = {"jobs": 0, "nodes": 0, "rows": 0, "has_more": False}
        assert client.post("/v1/prune").json() == none, "nothing is old"
        first = client.post("/v1/prune?keep_jobs=5").json()
        assert (first["jobs"], first["has_more"]) == (20, False)
        assert first["rows"] > 2 * 20, "the line and the events of each"
        assert len(client.get("/v1/jobs").json()["items"]) == 5

    def test_metrics_for_the_operator(self, client: TestClient) -> None:
        submit(client)
        client.get("/v1/jobs/job_x")
        text = client.get("/metrics").text
        assert 'remora_jobs{state="queued"} 1.0' in text
        assert 'remora_queue_depth{reason="waiting_for_turn"} 1.0' in text
        assert 'remora_http_requests_total{method="GET",route="/v1/jobs/{job_id}",status="404"} 1.0' in text

    def test_nodes(self, client: TestClient) -> None:
        assert client.get("/v1/nodes").json() == {"items": [], "next_cursor": None}


@pytest.mark.postgresql_in_soak
class TestCancelling:
    def test_a_waiting_job_ends_at_once_and_again_is_fine(self, client: TestClient) -> None:
        job = submit(client)
        for _ in range(2):
            answer = client.post(f"/v1/jobs/{job.id}/cancel")
            assert (answer.status_code, answer.json()["state"]) == (202, "cancelled")

    def test_an_ended_job_cannot_be_cancelled(self, client: TestClient, database: Database) -> None:
        job = submit(client)
        run_attempt(database, job.id, ("ended", {"end_reason": "completed", "message": "", "exit_code": 0}))
        problem(client.post(f"/v1/jobs/{job.id}/cancel"), 409, "not_cancellable")


def make_bundle(**files: str) -> tuple[str, bytes]:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, text in files.items():
            archive.writestr(zipfile.ZipInfo(name.replace("__", "/")), text)
    content = packed.getvalue()
    return f"sha256:{hashlib.sha256(content).hexdigest()}", content


@pytest.mark.postgresql_in_soak
class TestBundles:
    def test_one_is_uploaded_once_and_comes_back(self, client: TestClient) -> None:
        digest, content = make_bundle(**{"train.py": "print()"})
        path = f"/v1/bundles/{digest}"
        assert client.head(path).status_code == 404
        problem(client.get(path), 404, "bundle_not_found")
        assert client.put(path, content=content).status_code == 201
        assert client.put(path, content=content).status_code == 200
        assert client.head(path).status_code == 200
        assert client.get(path).content == content
        assert submit(client, code=digest).spec["code"] == digest

    def test_bad_ones_are_refused_and_leave_nothing(self, client: TestClient, settings: Settings) -> None:
        digest, content = make_bundle(train="print()")
        problem(client.put(f"/v1/bundles/{digest}", content=content + b"x"), 422, "bundle_invalid")
        _, other = make_bundle(train="something else")
        found = problem(client.put(f"/v1/bundles/{digest}", content=other), 422, "bundle_invalid")
        assert "digest" in found.detail
        no_zip = b"not an archive"
        path = f"/v1/bundles/sha256:{hashlib.sha256(no_zip).hexdigest()}"
        problem(client.put(path, content=no_zip), 422, "bundle_invalid")
        evil_digest, evil = make_bundle(**{"..__evil": "x"})
        problem(client.put(f"/v1/bundles/{evil_digest}", content=evil), 422, "bundle_invalid")
        problem(client.put("/v1/bundles/md5:x", content=b"x"), 404, "bundle_not_found")
        problem(client.put(f"/v1/bundles/{digest}", content=b"x" * 200_000), 413, "too_large")
        assert list((settings.home / "uploads").iterdir()) == []
        assert client.head(f"/v1/bundles/{digest}").status_code == 404

    def test_what_its_code_contradicts_is_refused_with_both_values(self, client: TestClient) -> None:
        digest, content = make_bundle(**{"conf__ds.json": '{"train_batch_size": 64}', "train.py": ""})
        assert client.put(f"/v1/bundles/{digest}", content=content).status_code == 201
        job = {
            "command": "python train.py --deepspeed_config conf/ds.json",
            "code": digest,
            "backend": "deepspeed",
        }
        answer = client.post("/v1/jobs", json={**job, "elastic": {"global_batch": 96}})
        found = problem(answer, 422, "invalid_spec")
        assert "train_batch_size is 64" in found.detail
        assert "elastic.global_batch is 96" in found.detail
        submit(client, **job, workers=1, elastic={"global_batch": 64})
        both = {**job, "command": "python absent.py --deepspeed_config conf/ds.json"}
        answer = client.post("/v1/jobs", json={**both, "elastic": {"global_batch": 96}})
        problem(answer, 422, "invalid_spec")
        said = answer.text
        assert "there is no file 'absent.py' in the code" in said
        assert "train_batch_size is 64" in said, "all problems at once"

    def test_a_bundle_that_unpacks_to_too_much_is_refused(self, database_url: str, tmp_path: Path) -> None:
        limited = Settings(home=tmp_path / "home", database_url=database_url, max_unpacked_bytes=1000)
        digest, content = make_bundle(big="x" * 2000)
        with TestClient(create_app(limited), base_url="http://127.0.0.1") as client:
            problem(client.put(f"/v1/bundles/{digest}", content=content), 422, "bundle_invalid")

    def test_what_a_killed_process_left_is_removed_by_the_next_one(
        self, settings: Settings, database_url: str
    ) -> None:
        uploads = settings.home / "uploads"
        uploads.mkdir(parents=True)
        for name, age_s in (("old", 2 * 24 * 3600), ("new", 60)):
            (uploads / f"{name}.part").touch()
            at = time.time() - age_s
            os.utime(uploads / f"{name}.part", (at, at))
        with TestClient(create_app(settings), base_url="http://127.0.0.1"):
            assert [path.name for path in uploads.iterdir()] == ["new.part"]


@pytest.mark.postgresql_in_soak
class TestLedger:
    def test_a_job_pays_for_what_its_workers_held_by_kind_of_node(
        self, client: TestClient, database: Database
    ) -> None:
        job = submit(client, limits={"budget": "2 USD"})
        empty = client.get(f"/v1/jobs/{job.id}/ledger").json()
        assert (empty["lines"], empty["cost"], empty["budget"]) == ([], 0.0, 2.0)
        used = [
            ("node_a", "D4/1/spot", 0.5, 0.0, 3600.0),
            ("node_a", "D4/1/spot", 1.0, 3600.0, 7200.0),
            ("node_b", "D4/1/spot", 1.0, 0.0, 1800.0),
            ("node_c", "D4/any/on-demand", 1.0, 0.0, 3600.0),
        ]
        uses = [
            UseRow(
                job_id=job.id, node_id=node, attempt=1, workers=1, pool="cpu", offering=offering,
                part=part, price_per_hour=0.1, began_at=began_at, ended_at=ended_at,
            )
            for node, offering, part, began_at, ended_at in used
        ]  # fmt: skip
        machines = [
            NodeRow(
                id=node, pool="cpu", created_at=0.0, price_per_hour=0.1, offering=offering,
                launched_at=0.0, ready_at=0.0, ended_at=7200.0,
            )
            for node, offering in {node: offering for node, offering, *_ in used}.items()
        ]  # fmt: skip
        for machine in machines:
            database.transact(lambda c, row=machine: nodes.insert_node(c, NodeDecision(row, ())))
        database.transact(lambda connection: ledger.write(connection, Entries(begun=tuple(uses))))
        found = client.get(f"/v1/jobs/{job.id}/ledger").json()
        lines = [
            (one["size"], one["zone"], one["capacity"], one["nodes"], one["node_s"]) for one in found["lines"]
        ]
        assert lines == [("D4", "1", "spot", 2, 7200.0), ("D4", None, "on-demand", 1, 3600.0)]
        assert found["cost"] == pytest.approx(0.3)

    def test_a_node_says_which_jobs_use_it_now_to_those_who_see_them(
        self, client: TestClient, database: Database
    ) -> None:
        job, before = submit(client), submit(client)
        node = NodeRow(id="node_01M7Y8NRHRW6ZK2C8GF7JR4CXR", pool="cpu", created_at=0.0)
        uses = [
            UseRow(
                job_id=one.id, node_id=node.id, attempt=1, workers=1, pool="cpu", offering="",
                part=1.0, price_per_hour=0.0, began_at=0.0, ended_at=ended_at,
            )
            for one, ended_at in [(job, None), (before, 5.0)]
        ]  # fmt: skip
        database.transact(lambda connection: nodes.insert_node(connection, NodeDecision(node, ())))
        database.transact(lambda connection: ledger.write(connection, Entries(begun=tuple(uses))))
        assert client.get(f"/v1/nodes/{node.id}").json()["jobs"] == [job.id]
        assert [one["jobs"] for one in client.get("/v1/nodes").json()["items"]] == [[job.id]]
        view = Node.model_validate_json(client.get(f"/v1/nodes/{node.id}").content)
        stranger = Access(replace(LOCAL, is_operator=False, grants={"another": Role.VIEWER}))
        assert database.transact(lambda connection: ForeignJobs(connection, stranger).node(view)).jobs == []

    def test_the_ledger_of_the_cluster_names_who_pays_for_every_second(
        self, client: TestClient, database: Database
    ) -> None:
        job = submit(client)
        node = NodeRow(
            id="node_01M7Y8NRHRW6ZK2C8GF7JR4CXR", pool="cpu", created_at=0.0, price_per_hour=3.6,
            offering="D4/1/spot", bought_for=job.id, launched_at=100.0, ready_at=200.0, ended_at=1100.0,
        )  # fmt: skip
        use = UseRow(
            job_id=job.id, node_id=node.id, attempt=1, workers=1, pool="cpu", offering="D4/1/spot",
            part=0.5, price_per_hour=3.6, began_at=200.0, ended_at=1100.0,
        )  # fmt: skip
        database.transact(lambda connection: nodes.insert_node(connection, NodeDecision(node, ())))
        database.transact(lambda connection: ledger.write(connection, Entries(begun=(use,))))
        found = ClusterLedger.model_validate_json(client.get("/v1/ledger?since=0&until=5000").content)
        reported = {(one.payer, one.name, one.purpose): round(one.cost, 6) for one in found.lines}
        assert reported == {
            ("job", job.id, "work"): 0.45,
            ("project", job.project, "idle"): 0.45,
            ("job", job.id, "start_up"): 0.1,
        }
        assert (round(found.cost, 6), found.node_s, found.since, found.until) == (1.0, 1000.0, 0.0, 5000.0)
        of_job = client.get(f"/v1/jobs/{job.id}/ledger").json()
        assert (of_job["start_up_s"], round(of_job["start_up_cost"], 6)) == (100.0, 0.1)
        assert client.get("/v1/ledger").json()["lines"] == [], "of the running month"
        problem(client.get("/v1/ledger?since=9&until=8"), 422, "invalid_parameter")


@pytest.mark.postgresql_in_soak
class TestCosts:
    @pytest.fixture
    def job(self, client: TestClient, database: Database) -> Job:
        """A job that held half of a node for a quarter of an hour, and spent 100 s of it on steps done before."""
        job = submit(client)
        node = NodeRow(
            id="node_01M7Y8NRHRW6ZK2C8GF7JR4CXR", pool="cpu", created_at=0.0, price_per_hour=3.6,
            offering="D4/1/spot", bought_for=job.id, launched_at=100.0, ready_at=200.0, ended_at=1100.0,
            resources={"GPU": 2.0},
        )  # fmt: skip
        use = UseRow(
            job_id=job.id, node_id=node.id, attempt=1, workers=1, pool="cpu", offering="D4/1/spot",
            part=0.5, price_per_hour=3.6, began_at=200.0, ended_at=1100.0,
        )  # fmt: skip
        begun = [(1, 200.0, "training"), (2, 500.0, "recomputing"), (3, 600.0, "training")]
        rows = [
            {"job_id": job.id, "attempt": 1, "number": n, "began_at": at, "phase": phase}
            for n, at, phase in begun
        ]

        def store(connection: sa.Connection) -> None:
            nodes.insert_node(connection, NodeDecision(node, ()))
            ledger.write(connection, Entries(begun=(use,)))
            connection.execute(sa.insert(phases), rows)

        database.transact(store)
        return job

    def test_every_second_has_a_cause_and_the_lines_sum_to_the_bill(
        self, client: TestClient, job: Job
    ) -> None:
        found = CostReport.model_validate_json(client.get("/v1/costs?since=0&until=5000").content)
        assert {line.of["cause"]: (line.node_s, line.gpu_s, line.cost) for line in found.lines} == {
            "provisioning": (100.0, 200.0, 0.1),
            "training": (400.0, 800.0, 0.4),
            "recomputing": (50.0, 100.0, 0.05),
            "idle_unused": (450.0, 900.0, 0.45),
        }
        assert (found.node_s, found.gpu_s, found.cost, found.next_cursor) == (1000.0, 2000.0, 1.0, None)
        assert found.sentence.startswith(
            "40% of 1.00 USD trained; idle unused cost the most besides, 0.45 USD"
        )

    def test_lines_are_by_what_was_asked_for_page_by_page(self, client: TestClient, job: Job) -> None:
        path = "/v1/costs?since=0&until=5000&by=project,job&by=capacity_type&limit=1"
        first = CostReport.model_validate_json(client.get(path).content)
        assert first.by == ["project", "job", "capacity_type"]
        assert [line.of for line in first.lines] == [
            {"project": job.project, "job": "", "capacity_type": "spot"}
        ]
        second = CostReport.model_validate_json(client.get(f"{path}&cursor={first.next_cursor}").content)
        assert [(line.of["job"], line.cost) for line in second.lines] == [(job.id, 0.55)]
        assert (second.cost, second.next_cursor) == (1.0, None), "of all pages"
        of_job = client.get(f"/v1/costs?since=0&until=5000&job={job.id}").json()
        assert of_job["cost"] == 0.55, "what it pays alone"
        free = submit(client).id
        several = client.get(f"/v1/costs?since=0&until=5000&by=job&job={free},{job.id}").json()
        assert [(line["of"]["job"], line["cost"]) for line in several["lines"]] == [(job.id, 0.55)]
        gone = f"/v1/costs?since=0&until=5000&job={job.id},job_01M7Y8NRHRW6ZK2C8GF7JR4CXR"
        problem(client.get(gone), 404, "job_not_found")
        problem(client.get("/v1/costs?job=" + ",".join(51 * [job.id])), 422, "invalid_parameter")

    def test_as_csv(self, client: TestClient, job: Job) -> None:
        text = "cause,hour,node_s,gpu_s,usd\n"
        text += "idle_unused,1970-01-01T00:00:00Z,450.000,900.000,0.450000\n"
        text += "provisioning,1970-01-01T00:00:00Z,100.000,200.000,0.100000\n"
        text += "recomputing,1970-01-01T00:00:00Z,50.000,100.000,0.050000\n"
        text += "training,1970-01-01T00:00:00Z,400.000,800.000,0.400000\n"
        path = "/v1/costs?since=0&until=5000&by=cause,hour"
        asked = client.get(f"{path}&format=csv")
        assert (asked.text, asked.headers["content-type"]) == (text, "text/csv; charset=utf-8")
        assert client.get(path, headers={"Accept": "text/csv"}).text == text

    def test_as_rows_of_focus(self, client: TestClient, job: Job) -> None:
        text = client.get("/v1/costs?since=0&until=5000&format=focus").text
        rows = list(csv.DictReader(io.StringIO(text)))
        assert sum(Decimal(row["BilledCost"]) for row in rows) == 1
        sellers = {
            row[name] for row in rows for name in ("ProviderName", "PublisherName", "InvoiceIssuerName")
        }
        assert sellers == {"local"}, "FOCUS leaves none of them empty"
        (repeated,) = [row for row in rows if row["x_Cause"] == "recomputing"]
        # 100 s of half of the node; the hour begins with the machine's time in it.
        assert (repeated["BilledCost"], repeated["ConsumedQuantity"]) == ("0.050000", "0.013888889")
        assert (repeated["ChargePeriodStart"], repeated["BillingPeriodEnd"]) == (
            "1970-01-01T00:03:20Z", "1970-02-01T00:00:00Z",
        )  # fmt: skip
        cut = client.get("/v1/costs?since=0&until=1000.25&format=focus").text
        assert {row["ChargePeriodEnd"] for row in csv.DictReader(io.StringIO(cut))} == {
            "1970-01-01T00:03:20Z", "1970-01-01T00:16:40.250Z",
        }  # fmt: skip
        assert (repeated["SubAccountId"], repeated["x_JobId"], repeated["PricingCategory"]) == (
            job.project, job.id, "Dynamic",
        )  # fmt: skip

    def test_goodput_says_what_was_lost_and_what_would_have_saved_it(
        self, client: TestClient, job: Job
    ) -> None:
        found = GoodputReport.model_validate_json(client.get("/v1/goodput?since=0&until=5000").content)
        assert (found.scheduling, found.program, found.cost) == (0.45, None, 1.0)
        assert found.runtime == pytest.approx(8 / 9)
        assert found.goodput == pytest.approx(0.4)
        assert [(one.cause, one.cost) for one in found.losses] == [
            ("idle_unused", 0.45), ("provisioning", 0.1), ("recomputing", 0.05),
        ]  # fmt: skip
        repeated = found.losses[2]
        assert (repeated.saved_cost, repeated.by) == (0.025, "with a checkpoint twice as often")

    def test_too_long_or_unknown_ranges_are_refused(self, client: TestClient) -> None:
        for wrong in (
            "since=9&until=8",
            "since=0",
            "by=colour",
            "by=",
            "job=job_01M7Y8NRHRW6ZK2C8GF7JR4CXR&since=0",
        ):
            answer = client.get(f"/v1/costs?{wrong}")
            assert answer.status_code in (404, 422), wrong
        problem(client.get("/v1/goodput?since=9&until=8"), 422, "invalid_parameter")
        for path in ("/v1/ledger?since=0", "/v1/goodput?since=0"):
            problem(client.get(path), 422, "invalid_parameter")

    def test_answers_of_too_many_lines_are_refused_before_they_are_computed(
        self, client: TestClient, job: Job, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = "/v1/costs?since=0&until=5000&by=hour"
        with monkeypatch.context() as patch:
            patch.setattr("service.api.costs.MOST_PARTS", 1)
            patch.setattr("service.store.costs.spans_of", None)
            for form in ("json", "csv", "focus"):
                problem(client.get(f"{path}&format={form}"), 422, "too_many_lines")
        monkeypatch.setattr("service.api.costs.MOST_PAGED", 3)
        problem(client.get(f"{path},cause"), 422, "too_many_lines")
        assert client.get(f"{path},cause&format=csv").status_code == 200


@pytest.mark.postgresql_in_soak
class TestStores:
    @pytest.fixture
    def settings(self, database_url: str, tmp_path: Path) -> Settings:
        stores = {"models": str(tmp_path / "models"), "archive": "memory://archive"}
        return Settings(home=tmp_path / "home", database_url=database_url, stores=stores)

    def test_a_job_names_a_store(self, client: TestClient) -> None:
        assert submit(client, checkpoint={"store": "models"}).spec["checkpoint"]["store"] == "models"

    @pytest.mark.parametrize(
        "store",
        [
            *("nothing", "/srv/canary", "file:///srv/canary", "http://127.0.0.1:1/x", "memory://archive"),
            *("../canary", "models/../..", "MODELS", "a" * 5000),
        ],
    )
    def test_anything_else_is_refused_with_the_names_that_there_are(
        self, client: TestClient, store: str
    ) -> None:
        found = problem(
            client.post("/v1/jobs", json={**SPEC, "checkpoint": {"store": store}}), 422, "invalid_spec"
        )
        assert [one.field for one in found.errors] == ["checkpoint.store"]
        assert found.detail.endswith("there are: archive, models")
        assert len(found.detail) < 300

    def test_where_no_store_is_named_it_says_who_can(self, database_url: str, tmp_path: Path) -> None:
        settings = Settings(home=tmp_path / "home", database_url=database_url)
        with TestClient(create_app(settings), base_url="http://127.0.0.1") as client:
            answer = client.post("/v1/jobs", json={**SPEC, "checkpoint": {"store": "models"}})
            assert "there is none yet (REMORA_STORES)" in problem(answer, 422, "invalid_spec").detail

    def test_nothing_is_read_outside_of_the_services_storages(
        self, client: TestClient, database: Database, tmp_path: Path
    ) -> None:
        (tmp_path / "canary").mkdir()
        (tmp_path / "canary" / "bird").write_text("sings")
        (tmp_path / "models/jobs").mkdir(parents=True)
        file = {"size_bytes": 5, "sha256": "0" * 64, "stored": "bird"}
        for number, location in enumerate(
            (f"{tmp_path}/canary", f"{tmp_path}/models/jobs/../../canary", "http://127.0.0.1:1/jobs/x")
        ):
            job = submit(client, name=f"job-{number}")
            run_attempt(
                database,
                job.id,
                ("output", {"location": location, "committed_at": 1.0, "files": {"bird": file}}),
                (
                    "checkpoint",
                    {
                        "step": 4,
                        "world_size": 1,
                        "size_bytes": 5,
                        "location": location,
                        "files": {"bird": 5},
                        "committed_at": 1000.0,
                    },
                ),
            )
            refused = problem(client.get(f"/v1/jobs/{job.id}/outputs/bird"), 404, "output_not_found")
            assert "no storage that the service knows" in refused.detail
            answer = client.get(f"/v1/jobs/{job.id}/checkpoints/4/content")
            assert "no storage" in str(problem(answer, 404, "checkpoint_not_found").hint)

    def test_what_lies_in_a_named_store_is_read(
        self, client: TestClient, database: Database, tmp_path: Path
    ) -> None:
        folder = tmp_path / "models/jobs/job_1/outputs"
        folder.mkdir(parents=True)
        (folder / "bird").write_text("sings")
        file = {"size_bytes": 5, "sha256": "0" * 64, "stored": "bird"}
        job = submit(client)
        run_attempt(
            database,
            job.id,
            ("output", {"location": str(folder), "committed_at": 1.0, "files": {"bird": file}}),
        )
        assert client.get(f"/v1/jobs/{job.id}/outputs/bird").content == b"sings"


@pytest.mark.postgresql_in_soak
class TestCheckpoints:
    def commit(self, database: Database, job_id: str, folder: Path, files: dict[str, int]) -> None:
        body = {"world_size": 1, "size_bytes": sum(files.values()), "location": str(folder), "files": files}
        run_attempt(database, job_id, ("checkpoint", {**body, "step": 4, "committed_at": 1000.0}))

    def test_the_content_is_one_tar_stream(
        self, client: TestClient, database: Database, tmp_path: Path
    ) -> None:
        folder = stored_at(tmp_path, "checkpoint")
        long_name = "sub/" + "n" * 150
        written = {"model.pt": b"weights" * 1000, long_name: b"", "opt\u00e9.pt": b"x" * 512}
        for name, content in written.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
        job = submit(client)
        self.commit(database, job.id, folder, {name: len(content) for name, content in written.items()})
        (listed,) = client.get(f"/v1/jobs/{job.id}/checkpoints").json()["items"]
        assert (listed["step"], listed["location"]) == (4, str(folder))
        answer = client.get(f"/v1/jobs/{job.id}/checkpoints/4/content")
        assert answer.headers["content-type"] == "application/x-tar"
        assert int(answer.headers["content-length"]) == len(answer.content)
        with tarfile.open(fileobj=io.BytesIO(answer.content)) as archive:
            read = {member.name: archive.extractfile(member) for member in archive.getmembers()}
            assert {name: file.read() for name, file in read.items() if file is not None} == written

    @pytest.mark.parametrize("step", ["5", "x", "-1", "9" * 40, "%00", "\u0664"])
    def test_one_that_does_not_exist(self, client: TestClient, step: str) -> None:
        job = submit(client)
        problem(client.get(f"/v1/jobs/{job.id}/checkpoints/{step}/content"), 404, "checkpoint_not_found")

    def test_one_whose_files_were_removed_meanwhile(
        self, client: TestClient, database: Database, tmp_path: Path
    ) -> None:
        job = submit(client)
        self.commit(database, job.id, stored_at(tmp_path, "gone"), {"model.pt": 3})
        answer = client.get(f"/v1/jobs/{job.id}/checkpoints/4/content")
        assert "removed" in str(problem(answer, 404, "checkpoint_not_found").hint)


@pytest.mark.postgresql_in_soak
class TestOutputs:
    def keep(self, database: Database, job_id: str, folder: Path, written: dict[str, bytes]) -> None:
        """The job's driver reports these files, and that the job is done."""
        files = {}
        for number, (name, content) in enumerate(written.items()):
            stored = f"v{number}/file"
            (folder / stored).parent.mkdir(parents=True)
            (folder / stored).write_bytes(content)
            digest = hashlib.sha256(content).hexdigest()
            files[name] = {"size_bytes": len(content), "sha256": digest, "stored": stored}
        reported = ("output", {"location": str(folder), "committed_at": 1001.0, "files": files})
        run_attempt(database, job_id, reported, ("ended", {"end_reason": "completed", "exit_code": 0}))

    def test_files_are_listed_and_come_as_they_are(
        self, client: TestClient, database: Database, tmp_path: Path
    ) -> None:
        job = submit(client)
        assert client.get(f"/v1/jobs/{job.id}/outputs").json()["items"] == []
        written = {"model/opt\u00e9 1.pt": b"x" * 3_000_000, "empty": b"", "a#b?c": b"odd"}
        self.keep(database, job.id, stored_at(tmp_path, "kept"), written)
        listed = client.get(f"/v1/jobs/{job.id}/outputs").json()["items"]
        assert {one["name"]: one["size_bytes"] for one in listed} == {n: len(c) for n, c in written.items()}
        for name, content in written.items():
            answer = client.get(f"/v1/jobs/{job.id}/outputs/{quote(name)}")
            assert answer.content == content
            assert int(answer.headers["content-length"]) == len(content)

    def test_a_long_list_comes_in_pages(self, client: TestClient, database: Database, tmp_path: Path) -> None:
        job = submit(client)
        names = ["a", "b" * 500, "opt\u00e9/1", "opt\u00e9/2", "z"]
        self.keep(database, job.id, stored_at(tmp_path, "kept"), dict.fromkeys(reversed(names), b"1"))
        found, cursor = [], None
        while cursor is not None or not found:
            query = {"limit": 2} | ({"cursor": cursor} if cursor else {})
            page = client.get(f"/v1/jobs/{job.id}/outputs", params=query).json()
            found.append([one["name"] for one in page["items"]])
            cursor = page["next_cursor"]
        assert found == [names[:2], names[2:4], names[4:]]
        problem(client.get(f"/v1/jobs/{job.id}/outputs?cursor=%2F"), 422, "invalid_cursor")

    @pytest.mark.parametrize(
        "name", ["x", "", "v0/file", "../v0/file", "..%2fv0%2ffile", "%00", "/etc/passwd"]
    )
    def test_nothing_else_of_the_storage_is_given(
        self, client: TestClient, database: Database, tmp_path: Path, name: str
    ) -> None:
        job = submit(client)
        self.keep(database, job.id, stored_at(tmp_path, "kept"), {"a": b"1"})
        assert client.get(f"/v1/jobs/{job.id}/outputs/{name}").status_code == 404

    def test_a_file_that_was_replaced_meanwhile(
        self, client: TestClient, database: Database, tmp_path: Path
    ) -> None:
        job = submit(client)
        self.keep(database, job.id, stored_at(tmp_path, "kept"), {"a": b"1"})
        (stored_at(tmp_path, "kept") / "v0/file").unlink()
        answer = client.get(f"/v1/jobs/{job.id}/outputs/a")
        assert "replaced" in problem(answer, 404, "output_not_found").detail

    def test_an_output_of_a_job_that_succeeded_becomes_the_next_version_of_a_model(
        self, client: TestClient, database: Database, tmp_path: Path
    ) -> None:
        outputs = {"final": {"model": "digits"}, "other": {"model": "unused"}, "plain": {}}
        for number in (1, 2, 3):
            job = submit(client, outputs=outputs)
            content = b"weights" * min(number, 2)
            kept = {"final/w.pt": content, "plain/p": b"", "log": b""}
            self.keep(database, job.id, stored_at(tmp_path, str(number)), kept)
        (newest,) = client.get("/v1/models").json()["items"]
        assert (newest["name"], newest["version"], newest["output"]) == ("digits", 3, "final")
        assert (newest["job_id"], newest["attempt"], newest["command"]) == (job.id, 1, ["python", "train.py"])
        assert [file["name"] for file in newest["files"]] == ["w.pt"]
        versions = client.get("/v1/models/digits/versions").json()["items"]
        assert [one["version"] for one in versions] == [3, 2, 1]
        assert versions[0]["digest"] == versions[1]["digest"] != versions[2]["digest"]
        answer = client.get("/v1/models/digits/versions/1/files/w.pt")
        assert answer.content == b"weights"
        events = client.get(f"/v1/jobs/{job.id}/events").json()["items"]
        reported = {event["kind"]: event["message"] for event in events}
        assert reported["job.model_registered"] == "the output final is version 3 of the model digits"
        assert "the output other holds no file" in reported["job.model_missing"]

    def test_a_list_of_outputs_that_is_not_the_newest_makes_no_model(
        self, client: TestClient, database: Database
    ) -> None:
        job = submit(client, outputs={"final": {"model": "digits"}})
        file = {"size_bytes": 1, "sha256": "0" * 64, "stored": "v0/file"}
        listed = {"location": "/kept", "committed_at": 1.0, "files": {"final/w.pt": file}}
        last_word = {"end_reason": "completed", "exit_code": 0, "outputs_are_complete": False}
        run_attempt(database, job.id, ("output", listed), ("ended", last_word))
        assert client.get("/v1/models").json()["items"] == []
        events = client.get(f"/v1/jobs/{job.id}/events").json()["items"]
        assert "job.model_refused" in {event["kind"] for event in events}

    def test_a_job_that_failed_makes_no_model(
        self, client: TestClient, database: Database, tmp_path: Path
    ) -> None:
        job = submit(client, outputs={"final": {"model": "digits"}}, retry={"limit": 0})
        run_attempt(database, job.id, ("ended", {"end_reason": "exit_code", "exit_code": 1}))
        assert client.get("/v1/models").json()["items"] == []

    @pytest.mark.parametrize(
        "path",
        [
            *("digits/versions", "x%00/versions", f"{'9' * 30}/versions"),
            *(f"d/versions/{version}/files/a" for version in ("1", "x", "-1", "9" * 30, "\u0664")),
        ],
    )
    def test_a_model_that_does_not_exist(self, client: TestClient, path: str) -> None:
        problem(client.get(f"/v1/models/{path}"), 404, "model_not_found")

    def test_models_come_in_pages(self, client: TestClient, database: Database, tmp_path: Path) -> None:
        for name in ("b", "a", "c"):
            job = submit(client, outputs={"final": {"model": name}})
            self.keep(database, job.id, tmp_path / name, {"final/w": b""})
        first = client.get("/v1/models", params={"limit": 2}).json()
        assert [one["name"] for one in first["items"]] == ["a", "b"]
        second = client.get("/v1/models", params={"limit": 2, "cursor": first["next_cursor"]}).json()
        assert ([one["name"] for one in second["items"]], second["next_cursor"]) == (["c"], None)


def test_a_database_that_went_away_is_a_503(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    from sqlalchemy.exc import OperationalError

    with TestClient(create_app(settings), base_url="http://127.0.0.1") as client:

        def fail(*_: object) -> None:
            raise OperationalError("SELECT", {}, Exception("connection refused"))

        context = client.app.state.remora  # type: ignore[attr-defined]
        monkeypatch.setattr(context.database, "query", fail)
        answer = client.get("/v1/jobs")
        problem(answer, 503, "database_unavailable")
        assert answer.headers["retry-after"] == "1"
        assert client.get("/readyz").status_code == 503
        assert client.get("/healthz").status_code == 200


def test_our_own_mistake_is_a_500_that_reveals_nothing(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    with TestClient(
        create_app(settings), base_url="http://127.0.0.1", raise_server_exceptions=False
    ) as client:

        def fail(*_: object) -> None:
            raise ZeroDivisionError("secret")

        monkeypatch.setattr(client.app.state.remora.database, "query", fail)  # type: ignore[attr-defined]
        answer = client.get("/v1/jobs")
        problem(answer, 500, "internal_error")
        assert "secret" not in answer.text
