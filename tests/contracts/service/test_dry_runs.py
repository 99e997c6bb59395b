"""A dry run names every reason against a job, shows what it would be, and stores nothing."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
import sqlalchemy as sa
import uvicorn

import remora
from remora.cli.exits import ExitCode
from service.api.app import create_app
from service.settings import Settings
from tests.command_line import Cli

GOOD: dict[str, Any] = {"command": "python train.py", "workers": {"min": 1, "max": 2}}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def service(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Address of a service with two nodes of two CPUs, which the command line finds by itself."""
    listening = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    app = create_app(Settings(home=home, nodes=2, node_cpus=2, max_active_jobs=3))
    server = uvicorn.Server(uvicorn.Config(app, log_config=None))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    monkeypatch.setenv("REMORA_SERVER", url)
    assert httpx2.get(f"{url}/healthz", timeout=120).status_code == 200, "it has made its database"
    yield url
    server.should_exit = True
    thread.join()
    listening.close()


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    return Cli(capsys)


def rows(home: Path) -> dict[str, int]:
    """How many rows each table has."""
    engine = sa.create_engine(f"sqlite:///{home / 'remora.db'}")
    with engine.connect() as connection:
        names = sa.inspect(connection).get_table_names()
        counted = {
            name: connection.scalar(sa.select(sa.func.count()).select_from(sa.table(name))) for name in names
        }
    engine.dispose()
    return {name: int(count or 0) for name, count in counted.items()}


def tried(service: str, spec: dict[str, Any]) -> httpx2.Response:
    return httpx2.post(f"{service}/v1/jobs", params={"dry_run": "true"}, json=spec, timeout=60)


def test_a_job_that_would_be_accepted_is_shown_with_its_defaults(service: str, home: Path) -> None:
    before = rows(home)
    answer = tried(service, GOOD)
    assert answer.status_code == 200
    found = answer.json()
    assert (found["problems"], found["never"], found["jobs"]) == ([], None, 1)
    assert found["spec"]["retry"]["limit"] == 3
    assert rows(home) == before, "nothing is stored"
    with remora.Client() as client:
        assert client.submit(GOOD).spec == found["spec"], "as it would be accepted"


def test_all_reasons_against_a_job_are_named_at_once(service: str, home: Path) -> None:
    other = f"job_{'0' * 26}"
    spec = {
        **GOOD,
        "code": "sha256:" + "0" * 64,
        "after": [{"job": other}],
        "environment": {"secrets": ["HF_TOKEN", "WANDB"]},
        "checkpoint": {"store": "nowhere"},
        "inputs": {"data": {"store": "lost", "path": "x"}},
        "resources": {"cpus": 64},
    }
    before = rows(home)
    found = tried(service, spec).json()
    assert {one["field"] for one in found["problems"]} == {
        "after.0.job",
        "checkpoint.store",
        "inputs.data.store",
        "environment.secrets.0",
        "environment.secrets.1",
        "code",
    }
    assert "remora secrets set HF_TOKEN" in str(found["problems"])
    assert found["never"] == (
        "no node of the pools has 64 CPU for a worker: ask for less in `resources`, or add larger nodes"
    )
    assert rows(home) == before


def test_what_is_no_specification_is_refused_with_all_its_problems(service: str) -> None:
    answer = tried(service, {"command": "", "workers": 0, "colour": "red"})
    assert answer.status_code == 422
    assert {one["field"] for one in answer.json()["errors"]} >= {"workers", "colour"}
    assert (
        httpx2.post(f"{service}/v1/jobs", params={"dry_run": "maybe"}, json=GOOD, timeout=60).status_code
        == 422
    )


def test_an_array_is_counted_against_the_limit_of_jobs(service: str, home: Path) -> None:
    spec = {**GOOD, "array": {"grid": {"lr": [1, 2, 3, 4]}}}
    before = rows(home)
    found = tried(service, spec).json()
    assert found["jobs"] == 4
    assert [one["field"] for one in found["problems"]] == [""]
    found = tried(service, {**spec, "array": {"grid": {"lr": [1, 2]}}}).json()
    assert (found["jobs"], found["problems"]) == (2, [])
    found = tried(service, {**GOOD, "schedule": "0 3 * * *"}).json()
    assert (found["jobs"], found["problems"]) == (1, [])
    assert rows(home) == before


def test_the_command_line_uploads_nothing_and_fails_where_the_job_would(
    service: str, home: Path, tmp_path: Path, cli: Cli
) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "train.py").write_text("print('trains')")
    before = rows(home)
    submit = ("submit", "--dry-run", "--code", str(code), "-w", "1:2")
    assert cli(*submit, "--", "python", "train.py") == ExitCode.OK
    assert "workers: {min: 1, max: 2, multiple_of: 1}" in cli.out
    assert "Nothing was submitted. It would be 1 job of the project default." in cli.err
    assert cli(*submit, "--cpus", "64", "--", "python", "train.py") == ExitCode.USAGE
    assert "It would never start: no node of the pools has 64 CPU" in cli.err
    assert cli(*submit, "--", "python", "absent.py") == ExitCode.USAGE
    assert "there is no file 'absent.py' in the code" in cli.err
    assert cli(*submit, "--json", "--", "python", "train.py") == ExitCode.OK
    assert cli.json["spec"]["command"] == ["python", "train.py"]
    assert rows(home) == before, "neither a job nor its code"
    assert not list((home).rglob("*.zip"))
