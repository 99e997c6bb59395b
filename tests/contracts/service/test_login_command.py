"""`remora login` at an issuer that really answers, and what later commands do with the sign-in."""

from __future__ import annotations

import json
import socket
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import platformdirs
import pytest
import uvicorn

from examples.openid_issuer import Issuer, serve_issuer
from remora.cli.exits import ExitCode
from remora.client.credentials import store_token, stored_tokens
from remora.client.sign_ins import RenewedToken, StoredSignIn
from service.api.app import create_app
from service.openid.issuers import Issuer as IssuerSettings
from service.settings import Settings
from tests.command_line import Cli


@pytest.fixture(scope="module")
def issuer() -> Iterator[Issuer]:
    with serve_issuer() as serving:
        yield serving


@pytest.fixture
def url(tmp_path: Path, issuer: Issuer, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Address of a service that trusts the issuer, and that the command line finds by itself."""
    listening = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    trusted = {"corp": IssuerSettings(issuer=issuer.url, audience="remora", client_id="cli")}
    app = create_app(Settings(home=tmp_path / "home", authentication="required", openid=trusted))
    server = uvicorn.Server(uvicorn.Config(app, log_config=None))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    for name, value in {"REMORA_SERVER": url, "REMORA_HOME": str(tmp_path / "home")}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("REMORA_TOKEN", raising=False)
    monkeypatch.setattr(platformdirs, "user_config_dir", lambda _: str(tmp_path / "config"))
    yield url
    server.should_exit = True
    thread.join()
    listening.close()


@pytest.fixture
def remora(capsys: pytest.CaptureFixture[str], url: str) -> Cli:
    return Cli(capsys)


@pytest.fixture
def person(issuer: Issuer) -> Iterator[None]:
    """A person enters the code of the first device that waits."""

    def enter() -> None:
        issuer.approve(issuer.wait_for_device(20), "alice", "ml")

    thread = threading.Thread(target=enter)
    thread.start()
    yield
    thread.join()


def test_a_person_signs_in_and_later_commands_are_theirs(
    remora: Cli, person: None, url: str, tmp_path: Path
) -> None:
    assert remora("login") == ExitCode.OK
    assert "and enter the code" in remora.err
    assert remora.out.startswith(f"You are alice@example.com (user:corp/alice) at {url}; stored in ")
    file = tmp_path / "config/credentials.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert remora("whoami", "--json") == ExitCode.OK
    assert remora.json["id"] == "user:corp/alice"
    assert remora("logout") == ExitCode.OK
    assert remora("whoami") == ExitCode.FORBIDDEN
    assert "remora login" in remora.err


def test_a_token_that_ends_soon_is_renewed_once_by_all_who_need_it(
    remora: Cli, person: None, url: str, issuer: Issuer
) -> None:
    remora("login")
    ending = kept(url).model_copy(update={"expires_at": time.time() + 5})
    store_token(url, ending)
    # The issuer takes a refresh token only once.
    used: list[str] = []
    tokens: list[str] = []
    granted = issuer._granted

    def once(claims: dict[str, Any]) -> dict[str, Any]:
        used.append(claims["subject"])
        return granted(claims)

    issuer._granted = once  # type: ignore[method-assign]
    threads = [threading.Thread(target=lambda: tokens.append(RenewedToken(url)())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert used == ["alice"]
    assert set(tokens) == {kept(url).token}
    assert remora("whoami") == ExitCode.OK


def test_a_sign_in_that_has_ended_says_what_to_do(remora: Cli, person: None, url: str) -> None:
    remora("login")
    store_token(
        url, kept(url).model_copy(update={"expires_at": time.time() - 5, "refresh_token": "withdrawn"})
    )
    assert remora("whoami") == ExitCode.USAGE
    assert "invalid_grant; run remora login" in remora.err
    assert len(remora.err.splitlines()) == 1


def test_an_issuer_that_the_service_does_not_trust_is_named(remora: Cli) -> None:
    assert remora("login", "--issuer", "other") == ExitCode.USAGE
    assert "the service trusts corp" in remora.err


def test_what_is_stored_shows_no_token_in_its_text(
    remora: Cli, person: None, url: str, tmp_path: Path
) -> None:
    remora("login")
    found = kept(url)
    assert found.token not in f"{found!r} {found}"
    assert json.loads((tmp_path / "config/credentials.json").read_text())[url]["token"] == found.token


def kept(url: str) -> StoredSignIn:
    found = stored_tokens()[url]
    assert isinstance(found, StoredSignIn)
    return found
