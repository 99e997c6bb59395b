"""Specifications that are sent as YAML: read as the command line reads a file, within the same limits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from service.api.app import create_app
from service.settings import Settings

YAML = {"Content-Type": "application/yaml"}


#: A short text that would be a billion values.
BOMB = "a: &a0 [x, x]\n" + "".join(f"b{n}: &a{n + 1} [*a{n}, *a{n}]\n" for n in range(30))


@pytest.fixture
def client(tmp_path: Path) -> Iterator[TestClient]:
    with TestClient(create_app(Settings(home=tmp_path / "home")), base_url="http://127.0.0.1") as client:
        yield client


def sent(client: TestClient, text: str | bytes, status: int, **headers: str) -> dict[str, Any]:
    answer = client.post("/v1/jobs", content=text, headers={**YAML, **headers})
    assert answer.status_code == status, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_a_job_is_the_one_that_its_json_would_be(client: TestClient) -> None:
    text = "name: a\ncommand: python train.py\nworkers: {min: 1, max: 2}\nenvironment: {variables: {MODE: 'yes'}}\n"
    by_yaml = sent(client, text, 201)
    document = {
        "name": "a",
        "command": "python train.py",
        "workers": {"min": 1, "max": 2},
        "environment": {"variables": {"MODE": "yes"}},
    }
    by_json = client.post("/v1/jobs", json=document).json()
    assert by_yaml["spec"] == by_json["spec"]


def test_the_same_text_with_the_same_key_is_one_job(client: TestClient) -> None:
    first = sent(client, "command: a", 201, **{"Idempotency-Key": "k"})
    assert sent(client, "command: a # again", 201, **{"Idempotency-Key": "k"})["id"] == first["id"]
    assert sent(client, "command: b", 409, **{"Idempotency-Key": "k"})["code"] == "idempotency_key_reused"


@pytest.mark.parametrize(
    ("text", "status", "words"),
    [
        ("a: [", 422, "is not YAML"),
        ("- a\n- b", 422, "mapping"),
        ("", 422, "mapping"),
        ("command: a\n---\ncommand: b", 422, "2 documents"),
        (b"command: \xff", 400, "not UTF-8"),
        ("command: a\ncommand: b", 422, "command"),
        ("workers: {min: 0}\ncommand: a", 422, "workers.min"),
        ("&a [" + "[" * 5000, 422, ""),
        (BOMB, 422, ""),
        ("!!python/object/apply:os.system [true]", 422, ""),
        ("command: a\nname: " + "x" * 300_000, 413, "bytes"),
    ],
)  # fmt: skip
def test_what_is_no_specification_is_refused_in_one_answer(
    client: TestClient, text: str, status: int, words: str
) -> None:
    assert words in str(sent(client, text, status))


def test_another_type_is_named(client: TestClient) -> None:
    answer = client.post("/v1/jobs", content="command: a", headers={"Content-Type": "text/plain"})
    assert (answer.status_code, answer.json()["code"]) == (415, "unsupported_media_type")
