"""A pod learns from a real head which node it is, and joins as that node; Kubernetes is emulated, Ray is not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray

from cluster.kuberay.provider import KubeRayProvider
from cluster.local import connection
from cluster.local.environment import process_environment
from cluster.local.folders import ClusterFolders
from cluster.node.pod import main as pod_main
from cluster.ray.membership import RayMembership
from cluster.ray.pod_names import RayPodNames
from tests.contracts.cluster.kuberay_rig import KubeRayRig, request
from tests.integration.cluster.test_head_started_again import DRIVERS, Server
from tests.integration.trainers.lab import until

pytestmark = [pytest.mark.slow, pytest.mark.soak, pytest.mark.timeout(600)]

#: Loopback address of the pod.
POD = "127.0.83.7"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path / "home")
    try:
        yield server
    finally:
        ray.shutdown()
        server.close()
        ClusterFolders(server.home).remove_temporary()


def connect(server: Server) -> bool:
    os.environ.update(process_environment(server.home))
    try:
        connection.connect(server.home, server.address, DRIVERS)
    except Exception:
        return False
    return True


def start_pod(server: Server, name: str, folder: Path, temporary: str) -> subprocess.Popen[bytes]:
    variables = {
        "REMORA_HEAD": server.address,
        "POD_NAME": name,
        "POD_IP": POD,
        "RUNTIME_DIRECTORY": str(folder / "run"),
        "REMORA_RAY_FLAGS": f"--temp-dir={temporary} --object-store-memory=100000000",
    }
    return subprocess.Popen(
        [sys.executable, "-P", "-m", pod_main.__module__],
        env=process_environment(server.home, PYTHONUNBUFFERED="1", **variables),
        stdout=(folder / "pod.log").open("ab"),
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def test_a_pod_becomes_the_node_that_was_asked_for(server: Server, tmp_path: Path) -> None:
    server.start("head")
    server.start("drivers")
    until(lambda: connect(server), "the node for drivers can be reached")
    membership = RayMembership()
    with (
        KubeRayRig(tmp_path) as rig,
        tempfile.TemporaryDirectory(prefix="remora-pod-", ignore_cleanup_errors=True) as temporary,
    ):
        provider = KubeRayProvider(rig.settings(), RayPodNames(membership))
        provider.create(request("node_a", CPU=2.0))
        with rig.server.lock:
            (pod,) = rig.world.pods
        process = start_pod(server, pod, tmp_path, temporary)
        log = tmp_path / "pod.log"
        try:
            until(lambda: "no controller has said yet" in log.read_text(), "the pod waits for its name")
            assert "node_a" not in membership.observe()
            assert [node.node_id for node in provider.list()] == ["node_a"]
            until(lambda: "node_a" in membership.observe(), "the pod is a member")
            member = membership.observe()["node_a"]
            assert (member.address, member.resources["CPU"], member.is_alive) == (POD, 2.0, True)
            assert (tmp_path / "run/ray.pid").exists(), "it is ready"
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
            until(lambda: not membership.observe()["node_a"].is_alive, "the head knows that it has left")
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
                process.wait(60)
            provider.close()
