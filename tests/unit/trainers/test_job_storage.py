"""A job's processes reach the names of that job: in a storage that is a folder, too."""

from __future__ import annotations

import asyncio
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from tests.attempt_plans import plan_of
from trainers.driver import storage_requests
from trainers.driver.storage_requests import StorageRequests
from trainers.input_source import InputSource
from trainers.job_storage import JobStorages, bundle_file, job_scopes, no_service
from trainers.plan import AttemptPlan
from trainers.storage import Storage, StorageError
from trainers.storage_grants import Scope, StorageAnswer, StorageRequest


def attempt_plan(**fields: Any) -> AttemptPlan:
    """An attempt of job_1."""
    known = {
        "job_id": "job_1",
        "attempt_id": "attempt_1",
        "attempt": 1,
        "command": ["true"],
        "backend": "none",
    }
    return plan_of(**known, resources={}, min_workers=1, max_workers=1, **fields)


OWN, OTHER = "jobs/job_1/checkpoints/a", "jobs/job_12/checkpoints/a"


def test_the_names_of_an_attempt_are_those_of_its_job_its_code_and_its_inputs() -> None:
    inputs = {
        "data": InputSource(url="/data", path="images/"),
        "all": InputSource(url="/more"),
        "model": InputSource(url="/own", also=("/data",), job_id="job_9", output="final"),
    }
    plan = attempt_plan(bundle="sha256:ab", storage_url="/own", checkpoint_url="/models", inputs=inputs)
    outputs = "jobs/job_9/outputs"
    assert job_scopes(plan) == {
        "/own": Scope(reads=("bundles/ab.zip", outputs), writes=("jobs/job_1",)),
        "/models": Scope(writes=("jobs/job_1",)),
        "/data": Scope(reads=("images", outputs)),
        "/more": Scope(reads=("",)),
    }


@pytest.mark.parametrize(
    ("name", "action", "is_covered"),
    [
        ("jobs/job_1", "write", True),
        ("jobs/job_1/a", "list", True),
        ("jobs/job_12", "read", False),
        ("jobs", "list", False),
        ("images", "read", True),
        ("images/a", "write", False),
        ("", "list", False),
    ],
)
def test_a_name_stands_for_itself_and_all_below(name: str, action: str, is_covered: bool) -> None:
    scope = Scope(reads=("images",), writes=("jobs/job_1",))
    assert (scope.covering(name, action) is not None) is is_covered  # type: ignore[arg-type]


def test_a_folder_is_confined_too(tmp_path: Path) -> None:
    whole = Storage(tmp_path)
    for name in (OWN, OTHER, "bundles/ab.zip", "bundles/cd.zip"):
        whole.write_bytes(name, b"x")
    plan = attempt_plan(bundle="sha256:ab", storage_url=str(tmp_path), checkpoint_url=str(tmp_path))
    storages = JobStorages(plan, no_service)
    own = storages.open(str(tmp_path))
    own.write_bytes(OWN, b"y")
    assert own.read_bytes(bundle_file("sha256:ab")) == b"x"
    for name in (OTHER, "jobs", "bundles/cd.zip", "bundles"):
        for attack in (
            own.read_bytes,
            own.open_read,
            own.names,
            own.sizes,
            own.exists,
            own.delete,
            own.location,
        ):
            with pytest.raises(StorageError, match="this process may not"):
                attack(name)
        with pytest.raises(StorageError, match="this process may not write"):
            own.write_bytes(name, b"z")
        with pytest.raises(StorageError, match="this process may not"):
            own.rename(OWN, name)
    with pytest.raises(StorageError, match="may not write"):
        own.write_bytes("bundles/ab.zip", b"z")
    with pytest.raises(StorageError, match="may not read"):
        own.entries("")
    with pytest.raises(StorageError, match="nothing in that storage"):
        storages.open("/elsewhere")
    assert whole.read_bytes(OTHER) == b"x"


def test_what_is_made_in_a_folder_is_for_its_user_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        Storage(tmp_path / "storage").write_bytes(OWN, b"x")
    finally:
        os.umask(before)
    for folder in ("", "jobs", "jobs/job_1", "jobs/job_1/checkpoints"):
        assert stat.S_IMODE((tmp_path / "storage" / folder).stat().st_mode) == 0o700


def request(name: str = OWN) -> StorageRequest:
    return StorageRequest(url="abfs://c@a.dfs.core.windows.net", action="read", names=(name,))


def test_a_request_waits_for_the_service_and_is_handed_out_again_when_that_dies() -> None:
    async def scene() -> None:
        now = 0.0
        requests = StorageRequests(lambda: now)
        asked = asyncio.ensure_future(requests.ask(request()))
        ((number, first),) = await requests.poll()
        assert first == request()
        now = 60.0
        assert await requests.poll() == [(number, first)], "who took it has not answered"
        requests.answer({number + 1: StorageAnswer(refusal="of no one")})
        requests.answer({number: StorageAnswer(entries=())})
        requests.answer({number: StorageAnswer(refusal="too late")})
        assert await asked == StorageAnswer(entries=())

    asyncio.run(scene())


def test_a_poll_that_waits_gets_what_is_asked_meanwhile() -> None:
    async def scene() -> None:
        requests = StorageRequests()
        poll = asyncio.ensure_future(requests.poll())
        await asyncio.sleep(0)
        asked = asyncio.ensure_future(requests.ask(request()))
        ((number, _),) = await poll
        requests.answer({number: StorageAnswer(entries=())})
        await asked

    asyncio.run(scene())


def test_without_a_service_there_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage_requests, "ANSWERED_S", 0.01)
    answer = asyncio.run(StorageRequests().ask(request()))
    assert answer.refusal == "the service has not answered for 0.01 s"
