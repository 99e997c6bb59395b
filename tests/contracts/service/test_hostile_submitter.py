"""A submitter of one project tries to have its own jobs, arrays, schedules and clones use what another project has."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from service.store.database import Database
from tests.contracts.service.two_projects import COMMAND, Service, packed, service_of

pytestmark = pytest.mark.postgresql_in_soak


class Attack:
    """The submitter of red, and what blue has."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.submitter = service.token({"red": "submitter"})
        self.code, content = packed("# of blue")
        service.made("PUT", f"/v1/bundles/{self.code}", content=content)
        self.job = service.submit("blue", code=self.code)
        service.made("PUT", "/v1/projects/blue/secrets/TOKEN", json={"value": "a secret of blue"})
        self.own = self.ask("POST", "/v1/jobs", json={"command": COMMAND, "project": "red"}).json()["id"]

    def ask(self, method: str, path: str, **options: Any) -> Any:
        return self.service.ask(self.submitter, method, path, **options)

    def every_way(self, fields: dict[str, Any]) -> Iterator[Any]:
        """The answers to a job, an array, a schedule and a clone of one's own job with these fields."""
        spec = {"command": COMMAND, "project": "red", **fields}
        yield self.ask("POST", "/v1/jobs", json=spec)
        yield self.ask("POST", "/v1/arrays", json={**spec, "array": {"grid": {"lr": [1, 2]}}})
        yield self.ask("POST", "/v1/schedules", json={**spec, "schedule": "0 3 * * *"})
        yield self.ask("POST", f"/v1/jobs/{self.own}/clone", json={"set": fields})


@pytest.fixture
def attack(database: Database, database_url: str, tmp_path: Path) -> Iterator[Attack]:
    store = tmp_path / "store"
    store.mkdir()
    with service_of(database, database_url, tmp_path / "home", stores={"data": str(store)}) as made:
        yield Attack(made)


def test_what_another_project_has_is_no_part_of_a_submission(attack: Attack) -> None:
    named = [
        {"code": attack.code, "command": "python train.py"},
        {"after": [attack.job]},
        {"after": [{"job": attack.job, "when": "any"}]},
        {"inputs": {"a": {"job": attack.job, "output": "weights"}}},
        {"environment": {"secrets": ["TOKEN"]}},
    ]
    for fields in named:
        for answer in attack.every_way(fields):
            assert answer.status_code == 422, f"{fields}: {answer.text}"
            assert "secret of blue" not in answer.text


@pytest.mark.parametrize(
    "path",
    ["", ".", "./", "./.", "jobs", "jobs/", "./jobs", ".//jobs/x", "//jobs/x", "bundles", "././bundles/x"],
)
def test_folders_in_which_jobs_keep_their_files_are_no_input_of_a_store(attack: Attack, path: str) -> None:
    for answer in attack.every_way({"inputs": {"a": {"store": "data", "path": path}}}):
        assert answer.status_code == 422, answer.text
        assert "inputs.a.path" in answer.text


def test_a_folder_of_ones_own_in_a_store_is_one(attack: Attack) -> None:
    for path in ("images", "./images/a", "my/jobs"):
        for answer in attack.every_way({"inputs": {"a": {"store": "data", "path": path}}}):
            assert answer.status_code == 201, answer.text


def test_keys_and_digests_of_others_are_of_no_use(attack: Attack) -> None:
    """They may be guessed, or read over a shoulder."""
    service = attack.service
    body = {"command": COMMAND, "project": "blue", "name": "of-blue"}
    made = service.made("POST", "/v1/jobs", json=body, headers={"Idempotency-Key": "night"})
    again = attack.ask("POST", "/v1/jobs", json=body, headers={"Idempotency-Key": "night"})
    assert (again.status_code, made["id"] in again.text) == (403, False)
    mine = {**body, "project": "red"}
    other = attack.ask("POST", "/v1/jobs", json=mine, headers={"Idempotency-Key": "night"})
    assert other.status_code == 201
    assert other.json()["id"] != made["id"]
    for content in (b"", b"PK", packed("# of red")[1]):
        assert attack.ask("PUT", f"/v1/bundles/{attack.code}", content=content).status_code == 422
        assert attack.ask("GET", f"/v1/bundles/{attack.code}").status_code == 404


def test_a_cursor_of_another_principal_gives_what_one_sees_oneself(attack: Attack) -> None:
    service = attack.service
    for _ in range(3):
        service.submit("blue")
    cursor = service.made("GET", "/v1/jobs", params={"limit": 1})["next_cursor"]
    page = attack.ask("GET", "/v1/jobs", params={"cursor": cursor}).json()["items"]
    assert {one["project"] for one in page} <= {"red"}
