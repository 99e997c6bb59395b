"""`remora shell` without a terminal, against a service whose shells a test makes up."""

from __future__ import annotations

import base64
import json
import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from remora.cli import shells
from remora.cli.exits import ExitCode
from remora.views import ShellExchange, ShellOutput, ShellSession
from tests.command_line import Cli
from tests.unit.remora.fake_service import FakeService


@pytest.fixture
def typing(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """What is written to it is on standard input."""
    read, write = os.pipe()
    with os.fdopen(read) as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        yield write
    os.close(write)


@pytest.fixture
def printed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, bytes]]:
    found: list[tuple[int, bytes]] = []
    monkeypatch.setattr(shells, "_write", lambda stream, content: found.append((stream, content)))
    return found


def said(*chunks: tuple[int, str, bytes], **fields: Any) -> ShellExchange:
    known: dict[str, Any] = {
        "number": 2,
        "attempt": 1,
        "rank": 1,
        "principal": "local",
        "command": [],
        "state": "open",
        "requested_at": 1.0,
    }
    output = [
        ShellOutput(seq=seq, stream=stream, data=base64.b64encode(content).decode())
        for seq, stream, content in chunks
    ]
    return ShellExchange(shell=ShellSession(**{**known, **fields}), input_seq=0, output=output)


def ended(**fields: Any) -> ShellExchange:
    return said(state="ended", ended_at=2.0, **fields)


def test_streams_stay_apart_and_the_exit_code_is_that_of_the_command(
    cli: Cli, service: FakeService, typing: int, printed: list[tuple[int, bytes]]
) -> None:
    service.add_job()
    service.exchanges = [said((1, "stdout", b"out\xff"), (2, "stderr", b"err")), said(), ended(exit_code=42)]
    assert cli("shell", "last", "--rank", "1", "--", "ls", "-l") == 42
    assert printed == [(1, b"out\xff"), (2, b"err")]
    asked = [json.loads(one.body) for one in service.requests if one.method == "POST"]
    assert (asked[0]["rank"], asked[0]["command"], "rows" in asked[0]) == (1, ["ls", "-l"], False)
    assert [one["after"] for one in asked[1:] if "seq" not in one] == [0, 2, 2]
    assert service.closed == 0


def test_input_is_sent_until_it_is_kept_and_its_end_too(
    cli: Cli, service: FakeService, typing: int, printed: list[tuple[int, bytes]]
) -> None:
    service.add_job()
    service.exchanges, service.lost = [said()], 2
    os.write(typing, b"nvidia-smi\n")
    closing = os.dup(typing)

    def end() -> None:
        if len(service.typed) >= 3:
            service.exchanges = [ended(exit_code=0)]
        else:
            threading.Timer(0.01, end).start()

    end()
    assert cli("shell", "last") == 0
    os.close(closing)
    assert service.typed[:3] == [(1, b"nvidia-smi\n")] * 3


def test_an_end_that_is_not_the_commands_is_said_without_control_characters(
    cli: Cli, service: FakeService, typing: int, printed: list[tuple[int, bytes]]
) -> None:
    service.add_job()
    service.exchanges = [ended(message="it was open for 8 h \x1b]0;owned\x07")]
    assert cli("shell", "last") == ExitCode.ERROR
    assert "The shell has ended: it was open for 8 h" in cli.err
    assert "\x1b" not in cli.err


def test_what_is_not_allowed_is_said(cli: Cli, service: FakeService, typing: int) -> None:
    service.add_job()
    assert cli("shell", "last") == ExitCode.FORBIDDEN
    assert cli.err.startswith("remora: shells are off in this service")


def test_output_that_cannot_be_written_closes_the_shell(
    cli: Cli, service: FakeService, typing: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.add_job()

    def fail(*_: object, **__: object) -> None:
        raise OSError("no space left")

    service.exchanges = [said((1, "stdout", b"x"))]
    monkeypatch.setattr(shells, "_write", fail)
    assert cli("shell", "last") == ExitCode.ERROR
    assert service.closed == 1
