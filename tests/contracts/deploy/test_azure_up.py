"""deploy/azure/up against an emulated subscription: made, made again, cut off, failed, and what it refuses."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from pathlib import Path

import pytest
from azure.identity import ManagedIdentityCredential

from cluster.azure.emulator.deployments.kinds import MACHINES, SECRETS, SERVERS, VAULTS
from cluster.azure.emulator.faults import EmulatorFault, FaultPoint
from cluster.azure.emulator.server import OPERATOR, SUBSCRIPTION
from deploy.azure.client import up
from deploy.azure.client.image_plan import IMAGE_VERSIONS
from deploy.azure.client.resource_manager import ResourceManager
from tests.architecture.repository import ROOT
from tests.contracts.deploy.subscription import ADDRESS, Subscription
from tests.wheels import wheel

TOKEN = "remora-remora-ray-token"


def test_what_if_says_what_would_be_made_and_makes_nothing(azure: Subscription) -> None:
    assert azure.up("trial", "--what-if") == 0
    assert any("virtualMachines/remora-remora-service" in line for line in azure.said)
    *_, count, image = azure.said
    assert image.startswith("+ the image 1.0.0 of a node")
    assert count == f"{len(azure.said) - 2} to create"
    assert f"`{count}`" in (ROOT / "docs/azure-first-run.md").read_text(), "the checklist says how many"
    assert azure.leftovers() == []


@pytest.mark.parametrize("size", ["trial", "team"])
def test_a_second_run_changes_nothing(azure: Subscription, size: str) -> None:
    assert azure.up(size) == 0
    before = azure.shot()
    assert azure.up(size, "--what-if") == 0
    # The secrets stay as they are, and a template that gives none does not have them; the image is built beside it.
    kept = len(azure.resources.of_type(SECRETS)) + len(azure.resources.of_type(IMAGE_VERSIONS))
    assert azure.said == [f"{kept} not of the template, {len(before) - 1 - kept} unchanged"]
    assert azure.up(size) == 0
    assert azure.shot() == before


def test_a_team_has_more_than_a_trial(azure: Subscription) -> None:
    azure.up("trial")
    trial = {one["type"] for one in azure.resources}
    assert len(azure.resources.of_type(MACHINES)) == 1
    assert azure.up("team") == 1, "a vault's days cannot be changed afterwards"
    azure.down()
    azure.resources.deleted_vaults.clear()
    assert azure.up("team") == 0
    team = {one["type"] for one in azure.resources}
    assert len(azure.resources.of_type(MACHINES)) == 2
    assert {kind.rpartition("/")[2] for kind in team - trial} == {
        "databases",
        "flexibleServers",
        "privateDnsZones",
        "privateDnsZoneGroups",
        "privateEndpoints",
        "virtualNetworkLinks",
    }


def test_it_says_what_happens_and_what_is_next(azure: Subscription) -> None:
    azure.up()
    assert azure.said[0] == "remora-remora in eastus: the template is valid; it is carried out"
    assert "  Succeeded  remora-remora-machines" in azure.said
    (line,) = [one for one in azure.said if one.startswith("next: ")]
    assert line.startswith("next: ssh -N -L 7265:127.0.0.1:7265 remora-admin@192.0.2.")


# --- cut off


def test_killed_in_the_middle_and_called_again_it_ends_where_it_would_have(azure: Subscription) -> None:
    deployer, reached = azure.server.deployer, threading.Event()
    deployer.resource_s = 0.02
    made = deployer.resources.put

    def counted(*wanted):
        if len(list(azure.resources)) == 20:
            reached.set()
        return made(*wanted)

    deployer.resources.put = counted
    environment = {**os.environ, "AZURE_TOKEN_CREDENTIALS": "managedidentitycredential"}
    process = subprocess.Popen(
        [ROOT / "deploy/azure/up", *azure.arguments()],
        env=environment,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        assert reached.wait(60)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    (deployment,) = deployer.all.values()
    assert deployment.state == "Running"
    token = azure.resources.secret(TOKEN)
    assert azure.up() == 0
    assert azure.said[0] == "remora-remora in eastus: an earlier deployment still runs and is waited for"
    assert token in (None, azure.resources.secret(TOKEN)), "nodes that run know the first one"
    once = azure.shot()
    assert azure.up() == 0
    assert azure.shot() == once


def test_a_resource_that_fails_is_named_with_its_reason_and_made_by_the_next_call(
    azure: Subscription, capsys: pytest.CaptureFixture[str]
) -> None:
    said = "The requested size Standard_D2s_v5 is currently not available in location 'eastus'."
    azure.faults.all.append(
        EmulatorFault(
            at=FaultPoint.DEPLOY_RESOURCE, kind=MACHINES, status=409, code="SkuNotAvailable", message=said
        )
    )
    assert azure.up() == 1
    assert capsys.readouterr().err == f"up: SkuNotAvailable: {said}\n"
    token = azure.resources.secret(TOKEN)
    assert token is not None
    assert azure.up() == 0
    assert azure.resources.secret(TOKEN) == token


def test_the_vault_has_the_password_that_the_database_took_wherever_it_was_cut_off(
    azure: Subscription,
) -> None:
    kinds = [SERVERS, f"{SERVERS}/databases", SECRETS, MACHINES]
    for kind in kinds:
        azure.faults.all.append(EmulatorFault(at=FaultPoint.DEPLOY_RESOURCE, kind=kind))
        assert azure.up("team") == 1
    assert azure.up("team") == 0
    (server,) = azure.resources.of_type(SERVERS)
    password = azure.resources.password(server["name"])
    assert password is not None
    assert azure.resources.secret("remora-remora-postgres") == password
    azure.up("team")
    assert azure.resources.password(server["name"]) == password


def test_a_deleted_vault_is_taken_back(azure: Subscription) -> None:
    azure.up()
    (vault,) = azure.resources.of_type(VAULTS)
    azure.down()
    assert list(azure.resources.deleted_vaults) == [vault["name"]]
    assert azure.up() == 0
    assert azure.resources.deleted_vaults == {}


# --- releases


def test_a_release_is_uploaded_before_the_name_by_which_it_is_found(
    azure: Subscription, tmp_path: Path
) -> None:
    name = wheel(tmp_path, "remora", "0.2.0")
    assert azure.up("trial", "--wheel", str(tmp_path / name)) == 0
    account = next(one["name"] for one in azure.resources if one["type"].endswith("/storageAccounts"))
    blobs = azure.server.deployer.blobs
    assert [one for one in blobs if "/node-" not in one] == [
        f"{account}/releases/{name}",
        f"{account}/releases/current",
    ]
    assert blobs[f"{account}/releases/current"].decode().split()[0] == name
    assert blobs[f"{account}/releases/{name}"] == (tmp_path / name).read_bytes()


# --- what it refuses


def refusal(*arguments: str, capsys: pytest.CaptureFixture[str]) -> str:
    """What is said, in one line, of arguments with which nothing is asked: the endpoint does not exist."""
    code = up.main(["--subscription", SUBSCRIPTION, "--endpoint", "http://127.0.0.1:9", *arguments], object())
    (line,) = capsys.readouterr().err.splitlines()
    assert code == 2, line
    return line


def test_what_is_missing_is_named_in_one_sentence_before_anything_is_asked(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert refusal(capsys=capsys) == (
        "up: missing: region (--region eastus), operatorAddresses (--allow 203.0.113.7), sshPublicKey"
        " (--ssh-key ~/.ssh/id_ed25519.pub), notifyEmail (--email team@example.com)"
    )


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--allow", "0.0.0.0/0"], "too large"),
        (["--allow", "10.1.2.3"], "private"),
        (["--allow", "my.host"], "'my.host' is none"),
        (["--allow", "8.8.8.8/31"], "its two addresses"),
        (["--set", "serviceSize"], "names no parameter"),
        (["--set", "diskGb=much"], "is no int"),
        (["--set", "diskGb=1"], "diskGb has to be 64 to any"),
        (["--set", "vaultRetentionDays=91"], "7 to 90"),
        (["--set", "frobs=1"], "names no parameter"),
        (["--cluster", "No Name"], "cluster has to be"),
        (["--region", "East US"], "region has to be"),
        (["--set", "imageVersion=newest"], "imageVersion has to be three numbers"),
        (["--email", "nobody"], "notifyEmail has to be"),
        (["--wheel", "dist/other-1.0-py3-none-any.whl"], "no wheel of Remora"),
        (["--wheel", "remora-9-py3-none-any.whl"], "cannot be read"),
        (["--size", "enormous"], "cannot be read"),
        (["--subscription", "mine"], "has to be an id"),
    ],
)
def test_what_is_wrong_is_named_before_anything_is_asked(
    given: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    key = tmp_path / "key.pub"
    key.write_text("ssh-ed25519 " + "A" * 68)
    good = ["--region", "eastus", "--ssh-key", str(key), "--email", "a@example.com"]
    allowed = [] if given[0] == "--allow" else ["--allow", ADDRESS]
    assert said in refusal(*good, *allowed, *given, capsys=capsys)


def test_a_private_key_in_the_place_of_the_public_one_is_refused_and_not_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    key = tmp_path / "key"
    key.write_text("-----BEGIN OPENSSH PRIVATE KEY-----\nSECRETSECRET\n")
    given = ["--region", "eastus", "--ssh-key", str(key), "--email", "a@example.com", "--allow", ADDRESS]
    line = refusal(*given, capsys=capsys)
    assert "one line of a public key" in line
    assert "SECRET" not in line


@pytest.mark.parametrize("text", ["[]", "{}", '{"parameters": 3}', '{"parameters": {"region": 3}}', "{"])
def test_a_file_of_parameters_that_is_none_is_refused(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mine.json"
    file.write_text(text)
    said = refusal("--size", str(file), capsys=capsys)
    assert "is no JSON" in said if text == "{" else "the file of parameters is none" in said


def test_a_subscription_that_the_login_does_not_see_is_said(
    azure: Subscription, capsys: pytest.CaptureFixture[str]
) -> None:
    azure.server.cloud.subscription_state = "Disabled"
    assert azure.up() == 1
    assert f"{SUBSCRIPTION} is Disabled" in capsys.readouterr().err


def test_a_token_that_does_not_say_whose_it_is_asks_who_deploys(
    azure: Subscription, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [one for one in azure.arguments() if one not in ("--set", f"operatorId={OPERATOR}")]
    assert up.main(arguments, ManagedIdentityCredential(), azure.said.append) == 2
    assert "--set operatorId=" in capsys.readouterr().err
    assert azure.leftovers() == []


def test_no_secret_is_printed_or_shown_by_a_deployment(
    azure: Subscription, capsys: pytest.CaptureFixture[str]
) -> None:
    azure.up("team")
    hidden = [
        value for one in azure.resources.hidden.values() for value in one.values() if 20 < len(value) < 5000
    ]
    shown = json.dumps([azure.said, [one.document() for one in azure.server.deployer.all.values()]])
    # Of Ray: its secret and its authority; of the API: its certificate and its authority; and the password, twice.
    assert len(hidden) == 6
    printed = shown + capsys.readouterr().out
    assert not [word for value in hidden for word in value.split() if len(word) > 20 and word in printed]


@pytest.mark.parametrize(
    ("command", "said"), [("up", "up: stopped; Azure goes on"), ("down", "down: stopped")]
)
def test_ctrl_c_ends_it_with_a_sentence(
    azure: Subscription,
    command: str,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def pressed(*_arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ResourceManager, "get", pressed)
    assert getattr(azure, command)() == 130
    assert capsys.readouterr().err.startswith(said)
