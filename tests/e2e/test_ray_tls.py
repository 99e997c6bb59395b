"""Ray between nodes by TLS: a job trains, a lost node is replaced in place, and who has no certificate is refused."""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from ray._private.ray_constants import AGENT_PROCESS_TYPE_RUNTIME_ENV_AGENT

from cluster.local.certificates import write_files
from cluster.local.environment import MACHINE_VARIABLE, process_environment
from cluster.local.folders import ClusterFolders
from cluster.local.head import find_head
from cluster.local.provider import LocalProvider
from cluster.local.records import MachineRecord
from cluster.processes import find_by_environment, values_of
from cluster.ray.certificates import (
    TLS_VARIABLES,
    issue,
    make_authority,
    parse_authority,
    tls_environment,
)
from remora import Client
from remora.states import JobState
from tests.e2e.embedded import API, CONTROLLER, Embedded
from tests.e2e.processes import PATIENCE_S, JobProcesses, until
from tests.integration.trainers.elastic_script import ELASTIC

CANARY = "canary-a7c1f2"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def encrypted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Embedded]:
    home = tmp_path_factory.mktemp("remora") / "home"
    variables = {
        "REMORA_ISOLATION": "none",
        "REMORA_RAY_TLS": "on",
        # What is for the service alone, and not for what runs on nodes or on the head.
        "REMORA_DATABASE_URL": f"sqlite:///{home}/{CANARY}.db",
        "REMORA_SECRETS_KEY_FILE": str(home / f"{CANARY}.key"),
        "REMORA_STORAGE_CREDENTIALS": str(home / f"{CANARY}.json"),
        "PGPASSWORD": CANARY,
        "AZURE_CLIENT_SECRET": CANARY,
    }
    home.mkdir()
    (home / f"{CANARY}.json").write_text("{}")
    embedded = Embedded(home, variables=variables)
    try:
        embedded.start()
        yield embedded
    finally:
        embedded.end()


def causes(client: Client, job_id: str) -> list[str]:
    """Why its worker group was regrouped in place."""
    return [one.data["cause"] for one in client.events(job_id) if one.kind == "worker_group.regrouped"]


def head_of(encrypted: Embedded) -> MachineRecord:
    head = find_head(encrypted.home)
    assert head is not None
    return head


@dataclass(frozen=True)
class Listening:
    """Addresses and ports at which processes of Ray listen for other machines."""

    #: Of its agents for runtime environments, one on each machine: they speak HTTP.
    agents: frozenset[tuple[str, int]]
    others: frozenset[tuple[str, int]]


def listening(home: Path) -> Listening:
    """What the processes of the home's machines listen at, beyond 127.0.0.1."""
    agents: set[tuple[str, int]] = set()
    others: set[tuple[str, int]] = set()
    marks = {mark for mark in values_of(MACHINE_VARIABLE) if mark.endswith(f"@{home}")}
    assert len(marks) == 3, "a head and two nodes"
    # Agents and workers write their titles over their environment, and are found as descendants.
    processes = {one.pid: one for mark in marks for one in find_by_environment(MACHINE_VARIABLE, mark)}
    for process in processes.values():
        with contextlib.suppress(psutil.Error):
            ports = {
                (one.laddr.ip, one.laddr.port)
                for one in process.net_connections("tcp")
                if one.status == psutil.CONN_LISTEN and not one.laddr.ip.endswith("127.0.0.1")
            }
            # An agent has its title before it listens.
            is_agent = " ".join(process.cmdline()).strip() == AGENT_PROCESS_TYPE_RUNTIME_ENV_AGENT
            (agents if is_agent else others).update(ports)
    return Listening(frozenset(agents), frozenset(others))


def is_refused(address: str, port: int, trusted: Path) -> bool:
    """Whether TLS is spoken at this port, and a client without a certificate gets no byte of an answer."""
    context = ssl.create_default_context(cafile=trusted)
    context.check_hostname = False
    context.set_alpn_protocols(["h2"])
    with (
        socket.create_connection((address, port), 30.0) as plain,
        context.wrap_socket(plain) as connection,
    ):
        try:
            # With TLS 1.3 the refusal comes after the handshake.
            return not connection.recv(1)
        except (ssl.SSLError, ConnectionResetError):
            return True


def test_every_port_of_ray_asks_for_a_certificate(encrypted: Embedded) -> None:
    trusted = ClusterFolders(encrypted.home).tls / "ca.crt"
    others = listening(encrypted.home).others
    assert len(others) >= 1 + 3 * 2, "the head's store, and two for each raylet"
    assert [(ip, port) for ip, port in others if not is_refused(ip, port, trusted)] == []


def status_of(address: str, port: int, **headers: str) -> int:
    """What an agent for runtime environments answers when it is asked for those that it has."""
    connection = http.client.HTTPConnection(address, port, timeout=30.0)
    with contextlib.closing(connection):
        connection.request("POST", "/get_runtime_envs_info", body=b"", headers=headers)
        return connection.getresponse().status


def test_the_agents_of_ray_that_speak_http_answer_nothing_without_the_token(encrypted: Embedded) -> None:
    until(lambda: len(listening(encrypted.home).agents) == 3, "each machine has its agent")
    agents = listening(encrypted.home).agents
    token = ClusterFolders(encrypted.home).token.read_text().strip()
    # What is asked is right.
    assert {status_of(*one, Authorization=f"Bearer {token}") for one in agents} == {200}
    assert {status_of(*one) for one in agents} == {401}
    assert {status_of(*one, Authorization=f"Bearer {'0' * len(token)}") for one in agents} == {403}


def marked(process: psutil.Process, *texts: bytes) -> list[bytes]:
    """Which of these texts are in a process's environment or command line."""
    shown = b""
    for kind in ("environ", "cmdline"):
        with contextlib.suppress(OSError):
            shown += Path(f"/proc/{process.pid}/{kind}").read_bytes()
    return [text for text in texts if text in shown]


def test_no_process_or_file_of_ray_has_what_is_for_the_service_alone(encrypted: Embedded) -> None:
    home = encrypted.home
    authority = parse_authority(ClusterFolders(home).authority.read_bytes())
    looked_for = (CANARY.encode(), authority.key[40:80])
    controller, api = encrypted.part(CONTROLLER), encrypted.part(API)
    assert controller is not None
    assert api is not None
    assert marked(controller, *looked_for) == [CANARY.encode()], "this looks where it would be found"
    machines = [
        process
        for mark in values_of(MACHINE_VARIABLE)
        if mark.endswith(f"@{home}")
        for process in find_by_environment(MACHINE_VARIABLE, mark)
    ]
    assert len(machines) > 8, "raylets, the head's store, drivers that are ready"
    assert [process for process in machines if marked(process, *looked_for)] == []
    files = [path for path in ClusterFolders(home).temporary.rglob("*") if path.is_file()]
    assert [path for path in files if any(text in path.read_bytes() for text in looked_for)] == []
    # The API has nothing to do with Ray.
    assert marked(api, b"RAY_AUTH", b"RAY_USE_TLS", b"ray.token") == []


# tests/e2e/test_losses.py and tests/integration/trainers lose processes and nodes without TLS.
@pytest.mark.soak
def test_a_job_trains_and_the_loss_of_a_node_regroups_in_place(
    encrypted: Embedded, folder: Path, tmp_path: Path
) -> None:
    assert "with TLS" in encrypted.up_log.read_text()
    (folder / "train.py").write_text(ELASTIC)
    finish = tmp_path / "finish"
    with encrypted.client() as client:
        job = client.submit(
            {
                "code": str(folder),
                "command": ["python", "train.py", str(finish), "0.03"],
                "backend": "ddp",
                "workers": {"min": 1, "max": 2},
                "resources": {"cpus": 1},
            }
        )
        until(
            lambda: client.job(job.id).world_size == 2 and (client.job(job.id).step or 0) > 10,
            "both ranks train",
        )
        lost = str(JobProcesses(encrypted.home, job.id).supervisor(1).environ()["REMORA_NODE_ID"])
        LocalProvider(encrypted.home, head_of(encrypted).ray_address).kill(lost)
        until(lambda: causes(client, job.id) == ["loss", "grow"], "the other goes on, and gets a new one")
        finish.touch()
        ended = client.wait(job.id, PATIENCE_S)
        assert (ended.state, ended.attempt) == (JobState.SUCCEEDED, 1), ended.message


def ask(home: Path, address: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """A client of the head with the cluster's secret, and with these variables for its certificate."""
    code = f"from ray._raylet import GcsClient; print(GcsClient({address!r}).internal_kv_keys(b''))"
    environment = {k: v for k, v in process_environment(home).items() if k not in TLS_VARIABLES}
    short = {"RAY_gcs_rpc_server_connect_timeout_s": "1", "GRPC_VERBOSITY": "ERROR"}
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**environment, **short, **variables},
        capture_output=True,
        text=True,
        timeout=90,
    )


def test_a_client_without_a_certificate_of_the_cluster_is_refused(
    encrypted: Embedded, tmp_path: Path
) -> None:
    head, folders = head_of(encrypted), ClusterFolders(encrypted.home)
    assert ask(encrypted.home, head.ray_address, **tls_environment(folders.tls)).returncode == 0
    assert ask(encrypted.home, head.ray_address).returncode != 0
    stranger = make_authority(time.time())
    write_files(tmp_path, stranger, issue(stranger, "x", [head.address], time.time()))
    # It trusts what it meets, and is not trusted itself.
    (tmp_path / "ca.crt").write_bytes((folders.tls / "ca.crt").read_bytes())
    assert ask(encrypted.home, head.ray_address, **tls_environment(tmp_path)).returncode != 0
