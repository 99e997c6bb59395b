"""Jobs that are submitted again with other values, on SQLite and on PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from remora.errors import SpecError
from remora.spec.overrides import overridden
from remora.spec.spec import JobSpec
from service.store.database import Database
from tests.contracts.service.owners import Owner, owner_of

pytestmark = pytest.mark.postgresql_in_soak


@pytest.fixture
def owner(database: Database, database_url: str, tmp_path: Path) -> Iterator[Owner]:
    with owner_of(database, database_url, tmp_path) as made:
        yield made


def clone(
    owner: Owner, job_id: str, status: int = 201, key: str | None = None, **values: Any
) -> dict[str, Any]:
    headers = {} if key is None else {"Idempotency-Key": key}
    answer = owner.client.post(f"/v1/jobs/{job_id}/clone", json={"set": values}, headers=headers)
    assert answer.status_code == status, answer.text
    body: dict[str, Any] = answer.json()
    return body


def test_a_clone_differs_in_what_was_set(owner: Owner) -> None:
    job_id = owner.submit(labels={"team": "vision"}, workers={"min": 1, "max": 2})
    values = {"workers.max": 4, "environment.variables.LR": "0.1", "priority": 9}
    made = clone(owner, job_id, **values)
    before = owner.job(job_id).spec
    assert made["id"] != job_id
    assert made["spec"]["workers"] == {"min": 1, "max": 4, "multiple_of": 1}
    assert made["spec"]["environment"]["variables"] == {"LR": "0.1"}
    changed = {"workers", "environment", "priority"}
    assert all(made["spec"][name] == before[name] for name in before.keys() - changed)
    (queued,) = owner.events(made["id"], "job.queued")
    assert queued[1] == f"job train was accepted, a clone of {job_id}"


def test_the_same_key_makes_one_clone(owner: Owner) -> None:
    first, second = owner.submit(), owner.submit()
    made = clone(owner, first, key="k", priority=1)
    assert clone(owner, first, key="k", priority=1)["id"] == made["id"]
    assert clone(owner, second, 409, key="k", priority=1)["code"] == "idempotency_key_reused"


def test_all_problems_are_named_at_once(owner: Owner) -> None:
    job_id = owner.submit()
    answer = clone(owner, job_id, 422, **{"workers.max": 0, "priority": 101, "worker.min": 1})
    assert {one["field"] for one in answer["errors"]} == {"workers.max", "priority", "worker"}
    answer = clone(owner, job_id, 422, **{"priority.x": 1, "": 2})
    assert {one["field"] for one in answer["errors"]} == {"priority.x", ""}
    answer = owner.client.post(f"/v1/jobs/{job_id}/clone", json={"values": {}})
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_change")


def test_a_job_that_was_deleted_cannot_be_cloned(owner: Owner) -> None:
    job_id = owner.submit()
    owner.ask(job_id, "cancel")
    owner.client.delete(f"/v1/jobs/{job_id}")
    assert clone(owner, job_id, 404)["code"] == "job_not_found"


def test_a_command_replaces_a_function_and_a_function_a_command() -> None:
    called = JobSpec.from_mapping({"entrypoint": "train:main", "arguments": {"lr": 0.1}}).to_mapping()
    other = JobSpec.from_mapping(overridden(called, {"arguments.lr": 0.2}))
    assert other.command[-1] == '{"lr": 0.2}'
    assert JobSpec.from_mapping(overridden(called, {"command": "true"})).entrypoint is None
    assert JobSpec.from_mapping(overridden(called, {"priority": 3})).command == called["command"]
    run = JobSpec.from_mapping({"command": "true"}).to_mapping()
    assert JobSpec.from_mapping(overridden(run, {"entrypoint": "a:b"})).entrypoint == "a:b"
    with pytest.raises(SpecError, match="there is a command too"):
        JobSpec.from_mapping(overridden(run, {"command": "x", "entrypoint": "a:b"}))
