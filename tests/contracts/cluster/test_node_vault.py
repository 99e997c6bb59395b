"""A node fetches its secret with Azure's own clients, from a vault that is late, refuses, or is none."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import httpx2
import pytest

from cluster.azure.emulator.faults import EmulatorFault, FaultPoint
from cluster.azure.emulator.server import EmulatorServer
from cluster.node.vault import Vault, VaultUnusable

NAME, VALUE = "remora-rig-ray-token", "correct-horse-battery-staple"
_TOKENS = "AZURE_POD_IDENTITY_AUTHORITY_HOST"


@pytest.fixture
def secrets() -> dict[str, str]:
    return {NAME: f"{VALUE}\n"}


@pytest.fixture
def server(secrets: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[EmulatorServer]:
    monkeypatch.setattr("cluster.node.vault._FIRST_WAIT_S", 0.0)
    with EmulatorServer(secrets=secrets.get) as server:
        monkeypatch.setenv(_TOKENS, server.url)
        yield server


@pytest.fixture
def vault(server: EmulatorServer) -> Iterator[Vault]:
    vault = Vault(server.url, "11111111-1111-1111-1111-111111111111")
    yield vault
    vault.close()


def fetch(vault: Vault, name: str = NAME) -> str:
    return vault.fetch(name, threading.Event())


def fault(
    server: EmulatorServer, status: int, times: int = 1, retry_after: float | None = None
) -> EmulatorFault:
    one = EmulatorFault(
        at=FaultPoint.SECRET, status=status, code="x", message="no", times=times, retry_after=retry_after
    )
    server.cloud.faults.all.append(one)
    return one


def until_said(caplog: pytest.LogCaptureFixture, what: str, asked: Future[str]) -> None:
    """Look until the log says it; fails when the secret comes first."""
    pause = threading.Event()
    for _ in range(600):
        if what in caplog.text:
            return
        assert not asked.done()
        pause.wait(0.05)
    pytest.fail(f"{what!r} is not in {caplog.text!r}")


def test_the_secret_comes_without_the_line_end_of_its_file(vault: Vault) -> None:
    assert fetch(vault) == VALUE


def test_without_a_token_the_vault_says_which_kind_it_takes(server: EmulatorServer) -> None:
    answer = httpx2.get(f"{server.url}/secrets/{NAME}/?api-version=7.6")
    assert answer.status_code == 401
    assert 'resource="https://vault.azure.net"' in answer.headers["WWW-Authenticate"]
    assert VALUE not in answer.text


def test_a_token_for_something_else_opens_nothing(server: EmulatorServer) -> None:
    url = f"{server.url}/metadata/identity/oauth2/token"
    arm = {"resource": "https://management.azure.com", "api-version": "2018-02-01"}
    token = httpx2.get(url, params=arm, headers={"Metadata": "true"}).json()["access_token"]
    answer = httpx2.get(f"{server.url}/secrets/{NAME}/", headers={"Authorization": f"Bearer {token}"})
    assert answer.status_code == 401


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (429, "is asked too often"),
        (503, "answered 503"),
        (403, "give it the role Key Vault Secrets User"),
    ],
)
def test_a_vault_that_refuses_is_asked_again_and_the_log_says_it_once(
    server: EmulatorServer, vault: Vault, caplog: pytest.LogCaptureFixture, status: int, said: str
) -> None:
    refused = fault(server, status, times=3)
    assert fetch(vault) == VALUE
    assert refused.fired == 3
    assert caplog.text.count(said) == 1
    assert VALUE not in caplog.text


def test_a_secret_that_is_put_there_late_is_found(
    secrets: dict[str, str], vault: Vault, caplog: pytest.LogCaptureFixture
) -> None:
    late = secrets.pop(NAME)
    with ThreadPoolExecutor(1) as thread:
        asked = thread.submit(fetch, vault)
        until_said(caplog, f"has no secret {NAME}: put it there as docs/azure-first-run.md says", asked)
        secrets[NAME] = ""
        until_said(caplog, f"the secret {NAME} of the vault", asked)
        secrets[NAME] = late
        assert asked.result(60.0) == VALUE


def test_an_identity_that_gets_no_token_is_distinguished_from_the_vault(
    server: EmulatorServer, vault: Vault, caplog: pytest.LogCaptureFixture
) -> None:
    refused = EmulatorFault(
        at=FaultPoint.TOKEN, status=400, code="invalid_request", message="Identity not found", times=2
    )
    server.cloud.faults.all.append(refused)
    assert fetch(vault) == VALUE
    assert refused.fired == 2
    assert "this machine's identity gets no token" in caplog.text


def test_who_is_stopped_stops_asking(server: EmulatorServer, vault: Vault) -> None:
    fault(server, 503, times=0)
    stopping = threading.Event()
    with ThreadPoolExecutor(1) as thread:
        asked = thread.submit(vault.fetch, NAME, stopping)
        stopping.set()
        assert asked.result(60.0) == ""


def test_a_vault_that_is_not_there_yet_is_asked_again(
    caplog: pytest.LogCaptureFixture, server: EmulatorServer
) -> None:
    stopping = threading.Event()
    unreachable = Vault("http://127.0.0.1:9", None)
    with ThreadPoolExecutor(1) as thread:
        asked = thread.submit(unreachable.fetch, NAME, stopping)
        until_said(caplog, "the vault http://127.0.0.1:9 does not answer", asked)
        stopping.set()
        assert asked.result(60.0) == ""
    unreachable.close()


def test_no_secret_travels_over_plain_http() -> None:
    with pytest.raises(VaultUnusable, match="no https:// address"):
        Vault("http://remora.vault.azure.net", None)


def test_nothing_that_azures_clients_log_holds_the_secret(
    vault: Vault, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    assert fetch(vault) == VALUE
    assert "secrets" in caplog.text, "the client logs its requests"
    assert VALUE not in caplog.text
