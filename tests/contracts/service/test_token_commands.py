"""From `remora login` to `remora audit`, with a real service that asks for tokens."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from remora.cli.exits import ExitCode
from service.embedded.parts import policies_version
from service.settings import Settings
from tests.command_line import Cli
from tests.contracts.service.test_service_process import Api, running_api


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "home"
    monkeypatch.setenv("REMORA_HOME", str(home))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in ("REMORA_SERVER", "REMORA_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    return home


@pytest.fixture
def api(home: Path) -> Iterator[Api]:
    with running_api(home, REMORA_AUTHENTICATION="required", REMORA_TOKEN="of-who-started-it") as started:
        yield started


def test_an_operator_gives_a_token_and_its_user_works_with_it(
    api: Api, home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cli = Cli(capsys)
    assert cli("whoami", "--json") == ExitCode.OK
    assert (cli.json["name"], cli.json["is_operator"]) == ("first operator", True)
    assert policies_version(api.url, Settings(home=home)) == 0, "what `remora up` asks"
    assert cli("tokens", "create", "nightly", "--role", "submitter", "--project", "red") == ExitCode.OK
    token = cli.out.strip()
    assert "not shown again" in cli.err
    assert cli("grants", "add", "user:ada", "--role", "viewer", "--project", "red") == ExitCode.OK

    # Somewhere else: another home, and no token.
    monkeypatch.setenv("REMORA_HOME", str(tmp_path / "elsewhere"))
    monkeypatch.setenv("REMORA_SERVER", api.url)
    assert cli("list") == ExitCode.FORBIDDEN
    assert cli.err.count("\n") == 1
    assert "remora login" in cli.err
    monkeypatch.setattr("sys.stdin", io.StringIO("rmr_wrong\n"))
    assert cli("login", "--token", "-") == ExitCode.FORBIDDEN
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{token}\n"))
    assert cli("login", "--token", "-") == ExitCode.OK
    assert token not in cli.out
    assert cli("whoami") == ExitCode.OK
    assert "submitter of red" in cli.out

    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump({"command": "python train.py", "project": "red"}))
    assert cli("submit", str(file), "-q") == ExitCode.OK
    job_id = cli.out.strip()
    file.write_text(yaml.safe_dump({"command": "python train.py", "project": "blue"}))
    assert cli("submit", str(file)) == ExitCode.FORBIDDEN
    assert "needs the role submitter in the project blue; you have none there" in cli.err
    assert cli("audit") == ExitCode.FORBIDDEN
    assert cli("tokens", "--json") == ExitCode.OK
    (mine,) = cli.json
    assert cli("logout") == ExitCode.OK
    assert cli("list") == ExitCode.FORBIDDEN

    monkeypatch.setenv("REMORA_HOME", str(home))
    monkeypatch.delenv("REMORA_SERVER")
    assert cli("tokens", "revoke", mine["id"]) == ExitCode.OK
    assert cli("grants", "remove", "user:ada", "--project", "red") == ExitCode.OK
    assert cli("audit", "--all", "--json") == ExitCode.OK
    lines = [json.loads(line) for line in cli.out.splitlines()]
    seen = [(one["operation"], one["outcome"]) for one in reversed(lines)]
    assert seen == [
        ("create_token", "done"),
        ("put_grant", "done"),
        ("submit_job", "done"),
        ("submit_job", "denied"),
        ("revoke_token", "done"),
        ("remove_grant", "done"),
    ]
    assert lines[3]["object"] == job_id
    assert lines[3]["principal"] == mine["owner"]
    assert cli("audit") == ExitCode.OK
    assert job_id in cli.out
    secrets = [token, (home / "operator.token").read_text().strip(), "of-who-started-it"]
    log = api.log.read_text()
    assert [one for one in secrets if one in log or one in cli.out] == []


def test_a_process_of_the_service_has_nothing_of_who_started_it(
    monkeypatch: pytest.MonkeyPatch, home: Path
) -> None:
    from cluster.local.environment import bare_environment, process_environment

    monkeypatch.setenv("REMORA_TOKEN", "of-who-started-it")
    assert "REMORA_TOKEN" not in process_environment(home)
    assert "REMORA_TOKEN" not in bare_environment()
