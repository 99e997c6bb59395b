"""`python -m cluster.node` before the emulated vault: what it ends with, and where it leaves the secret."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from cryptography import x509

from cluster.azure.body import authority_name, secret_name
from cluster.azure.emulator.faults import EmulatorFault, FaultPoint
from cluster.azure.emulator.server import EmulatorServer
from cluster.node import __main__ as node_main
from cluster.node import boot, node_processes
from cluster.node.boot import NodeFileUnusable, parse
from cluster.ray.certificates import make_authority
from tests.architecture.repository import ROOT
from tests.unit.cluster.test_node_boot import NODE

SECRET = "correct-horse-battery-staple"
AUTHORITY = make_authority(time.time())


@pytest.fixture
def server() -> Iterator[EmulatorServer]:
    secrets = {secret_name("remora"): SECRET, authority_name("remora"): AUTHORITY.joined().decode()}
    with EmulatorServer(secrets=secrets.get) as server:
        yield server


def start(file: Path, folder: Path, url: str = "") -> subprocess.Popen[str]:
    variables = {"RUNTIME_DIRECTORY": str(folder), "AZURE_POD_IDENTITY_AUTHORITY_HOST": url}
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "cluster.node", str(file)],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "cannot be read"),
        ("{}", "makes no node of this machine: it lacks cluster; it lacks node;"),
        (json.dumps({**NODE, "vault": "http://vault.example"}), "is no https:// address"),
    ],
    ids=["no file", "an empty one", "a vault without TLS"],
)
def test_a_file_that_makes_no_node_is_one_sentence_and_2(tmp_path: Path, text: str | None, said: str) -> None:
    file = tmp_path / "node.json"
    if text is not None:
        file.write_text(text)
    process = start(file, tmp_path / "run")
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 2
    assert len(out.splitlines()) == 1
    assert said in out
    assert str(file) in out


def test_sigterm_ends_it_with_0_while_it_waits_for_the_vault(tmp_path: Path, server: EmulatorServer) -> None:
    server.cloud.faults.all.append(EmulatorFault(at=FaultPoint.SECRET, status=403, times=0))
    file = tmp_path / "node.json"
    file.write_text(json.dumps({**NODE, "vault": server.url}))
    process = start(file, tmp_path / "run", server.url)
    assert process.stdout is not None
    assert "Key Vault Secrets User" in process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    assert not (tmp_path / "run").exists(), "there is no secret to keep"
    process.stdout.close()


class Started:
    """Stands in for `processes.run`: Ray ends as the test says."""

    def __init__(self, status: int | None) -> None:
        self.status = status
        self.commands: list[Sequence[str]] = []
        self.environment: Mapping[str, str] = {}

    def __call__(
        self, ray: Sequence[str], agent: Sequence[str], environment: Mapping[str, str], *_: object
    ) -> int | None:
        self.commands, self.environment = [ray, agent], environment
        return self.status


@pytest.mark.parametrize(("status", "exit_status"), [(None, 0), (0, 1), (1, 1), (-9, 1)])
def test_it_joins_with_the_secret_in_a_file_of_its_owner_and_reports_how_ray_ended(
    server: EmulatorServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    status: int | None,
    exit_status: int,
) -> None:
    monkeypatch.setenv("AZURE_POD_IDENTITY_AUTHORITY_HOST", server.url)
    monkeypatch.setattr(node_processes, "run", started := Started(status))
    caplog.set_level(logging.DEBUG)
    runtime = boot.NodeRuntime(python="python", run=tmp_path / "run", metadata_url="http://127.0.0.1:9")
    node = parse(json.dumps({**NODE, "vault": server.url}))
    # As after a crash: what is left of the last start is neither kept nor believed.
    (tmp_path / "run").mkdir(mode=0o700)
    (tmp_path / "run/ray.token").write_text("old")
    assert node_main.be_node(node, runtime, threading.Event()) == exit_status
    token = tmp_path / "run/ray.token"
    assert token.read_text() == SECRET
    assert token.stat().st_mode & 0o777 == 0o600
    assert started.environment["RAY_AUTH_TOKEN_PATH"] == str(token)
    assert SECRET not in json.dumps([started.commands, dict(started.environment)])
    assert SECRET not in caplog.text
    assert "joining the Ray head 10.1.0.4:6379 as node_a" in caplog.text


@pytest.mark.parametrize(
    ("flags", "address"), [([], "127.0.0.1"), (["--node-ip-address=127.9.9.9"], "127.9.9.9")]
)
def test_it_makes_a_certificate_for_its_address_at_each_start_and_keeps_no_key_of_the_authority(
    server: EmulatorServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    flags: list[str],
    address: str,
) -> None:
    monkeypatch.setenv("AZURE_POD_IDENTITY_AUTHORITY_HOST", server.url)
    monkeypatch.setattr(node_processes, "run", started := Started(1))
    caplog.set_level(logging.DEBUG)
    runtime = boot.NodeRuntime(
        python="python", run=tmp_path / "run", metadata_url="http://127.0.0.1:9", ray_flags=flags
    )
    node = parse(json.dumps({**NODE, "head": "127.0.0.1:6379", "vault": server.url, "tls": True}))
    made = []
    for _ in range(2):
        assert node_main.be_node(node, runtime, threading.Event()) == 1
        made.append(Path(started.environment["RAY_TLS_SERVER_CERT"]).read_bytes())
    assert made[0] != made[1]
    certificate = x509.load_pem_x509_certificate(made[1])
    certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(AUTHORITY.certificate))
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert str(names.get_values_for_type(x509.IPAddress)[0]) == address
    files = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}
    assert not [path for path, content in files.items() if AUTHORITY.key in content]
    assert "PRIVATE KEY" not in caplog.text + json.dumps(dict(started.environment))


def test_a_head_whose_name_is_not_known_yet_is_tried_again(
    server: EmulatorServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("AZURE_POD_IDENTITY_AUTHORITY_HOST", server.url)
    runtime = boot.NodeRuntime(python="python", run=tmp_path / "run", metadata_url="http://127.0.0.1:9")
    node = parse(json.dumps({**NODE, "head": "head.invalid:6379", "vault": server.url, "tls": True}))
    assert node_main.be_node(node, runtime, threading.Event()) == node_main.RAY_ENDED
    assert "the way to the head head.invalid:6379" in caplog.text


def test_a_vault_whose_authority_is_none_makes_no_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secrets = {secret_name("remora"): SECRET, authority_name("remora"): "words"}
    with EmulatorServer(secrets=secrets.get) as server:
        monkeypatch.setenv("AZURE_POD_IDENTITY_AUTHORITY_HOST", server.url)
        runtime = boot.NodeRuntime(python="python", run=tmp_path / "run", metadata_url="http://127.0.0.1:9")
        node = parse(json.dumps({**NODE, "vault": server.url, "tls": True}))
        with pytest.raises(NodeFileUnusable, match="ray-authority of the vault cannot be used: it holds no"):
            node_main.be_node(node, runtime, threading.Event())


def test_what_ray_would_refuse_makes_no_node(
    server: EmulatorServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AZURE_POD_IDENTITY_AUTHORITY_HOST", server.url)
    runtime = boot.NodeRuntime(python="python", run=tmp_path / "run", metadata_url="http://127.0.0.1:9")
    node = parse(json.dumps({**NODE, "vault": server.url, "labels": {"a b": "c"}}))
    with pytest.raises(NodeFileUnusable, match="is not one that Ray accepts"):
        node_main.be_node(node, runtime, threading.Event())


@pytest.mark.parametrize(("reported", "gpus"), [("0", 0), ("8", 8), ("", None), ("many", None), ("-1", None)])
def test_an_image_may_say_how_many_gpus_are_looked_for(
    monkeypatch: pytest.MonkeyPatch, reported: str, gpus: int | None
) -> None:
    monkeypatch.setenv("REMORA_GPUS", reported)
    assert node_main._runtime().gpus == gpus
