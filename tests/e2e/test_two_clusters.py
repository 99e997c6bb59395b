"""Two Ray clusters under one service: jobs of two projects never meet, and neither cluster needs the other."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from cluster.local.environment import MACHINE_VARIABLE, process_environment
from cluster.local.folders import ClusterFolders
from cluster.local.head import find_head
from cluster.processes import find_by_environment, values_of
from cluster.ray.certificates import tls_environment
from remora import Client
from remora.states import JobState, NodeState
from tests.e2e.embedded import CONTROLLER, Embedded
from tests.e2e.processes import PATIENCE_S, JobProcesses, until

pytestmark = [pytest.mark.slow, pytest.mark.soak, pytest.mark.timeout(600)]

POLICIES = """\
pools:
  open: {sizes: [local], capacity: on-demand, min_nodes: 1, max_nodes: 1}
  locked: {sizes: [local], capacity: on-demand, min_nodes: 1, max_nodes: 1, cluster: ward}
projects:
  patients: {cluster: ward}
"""
#: Runs until its file is there.
WAITS = "import pathlib, sys, time\nwhile not pathlib.Path(sys.argv[1]).exists():\n    time.sleep(0.05)\n"


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Embedded]:
    """The clusters `default` and `ward`, with a node each."""
    home = tmp_path_factory.mktemp("remora") / "home"
    variables = {"REMORA_ISOLATION": "none", "REMORA_RAY_TLS": "on", "REMORA_READY_DRIVERS": "1"}
    embedded = Embedded(home, nodes=1, variables=variables, clusters=("ward",))
    try:
        embedded.start()
        (home / "policies.yaml").write_text(POLICIES)
        applied = embedded.remora("policy", "apply", "policies.yaml", "--yes")
        assert applied.code == 0, applied.err
        until(lambda: ready_pools(embedded) == {("open", "default"), ("locked", "ward")}, "a node in each")
        yield embedded
    finally:
        embedded.end()
        for one in homes(home).values():
            assert not ClusterFolders(one).temporary.exists()


def homes(home: Path) -> dict[str, Path]:
    return {"default": home, "ward": home / "clusters" / "ward"}


def ready_pools(service: Embedded) -> set[tuple[str, str]]:
    with service.client() as client:
        return {(node.pool, node.cluster) for node in client.nodes() if node.state is NodeState.READY}


def controllers(service: Embedded) -> dict[str, psutil.Process]:
    """The controllers that run, by cluster."""
    found = {}
    for child in psutil.Process(service.process.pid).children():
        with contextlib.suppress(psutil.Error):
            if CONTROLLER in child.cmdline():
                found[child.environ()["REMORA_CLUSTER"]] = child
    return found


def submit(client: Client, project: str, folder: Path, file: Path) -> str:
    (folder / "train.py").write_text(WAITS)
    spec = {"code": str(folder), "command": ["python", "train.py", str(file)], "project": project}
    return client.submit({**spec, "resources": {"cpus": 1}}).id


def machine_of(service: Embedded, job_id: str) -> str:
    """The home of the cluster on whose node the job's worker runs."""
    mark = JobProcesses(service.home, job_id).supervisor(0).environ()[MACHINE_VARIABLE]
    return mark.partition("@")[2]


def test_jobs_run_on_their_own_cluster_and_one_needs_no_controller_of_the_other(
    both: Embedded, folder: Path, tmp_path: Path
) -> None:
    finish, of = tmp_path / "finish", homes(both.home)
    with both.client() as client:
        first, second = (
            submit(client, "anyone", folder, finish),
            submit(client, "patients", folder, finish),
        )
        until(lambda: client.job(first).state is JobState.RUNNING, "the first one runs")
        until(lambda: client.job(second).state is JobState.RUNNING, "the second one runs")
        assert (client.job(first).cluster, client.job(second).cluster) == ("default", "ward")
        assert machine_of(both, first) == str(of["default"])
        assert machine_of(both, second) == str(of["ward"])
        # Each cluster has one node of one processor, and more than that to do.
        behind = submit(client, "patients", folder, tmp_path / "finish")
        stopped = until(lambda: controllers(both).get("ward"), "its controller runs")
        stopped.send_signal(signal.SIGSTOP)
        try:
            finish.touch()
            ended = client.wait(first, PATIENCE_S)
            again = client.wait(submit(client, "anyone", folder, finish), PATIENCE_S)
            assert (ended.state, again.state) == (JobState.SUCCEEDED, JobState.SUCCEEDED)
            assert client.job(second).state is JobState.RUNNING, "nothing looks at its end"
            assert client.job(behind).state is JobState.QUEUED
        finally:
            stopped.kill()
        assert client.wait(second, PATIENCE_S).state is JobState.SUCCEEDED
        assert client.wait(behind, PATIENCE_S).state is JobState.SUCCEEDED
        assert [client.job(one).attempt for one in (first, second, behind)] == [1, 1, 1]
        nodes = {node.id: node for node in client.nodes()}
        assert {(node.pool, node.cluster) for node in nodes.values() if node.pool != "local"} == {
            ("open", "default"),
            ("locked", "ward"),
        }
    listed = both.remora("nodes").out
    assert "CLUSTER" in listed.splitlines()[0]
    assert "ward" in listed
    assert "CLUSTER" in both.remora("list").out.splitlines()[0]


def reaches(home: Path, address: str, folders: ClusterFolders) -> bool:
    """Whether a client with the secret of `home`, and a certificate of these folders, is answered by the head there."""
    code = f"from ray._raylet import GcsClient; print(GcsClient({address!r}).internal_kv_keys(b''))"
    short = {"RAY_gcs_rpc_server_connect_timeout_s": "1", "GRPC_VERBOSITY": "ERROR"}
    environment = {**process_environment(home), **tls_environment(folders.tls), **short}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=90
    )
    return done.returncode == 0


def test_no_machine_of_one_cluster_has_what_opens_the_other(both: Embedded) -> None:
    of = homes(both.home)
    heads = {name: find_head(home) for name, home in of.items()}
    addresses = {name: head.ray_address for name, head in heads.items() if head is not None}
    assert len(set(addresses.values())) == 2
    folders = {name: ClusterFolders(home) for name, home in of.items()}
    tokens = {name: one.token.read_text() for name, one in folders.items()}
    assert tokens["default"] != tokens["ward"]
    assert folders["default"].authority.read_bytes() != folders["ward"].authority.read_bytes()
    for name, other in (("default", "ward"), ("ward", "default")):
        machines = [
            process
            for mark in values_of(MACHINE_VARIABLE)
            if mark.endswith(f"@{of[name]}")
            for process in find_by_environment(MACHINE_VARIABLE, mark)
        ]
        assert len(machines) >= 4, "a head and a node, with what Ray starts there"
        secret = str(folders[other].token).encode(), str(folders[other].tls).encode(), tokens[other].encode()
        for process in machines:
            with contextlib.suppress(OSError):
                shown = Path(f"/proc/{process.pid}/environ").read_bytes()
                assert [one for one in secret if one in shown] == []
        temporary = [path for path in folders[name].temporary.rglob("*") if path.is_file()]
        assert [path for path in temporary if tokens[other].encode() in path.read_bytes()] == []
        assert reaches(of[name], addresses[name], folders[name])
        # Neither the other secret with the right certificate, nor the other certificate with the right secret.
        assert not reaches(of[other], addresses[name], folders[name])
        assert not reaches(of[name], addresses[name], folders[other])
