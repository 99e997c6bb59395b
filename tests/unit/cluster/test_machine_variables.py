"""What a head or node inherits of the environment of the service that starts it."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster.local.environment import (
    bare_environment,
    machine_environment,
    process_environment,
    strangers_environment,
)

#: What is for the service alone.
SERVICES = (
    *("REMORA_DATABASE_URL", "REMORA_SECRETS_KEY_FILE", "REMORA_STORAGE_CREDENTIALS", "REMORA_OPENID"),
    *("REMORA_TLS_KEY", "PGPASSWORD", "PGSERVICEFILE", "AZURE_CLIENT_SECRET", "AZURE_FEDERATED_TOKEN_FILE"),
    *("IDENTITY_HEADER", "MSI_SECRET", "REMORA_A_SETTING_TO_COME"),
)
MACHINES = ("REMORA_JOB_UIDS", "REMORA_NETWORK_RULES", "REMORA_FORKED_MODULES", "NCCL_DEBUG", "HTTPS_PROXY")


@pytest.fixture(autouse=True)
def variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*SERVICES, *MACHINES, "REMORA_TOKEN"):
        monkeypatch.setenv(name, "given")


def test_a_machine_inherits_nothing_that_is_for_the_service_alone(tmp_path: Path) -> None:
    for environment in (machine_environment(tmp_path, OWN="x"), bare_environment(OWN="x")):
        assert not {*SERVICES, "REMORA_TOKEN"} & environment.keys()
        assert {name: environment.get(name) for name in MACHINES} == dict.fromkeys(MACHINES, "given")
        assert environment["OWN"] == "x"


def test_what_is_said_to_a_machine_counts_whatever_its_name(tmp_path: Path) -> None:
    url = "http://127.0.0.1:1"
    assert bare_environment(AZURE_POD_IDENTITY_AUTHORITY_HOST=url)["AZURE_POD_IDENTITY_AUTHORITY_HOST"] == url


def test_processes_of_the_service_keep_it_and_only_those_of_ray_get_its_secret(tmp_path: Path) -> None:
    controller, api = process_environment(tmp_path), strangers_environment()
    for environment in (controller, api):
        assert environment.keys() >= {*SERVICES, *MACHINES}
        assert "REMORA_TOKEN" not in environment
    assert "RAY_AUTH_TOKEN_PATH" in controller
    assert not [name for name in api if name.startswith("RAY_AUTH")]
