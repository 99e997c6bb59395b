"""`remora alerts ...` and both clients against a real service."""

from __future__ import annotations

import asyncio
import io
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvicorn

import remora
from remora.alert_kinds import AlertKind
from remora.cli.exits import ExitCode
from remora.errors import ConfigurationError, Invalid, NotFound
from service.api.app import create_app
from service.settings import Settings
from tests.command_line import Cli

URL = "https://hooks.example.com/services/sssssecret"


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Of a service."""
    home = tmp_path_factory.mktemp("remora") / "home"
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(create_app(Settings(home=Path(home), nodes=2)), log_config=None))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    server.should_exit = True
    thread.join()
    listening.close()


@pytest.fixture
def alerts(capsys: pytest.CaptureFixture[str], address: str, monkeypatch: pytest.MonkeyPatch) -> Cli:
    monkeypatch.setenv("REMORA_SERVER", address)
    return Cli(capsys, "alerts")


def test_from_the_creation_to_the_deletion(alerts: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    assert alerts("list") == ExitCode.OK
    assert "remora alerts create" in alerts.out + alerts.err
    on = ("--on", "job_failed", "--on", "budget", "--percent", "70", "--waits", "30m", "--slower", "3")
    assert alerts("create", "--project", "vision", "--webhook", URL, *on) == ExitCode.OK
    assert "notifies https://hooks.example.com." in alerts.out
    assert "which is not shown again: whsec_" in alerts.out
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(f"{URL}\n".encode())))
    assert alerts("create", "--slack", "-", "--on", "node_sick", "--json") == ExitCode.OK
    cluster = alerts.json
    assert (cluster["project"], cluster["secret"], cluster["channel"]) == (None, None, "slack")
    assert alerts("list") == ExitCode.OK
    assert "vision (own)" in alerts.out
    assert "the whole cluster" in alerts.out
    assert "sssssecret" not in alerts.out
    assert alerts("list", "--json") == ExitCode.OK
    (_, first) = alerts.json
    assert (first["wait_s"], first["budget_percents"], first["slow_factor"]) == (1800.0, [70], 3.0)
    assert alerts("test", cluster["id"]) == ExitCode.OK
    assert "is on its way" in alerts.out
    assert alerts("show", cluster["id"]) == ExitCode.OK
    assert "this is a test of an alert" in alerts.out
    assert "pending" in alerts.out
    for one in (cluster["id"], first["id"]):
        assert alerts("delete", one) == ExitCode.OK
    assert alerts("show", cluster["id"]) == ExitCode.NOT_FOUND


@pytest.mark.parametrize(
    "words",
    [
        ("--on", "job_ended"),
        ("--on", "job_ended", "--webhook", URL, "--slack", URL),
        ("--on", "job_ended", "--webhook", URL, "--waits", "soon"),
        ("--webhook", URL),
    ],
)
def test_what_is_no_alert_is_refused_before_it_is_sent(alerts: Cli, words: tuple[str, ...]) -> None:
    assert alerts("create", "--project", "vision", *words) == ExitCode.USAGE
    assert "sssssecret" not in alerts.err


def test_what_the_service_refuses_is_said(alerts: Cli) -> None:
    words = ("create", "--project", "vision", "--on", "no_such", "--webhook", URL)
    assert alerts(*words) == ExitCode.USAGE
    assert "kinds" in alerts.err
    assert (
        alerts("create", "--project", "vision", "--on", "hang", "--email", "ann@example.com") != ExitCode.OK
    )
    assert "REMORA_SMTP_HOST" in alerts.err
    assert alerts("delete", "../../v1/jobs") == ExitCode.NOT_FOUND


def test_both_clients(address: str) -> None:
    with remora.Client(address) as client:
        made = client.create_alert([AlertKind.HANG], project="vision", webhook=URL, all_jobs=True)
        assert made.jobs == "all"
        assert made.secret is not None
        assert client.alert(made.id).kinds == [AlertKind.HANG]
        sent = client.test_alert(made.id)
        assert [one.id for one in client.notifications(made.id)] == [sent.id]
        with pytest.raises(ConfigurationError):
            client.create_alert([AlertKind.HANG], project="vision")
        with pytest.raises(Invalid):
            client.create_alert(["no_such"], project="vision", webhook=URL)

    async def asynchronous() -> None:
        async with remora.AsyncClient(address) as client:
            assert [one.id for one in await client.alerts()] == [made.id]
            assert (await client.delete_alert(made.id)).id == made.id
            with pytest.raises(NotFound):
                await client.alert(made.id)

    asyncio.run(asynchronous())
