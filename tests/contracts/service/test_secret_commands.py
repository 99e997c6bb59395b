"""`remora secrets ...` and both clients against a real service."""

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
from remora.cli.exits import ExitCode
from remora.errors import Invalid, NotFound
from service.api.app import create_app
from service.settings import Settings
from tests.command_line import Cli

VALUE = "value-of-a-secret"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """Address and home of a service."""
    home = tmp_path_factory.mktemp("remora") / "home"
    listening = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    server = uvicorn.Server(uvicorn.Config(create_app(Settings(home=home, nodes=2)), log_config=None))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    yield url, home
    server.should_exit = True
    thread.join()
    listening.close()


@pytest.fixture
def secrets(
    capsys: pytest.CaptureFixture[str], service: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> Cli:
    monkeypatch.setenv("REMORA_SERVER", service[0])
    return Cli(capsys, "secrets")


def typed(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))


def test_from_the_first_value_to_its_deletion(
    secrets: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, service: tuple[str, Path]
) -> None:
    assert secrets("list", "--project", "vision") == ExitCode.OK
    assert "Store one with: remora secrets set NAME --project vision" in secrets.out + secrets.err
    typed(monkeypatch, f"{VALUE}\n".encode())
    assert secrets("set", "HF_TOKEN", "--project", "vision") == ExitCode.OK
    assert secrets.out == "HF_TOKEN of the project vision has version 1.\n"
    (tmp_path / "key.pem").write_text("-----BEGIN-----\nabcdefgh\n-----END-----\n")
    assert (
        secrets("set", "PEM", "--project", "vision", "--from-file", str(tmp_path / "key.pem")) == ExitCode.OK
    )
    url = "https://jobs.vault.azure.net/secrets/wandb"
    assert secrets("set", "WANDB", "--project", "vision", "--key-vault", url, "--json") == ExitCode.OK
    assert (secrets.json["source"], secrets.json["version"]) == ("key_vault", 1)
    assert secrets("list", "--project", "vision") == ExitCode.OK
    assert [line.split()[:3] for line in secrets.out.splitlines()[1:]] == [
        ["HF_TOKEN", "1", "value"],
        ["PEM", "1", "value"],
        ["WANDB", "1", "key_vault"],
    ]
    assert VALUE not in secrets.out
    assert secrets("rotate") == ExitCode.OK
    assert "3 secrets were encrypted with the key key_" in secrets.out
    assert secrets("delete", "HF_TOKEN", "--project", "vision") == ExitCode.OK
    assert secrets("delete", "HF_TOKEN", "--project", "vision") == ExitCode.NOT_FOUND
    assert secrets.err.startswith("remora: the project vision has no secret HF_TOKEN")
    kept = b"".join(path.read_bytes() for path in service[1].rglob("*") if path.is_file())
    assert VALUE.encode() not in kept
    assert kept.count(b"jobs.vault.azure.net") >= 1, "the audit says which vault was named"


def test_what_is_asked_for_wrongly_is_one_sentence(
    secrets: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    typed(monkeypatch, b"short\n")
    assert secrets("set", "TOKEN") == ExitCode.USAGE
    assert "no line of 8 bytes" in secrets.err
    typed(monkeypatch, b"\xff\xfe not text")
    assert secrets("set", "TOKEN") == ExitCode.USAGE
    assert "is not text in UTF-8; encode it, e.g. with base64" in secrets.err
    assert secrets("set", "TOKEN", "--from-file", str(tmp_path / "absent")) == ExitCode.USAGE
    assert "cannot read" in secrets.err
    assert secrets("set", "TOKEN", "--from-file", "x", "--key-vault", "y") == ExitCode.USAGE
    assert secrets("set", "TOKEN", "a-value-as-an-argument") == ExitCode.USAGE


def test_both_clients_know_secrets(service: tuple[str, Path]) -> None:
    with remora.Client(service[0]) as client:
        assert client.set_secret("BLOCKING", VALUE).version == 1
        with pytest.raises(Invalid, match="write either"):
            client.set_secret("BLOCKING")

    async def use() -> list[str]:
        async with remora.AsyncClient(service[0]) as asynchronous:
            assert (await asynchronous.set_secret("BLOCKING", f"{VALUE}-2", author="ann")).updated_by == "ann"
            found = [one.name for one in await asynchronous.secrets()]
            assert (await asynchronous.rotate_secrets()).rewritten >= 1
            await asynchronous.delete_secret("BLOCKING")
            with pytest.raises(NotFound):
                await asynchronous.delete_secret("BLOCKING")
            return found

    assert asyncio.run(use()) == ["BLOCKING"]
