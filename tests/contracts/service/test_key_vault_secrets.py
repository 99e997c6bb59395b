"""The service reads secrets from a key vault with Azure's own client, and says what to do where it gets none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.azure.emulator.faults import EmulatorFault, FaultPoint
from cluster.azure.emulator.server import EmulatorServer
from remora.free_ports import free_port
from service.secrets.key_vault import VaultAway, VaultRefused, read_secret
from service.settings import Settings
from tests.contracts.cluster import azure_rig

VALUE = "value-in-the-vault\nof two lines\n"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[EmulatorServer]:
    with EmulatorServer(secrets={"token": VALUE}.get) as server:
        monkeypatch.setenv("AZURE_POD_IDENTITY_AUTHORITY_HOST", server.url)
        yield server


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    file = tmp_path / "azure.json"
    file.write_text(
        azure_rig.settings(
            "http://127.0.0.1:1", controller_client_id="11111111-1111-1111-1111-111111111111"
        ).model_dump_json()
    )
    return Settings(home=tmp_path, cloud="azure-emulated", azure_file=file)


def test_a_secret_is_read_as_it_is(server: EmulatorServer, settings: Settings) -> None:
    assert read_secret(settings, f"{server.url}/secrets/token") == VALUE


@pytest.mark.parametrize(
    ("status", "kind", "said"),
    [
        (403, VaultRefused, "give it the role Key Vault Secrets User"),
        (429, VaultAway, "answered 429"),
        (503, VaultAway, "answered 503"),
    ],
)
def test_a_vault_that_gives_nothing_says_why(
    server: EmulatorServer, settings: Settings, status: int, kind: type[Exception], said: str
) -> None:
    fault = EmulatorFault(at=FaultPoint.SECRET, status=status, code="x", message="no", times=1)
    server.cloud.faults.all.append(fault)
    with pytest.raises(kind, match=said):
        read_secret(settings, f"{server.url}/secrets/token")
    assert fault.fired == 1, "it is asked once: the controller asks again"


def test_a_secret_that_is_not_there_is_refused(server: EmulatorServer, settings: Settings) -> None:
    with pytest.raises(VaultRefused, match="has no secret absent, or not that version"):
        read_secret(settings, f"{server.url}/secrets/absent")


def test_a_vault_that_does_not_answer_is_away(server: EmulatorServer, settings: Settings) -> None:
    del server
    with pytest.raises(VaultAway, match="cannot be asked"):
        read_secret(settings, f"http://127.0.0.1:{free_port('127.0.0.1')}/secrets/token")


def test_an_identity_without_a_token_and_a_cloud_that_is_not_described_say_so(
    server: EmulatorServer, settings: Settings
) -> None:
    refused = EmulatorFault(
        at=FaultPoint.TOKEN, status=400, code="invalid_request", message="Identity not found", times=5
    )
    server.cloud.faults.all.append(refused)
    with pytest.raises(VaultAway, match="Identity not found"):
        read_secret(settings, f"{server.url}/secrets/token")
    settings.azure.unlink()
    with pytest.raises(VaultRefused, match="there is no file"):
        read_secret(settings, f"{server.url}/secrets/token")
