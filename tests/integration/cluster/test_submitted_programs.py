"""`ray job submit`: the head serves Ray's job API to who has the cluster's secret, and its programs get nodes.

Head, job server, client, nodes and controller are the real ones.
"""

from __future__ import annotations

import contextlib
import http.client
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psutil
import pytest
from fastapi.testclient import TestClient

from cluster.local.environment import process_environment
from remora.free_ports import free_port
from remora.states import NodeState
from remora.views import RayRequest
from service.api.app import create_app
from tests.e2e.processes import until
from tests.integration.cluster.buying_cluster import BuyingCluster, buying_cluster
from tests.integration.cluster.ray_environment import use_ray_environment

pytestmark = [pytest.mark.slow, pytest.mark.soak, pytest.mark.timeout(580)]

#: What Ray runs for the submission: it waits for its gang, and then for the test.
PROGRAM = """
import socket, sys
import ray
from ray.util.placement_group import placement_group
ray.init(log_to_driver=False)
group = placement_group([{"CPU": 2}, {"CPU": 2}], strategy="STRICT_SPREAD")
ray.get(group.ready())
print("has it", flush=True)
socket.create_connection(("127.0.0.1", int(sys.argv[1]))).recv(1)
"""


@pytest.fixture
def port() -> int:
    return free_port("127.0.0.1")


@pytest.fixture
def cluster(tmp_path: Path, port: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[BuyingCluster]:
    use_ray_environment(monkeypatch)
    with buying_cluster(tmp_path, port) as cluster:
        yield cluster


def status(port: int, path: str, token: str = "", method: str = "GET") -> int:
    """What the job server answers to this token, an empty one: to none; 0 while nothing listens."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers=headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310 - its own address
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code
    except urllib.error.URLError:
        return 0


def open_to_others(head: int) -> set[tuple[str, int]]:
    """Names of processes of the head that listen at every address, with the port."""
    processes = [psutil.Process(head), *psutil.Process(head).children(recursive=True)]
    return {
        (process.name(), found.laddr.port)
        for process in processes
        for found in process.net_connections("tcp")
        if found.status == psutil.CONN_LISTEN and found.laddr.ip in ("0.0.0.0", "::")
    }


def agent_port(head: int) -> int:
    """Where the agent of the head's node listens."""
    name = "--dashboard-agent-listen-port="
    (port,) = [word for word in psutil.Process(head).cmdline() if word.startswith(name)]
    return int(port.removeprefix(name))


def answers_http(port: int) -> bool:
    """Something answers a request for measurements there."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    with closing(connection), contextlib.suppress(OSError, http.client.HTTPException):
        connection.request("GET", "/metrics")
        return connection.getresponse().status > 0
    return False


def test_a_submitted_program_gets_the_nodes_of_its_gang(
    cluster: BuyingCluster, port: int, tmp_path: Path
) -> None:
    secret = (cluster.home / "ray.token").read_text()
    until(lambda: status(port, "/api/jobs/", secret), "the head serves the job API", 120.0)
    for path, method in (("/api/jobs/", "GET"), ("/api/jobs/", "POST"), ("/api/version", "GET")):
        assert status(port, path, "", method) == 401
        assert status(port, path, "wrong", method) == 403
    assert status(port, "/api/jobs/", secret) == 200
    # Of Ray's dashboard nothing is behind the page: no logs, stacks, Serve.
    for path in (
        "/api/v0/logs",
        "/worker/traceback?pid=1",
        "/api/serve/applications/",
    ):
        assert status(port, path, secret) == 404, path
    assert cluster.head.pid is not None
    agent = agent_port(cluster.head.pid)
    # Ray's server waits ten seconds for the agent through which programs are started.
    until(lambda: status(agent, "/api/healthz"), "the head's agent is there", 120.0)
    assert status(agent, "/api/job_agent/jobs/", "", "POST") == 401
    others = open_to_others(cluster.head.pid)
    assert {name for name, _ in others} <= {"gcs_server", "raylet", "ray::DashboardAgent"}
    assert [one for one in others if answers_http(one[1])] == [], "Ray's own protocol, which needs the secret"
    with closing(socket.create_server(("127.0.0.1", 0))) as gate:
        gate.settimeout(60.0)
        program, log = tmp_path / "program.py", tmp_path / "submit.log"
        program.write_text(PROGRAM)
        entrypoint = [sys.executable, str(program), str(gate.getsockname()[1])]
        words = ["job", "submit", "--address", f"http://127.0.0.1:{port}", "--", *entrypoint]
        with log.open("w") as said:
            submitted = subprocess.Popen(
                [sys.executable, "-m", "ray.scripts.scripts", *words],
                env=process_environment(cluster.home),
                stdout=said,
                stderr=subprocess.STDOUT,
            )

        def asked() -> list[RayRequest]:
            assert submitted.poll() is None, log.read_text()
            return cluster.asked(api)

        try:
            with TestClient(create_app(cluster.settings), base_url="http://127.0.0.1") as api:
                (request,) = until(asked, "the request is shown")
                assert (request.strategy, request.count, request.project) == ("STRICT_SPREAD", 2, "ray")
                until(
                    lambda: [n.state for n in cluster.nodes()] == [NodeState.READY] * 2, "two nodes are ready"
                )
                connection, _ = gate.accept()
                assert {node.project for node in cluster.nodes()} == {"ray"}
                connection.close()
            assert submitted.wait(60) == 0, log.read_text()
            assert "has it" in log.read_text()
            assert "succeeded" in log.read_text()
            until(lambda: cluster.nodes() == [], "they are given back")
        finally:
            submitted.kill()
            submitted.wait()
