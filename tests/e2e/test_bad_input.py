"""Bad input over HTTP: a clear refusal with a stable code, one line on the command line, never a traceback."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from tests.e2e.embedded import Embedded
from tests.e2e.raw_http import RawClient

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

UNKNOWN = "job_00000000000000000000000000"


def some_of(*cases: tuple[object, ...]) -> list[object]:
    """Each fifth runs always: every case starts a command line, and its parts have tests of their own."""
    return [
        case if at % 5 == 0 else pytest.param(*case, marks=pytest.mark.soak) for at, case in enumerate(cases)
    ]


@pytest.fixture
def raw_client(service: Embedded) -> RawClient:
    """The API's port."""
    return RawClient(service.url)


@pytest.mark.parametrize(
    ("text", "said"),
    some_of(
        ("command: [python", "not YAML"),
        ("{command: python -V, worker: 2}", "worker: unknown key; did you mean workers?"),
        ("{command: python -V, priority: high}", "priority"),
        ("{command: python -V, workers: -2}", "workers"),
        ("{command: python -V, code: ./nowhere}", "nowhere"),
        ("{command: python -V, backend: horovod}", "horovod"),
        ("{command: python -V, code: 'sha256:" + 64 * "0" + "'}", "no bundle"),
        ("- python", "mapping"),
        ("", "mapping"),
    ),
)
def test_a_bad_specification_is_one_line_and_exit_code_2(
    service: Embedded, tmp_path: Path, text: str, said: str
) -> None:
    (tmp_path / "job.yaml").write_text(text)
    refused = service.remora("submit", "job.yaml", folder=tmp_path)
    assert refused.code == 2
    assert said in refused.complaint


def test_every_problem_of_a_specification_has_a_line(service: Embedded, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("{comand: python -V, workers: {minimum: 1, max: 2}}")
    refused = service.remora("submit", "job.yaml", folder=tmp_path)
    assert refused.code == 2
    said = {line.partition(":")[0]: line for line in refused.complaints}
    assert set(said) == {"command", "comand", "workers.min", "workers.minimum"}
    assert said["comand"] == "comand: unknown key; did you mean command?"


@pytest.mark.parametrize(
    ("words", "code"),
    some_of(
        (("submit", "nowhere.yaml"), 2),
        (("submit", "--code", "nowhere", "--", "python", "-V"), 2),
        (("submit", "--workers", "-1", "--", "python", "-V"), 2),
        (("submit", "--workers", "two", "--", "python", "-V"), 2),
        (("submit", "--cpus", "many", "--", "python", "-V"), 2),
        (("show", UNKNOWN), 3),
        (("logs", "-f", UNKNOWN), 3),
        (("wait", UNKNOWN), 3),
        (("cancel", "job_../../nodes"), 3),
        (("download", UNKNOWN), 3),
        (("list", "--state", "asleep"), 2),
        (("wait", UNKNOWN, "--timeout", "soon"), 2),
        (("list", "--server", "http://127.0.0.1:1"), 5),
        (("list", "--server", "nonsense"), 2),
        (("explode",), 2),
    ),
)
def test_a_bad_command_is_one_line_and_the_documented_exit_code(
    service: Embedded, tmp_path: Path, words: tuple[str, ...], code: int
) -> None:
    refused = service.remora(*words, folder=tmp_path)
    assert refused.code == code, refused
    assert refused.complaint


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", f"/v1/jobs/{UNKNOWN}", 404, "job_not_found"),
        ("GET", f"/v1/jobs/{UNKNOWN}/logs", 404, "job_not_found"),
        ("GET", "/v1/jobs/%00%ff", 404, "job_not_found"),
        ("POST", f"/v1/jobs/{UNKNOWN}/cancel", 404, "job_not_found"),
        ("GET", "/v1/jobs?cursor=!!", 422, "invalid_cursor"),
        ("GET", "/v1/jobs?stat=queued", 422, "invalid_parameter"),
        ("GET", "/v1/jobs?state=asleep", 422, "invalid_parameter"),
        ("GET", "/v1/jobs?limit=-1", 422, "invalid_parameter"),
        ("GET", f"/v1/nodes?limit={10**30}", 422, "invalid_parameter"),
        ("GET", "/v1/nothing", 404, "not_found"),
        ("GET", "/v1/bundles/sha256:12", 404, "bundle_not_found"),
        ("DELETE", "/v1/jobs", 405, "method_not_allowed"),
    ],
)
def test_a_bad_request_is_a_problem_with_a_stable_code(
    raw_client: RawClient, method: str, path: str, status: int, code: str
) -> None:
    assert raw_client.send(method, path).is_problem(status, code)


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"{", 400, "invalid_json"),
        (b'{"command": "python \xff"}', 400, "invalid_encoding"),
        (b'{"command": "a", "command": "b"}', 400, "invalid_json"),
        (b"[" * 100_000, 400, "invalid_json"),
        (b'{"command": ["python"], "priority": NaN}', 400, "invalid_json"),
        (b"[]", 422, "invalid_spec"),
        (b"{}", 422, "invalid_spec"),
        (b'{"command": ["python"], "workers": -2}', 422, "invalid_spec"),
        (b'{"command": ["python"], "code": "."}', 422, "invalid_spec"),
        (b'{"command": ["python"], "code": "sha256:' + b"0" * 64 + b'"}', 422, "bundle_not_found"),
    ],
)
def test_a_bad_job_is_a_problem_with_a_stable_code(
    raw_client: RawClient, body: bytes, status: int, code: str
) -> None:
    assert raw_client.send("POST", "/v1/jobs", body).is_problem(status, code)


def test_a_refused_job_names_the_field_and_the_nearest_known_one(raw_client: RawClient) -> None:
    reply = raw_client.send("POST", "/v1/jobs", json.dumps({"comand": "python", "priority": 500}).encode())
    assert reply.is_problem(422, "invalid_spec")
    reported = {error["field"]: error["message"] for error in reply.json["errors"]}
    assert "did you mean command?" in reported["comand"]
    assert "500" in reported["priority"]


@pytest.mark.parametrize("announced", [True, False])
def test_a_body_of_100_mb_is_refused_whether_or_not_it_says_its_length(
    raw_client: RawClient, announced: bool
) -> None:
    assert raw_client.send_chunks("POST", "/v1/jobs", 100, announced=announced).is_problem(413, "too_large")


def test_bodies_that_are_no_json(raw_client: RawClient) -> None:
    assert raw_client.send("POST", "/v1/jobs", b"a=b", content_type="text/plain").is_problem(
        415, "unsupported_media_type"
    )
    assert raw_client.send("POST", "/v1/jobs", b"{}", idempotency_key="k" * 200).is_problem(
        422, "invalid_idempotency_key"
    )
    assert raw_client.send("GET", "/v1/jobs", host="evil.example").is_problem(421, "unknown_host")


def test_bundles_are_checked_before_they_are_kept(raw_client: RawClient, service: Embedded) -> None:
    text = b"this is no archive"
    digest = f"sha256:{hashlib.sha256(text).hexdigest()}"
    other = "sha256:" + "1" * 64
    assert raw_client.send("PUT", f"/v1/bundles/{digest}", text).is_problem(422, "bundle_invalid")
    assert raw_client.send("PUT", f"/v1/bundles/{other}", text).is_problem(422, "bundle_invalid")
    for name in (digest, other):
        assert raw_client.send("HEAD", f"/v1/bundles/{name}").status == 404
    assert list((service.home / "uploads").glob("*")) == []
