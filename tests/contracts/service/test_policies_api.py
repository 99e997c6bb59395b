"""Policies over HTTP, on SQLite and on PostgreSQL: versions, who wins, what is refused, and what is reported of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from cluster.policies import documents as policy_documents
from remora.views import Policy, Problem
from service.api.app import create_app
from service.settings import Settings

pytestmark = pytest.mark.postgresql_in_soak

FIRST = "pools:\n  local: {sizes: [local], capacity: on-demand, min_nodes: 1, max_nodes: 4}  # by day\n"
SECOND = FIRST.replace("max_nodes: 4", "max_nodes: 5")


@pytest.fixture
def client(database_url: str, tmp_path: Path) -> Iterator[TestClient]:
    settings = Settings(home=tmp_path, database_url=database_url, nodes=2)
    with TestClient(create_app(settings), base_url="http://127.0.0.1") as opened:
        yield opened


def post(client: TestClient, path: str = "/v1/policies", **body: Any) -> Any:
    # Half characters can be sent as escapes only.
    return client.post(path, content=json.dumps(body), headers={"Content-Type": "application/json"})


def apply(client: TestClient, document: str, based_on: int, **more: Any) -> Policy:
    answer = post(client, document=document, based_on=based_on, **more)
    assert answer.status_code == 201, answer.text
    policy = Policy.model_validate_json(answer.content)
    assert answer.headers["location"] == f"/v1/policies/{policy.version}"
    return policy


def get(client: TestClient, version: int | str = "newest") -> Policy:
    answer = client.get(f"/v1/policies/{version}")
    assert answer.status_code == 200, answer.text
    return Policy.model_validate_json(answer.content)


def versions(client: TestClient) -> list[int]:
    return [one["version"] for one in client.get("/v1/policies").json()["items"]]


def problem(answer: Any, status: int, code: str) -> Problem:
    assert answer.status_code == status, answer.text
    found = Problem.model_validate_json(answer.content)
    assert found.code == code
    return found


def events(client: TestClient, **parameters: int) -> list[tuple[str, dict[str, Any]]]:
    items = client.get("/v1/events", params=parameters).json()["items"]
    return [(event["kind"], event["data"]) for event in items]


def test_without_any_the_policies_are_made_from_the_settings(client: TestClient) -> None:
    policy = get(client)
    assert (policy.version, policy.comment) == (0, "made from the settings")
    assert policy.policies is not None
    pool = policy.policies["pools"]["local"]
    assert (pool["min_nodes"], pool["max_nodes"], pool["capacity"]) == (2, 2, "on-demand")
    assert versions(client) == [0]
    assert get(client, 0) == policy


def test_a_version_is_kept_as_it_was_written(client: TestClient) -> None:
    first = apply(client, FIRST, 0, author="ada", comment="more by day")
    assert (first.version, first.based_on, first.document) == (1, 0, FIRST)
    assert (first.author, first.comment) == ("ada", "more by day")
    second = apply(client, SECOND, 1)
    assert get(client) == second
    assert get(client, 1) == first
    assert versions(client) == [2, 1, 0]
    assert events(client) == [
        ("policies.applied", {"version": 1, "based_on": 0, "digest": first.digest}),
        ("policies.applied", {"version": 2, "based_on": 1, "digest": second.digest}),
    ]


def test_a_change_of_what_another_operator_changed_is_refused(client: TestClient) -> None:
    apply(client, FIRST, 0)
    answer = post(client, document=SECOND, based_on=0)
    assert (
        "at version 1, and this change was made to version 0"
        in problem(answer, 409, "policies_changed").detail
    )
    assert versions(client) == [1, 0]


def test_of_many_at_once_one_wins(client: TestClient) -> None:
    def put_version(number: int) -> int:
        document = FIRST.replace("max_nodes: 4", f"max_nodes: {10 + number}")
        return post(client, document=document, based_on=0).status_code

    with ThreadPoolExecutor(8) as pool:
        assert sorted(pool.map(put_version, range(8))) == [201] + [409] * 7
    assert versions(client) == [1, 0]


def test_what_is_in_force_makes_no_version(client: TestClient) -> None:
    apply(client, FIRST, 0)
    again = post(client, document=FIRST, based_on=0)
    assert (again.status_code, again.json()["version"]) == (200, 1)
    assert len(events(client)) == 1


def test_a_rollback_is_a_new_version(client: TestClient) -> None:
    first, _ = apply(client, FIRST, 0), apply(client, SECOND, 1)
    answer = post(client, restores=1, based_on=2, author="eve")
    assert answer.status_code == 201
    third = get(client)
    assert (third.version, third.restores, third.document) == (3, 1, first.document)
    assert events(client, after=2)[-1] == (
        "policies.rolled_back",
        {"version": 3, "restores": 1, "digest": first.digest},
    )
    post(client, restores=0, based_on=3)
    assert "REMORA_NODES" in get(client, 4).document


def test_everything_that_is_wrong_is_reported_with_its_lines(client: TestClient) -> None:
    document = "pools:\n  local:\n    sizes: [loca]\n    max_nodes: 3\n  b: {sizes: [local], max_nodes: 65}\n"
    answer = post(client, document=document, based_on=0)
    found = problem(answer, 422, "invalid_policies")
    assert [(one.field, one.lines) for one in found.errors] == [
        ("pools.local.sizes.0", [3]),
        ("pools.b.max_nodes", [5]),
    ]
    assert "did you mean local?" in found.errors[0].message
    checked = post(client, "/v1/policies/check", document=document).json()
    assert checked["problems"] == [one.model_dump() for one in found.errors]
    assert versions(client) == [0]


def test_a_check_stores_nothing_and_shows_what_is_meant(client: TestClient) -> None:
    checked = post(client, "/v1/policies/check", document=FIRST).json()
    assert (checked["problems"], checked["is_in_force"]) == ([], False)
    assert checked["policies"]["pools"]["local"]["idle_s"] == 300.0
    assert versions(client) == [0]
    apply(client, FIRST, 0)
    assert post(client, "/v1/policies/check", document=FIRST).json()["is_in_force"]


def test_lists_page(client: TestClient) -> None:
    for number in range(5):
        apply(client, FIRST.replace("max_nodes: 4", f"max_nodes: {10 + number}"), number)
    seen: list[int] = []
    cursor: str | None = None
    while True:
        page = client.get(
            "/v1/policies", params={"limit": 2, **({"cursor": cursor} if cursor else {})}
        ).json()
        seen += [one["version"] for one in page["items"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert seen == [5, 4, 3, 2, 1, 0]
    page = client.get("/v1/events", params={"limit": 3}).json()
    rest = client.get("/v1/events", params={"cursor": page["next_cursor"]}).json()
    assert [event["data"]["version"] for event in (*page["items"], *rest["items"])] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"based_on": 0}, "either `document` or `restores`"),
        ({"based_on": 0, "document": FIRST, "restores": 1}, "either `document` or `restores`"),
        ({"document": FIRST}, "based_on"),
        ({"document": FIRST, "based_on": -1}, "based_on"),
        ({"document": 7, "based_on": 0}, "document"),
        ({"document": FIRST, "based_on": 0, "x\ud800": 1}, "unicode"),
    ],
)
def test_bad_bodies_are_answered(client: TestClient, body: dict[str, Any], said: str) -> None:
    assert said in problem(post(client, **body), 422, "invalid_parameter").detail


def test_what_only_a_newer_release_finds_is_refused_at_once_and_replaces_no_version(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    crossed = "pools: {local: {sizes: [local], max_nodes: 2, min_nodes: 3}}"
    with monkeypatch.context() as older:
        older.setattr(policy_documents, "conflicts", lambda policies: ())
        apply(client, crossed, 0)
    shown = get(client)
    assert shown.policies is not None
    assert shown.policies["pools"]["local"]["max_nodes"] == 2
    (pool,) = client.get("/v1/pools").json()["items"]
    assert pool["max_nodes"] == 2
    assert post(client, "/v1/policies/check", document=crossed).json()["problems"]
    apply(client, FIRST, 1)
    problem(post(client, restores=1, based_on=2), 422, "invalid_policies")


def test_odd_texts_are_no_trouble(client: TestClient) -> None:
    apply(client, FIRST + "# \u00e9\u4e16\u0085\n", 0, author="a\x00b ", comment="x\ny")
    assert (get(client).author, get(client).comment) == ("a b", "x y")
    for document in ("\x00", "\ud800", "pools: {'\\0': {}}", 'pools: {"\\ud800": {}}'):
        problem(post(client, document=document, based_on=1), 422, "invalid_policies")
    for version in ("9", "-1", "9" * 30, "x", "1.0", "%00"):
        problem(client.get(f"/v1/policies/{version}"), 404, "policies_not_found")


def test_a_project_has_no_more_jobs_than_its_policy_lets_it(client: TestClient) -> None:
    apply(client, f"{FIRST}projects:\n  vision: {{jobs: 2}}\n", 0)

    def submit(path: str, **fields: Any) -> Any:
        return client.post(path, json={"command": "python train.py", "project": "vision", **fields})

    three = {"list": [{"seed": seed} for seed in range(3)]}
    problem(submit("/v1/arrays", array=three), 429, "too_many_jobs_of_project")
    first, _ = (submit("/v1/jobs").json()["id"] for _ in range(2))
    refused = problem(submit("/v1/jobs"), 429, "too_many_jobs_of_project")
    assert refused.detail == "2 jobs of the project vision wait or run and its limit is 2"
    assert submit("/v1/jobs", project="speech").status_code == 201
    client.post(f"/v1/jobs/{first}/cancel")
    assert submit("/v1/jobs").status_code == 201
