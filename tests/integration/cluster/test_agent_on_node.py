"""The agent as a process beside a real raylet: what the emulated cloud announces drains the node in Ray."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import ray
import uvicorn
from ray._raylet import GcsClient
from starlette.applications import Starlette
from starlette.routing import Mount

from cluster.azure.emulator.imds import Announcement, MetadataServer
from cluster.connection import connect
from cluster.local.environment import process_environment
from cluster.local.head import start_head, stop_head, wait_until_reachable
from cluster.local.provider import LocalProvider
from cluster.local.records import Machine
from cluster.membership import BEAT_NAMESPACE, BEAT_PREFIX, MemberNode, RayMembership
from cluster.provider import NodeRequest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

NODE = "node_agent"


@pytest.fixture
def head(tmp_path: Path) -> Iterator[Machine]:
    started = start_head(tmp_path)
    wait_until_reachable(tmp_path, started)
    connect(tmp_path, started.ray_address)
    yield started
    ray.shutdown()
    local = LocalProvider(tmp_path, started.ray_address)
    local.kill(NODE)
    local.delete(NODE)
    stop_head(tmp_path)


@pytest.fixture
def server() -> MetadataServer:
    server = MetadataServer()
    server.add("w0")
    return server


@pytest.fixture
def url(server: MetadataServer) -> Iterator[str]:
    app = Starlette(routes=[Mount("/metadata", server.application())])
    running = uvicorn.Server(uvicorn.Config(app, log_level="critical", lifespan="off", date_header=False))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=running.run, kwargs={"sockets": [listening]})
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/metadata/machines/w0"
        running.should_exit = True
        thread.join()


@pytest.fixture
def agent(tmp_path: Path, head: Machine, url: str) -> Iterator[subprocess.Popen[bytes]]:
    """`python -m cluster.agent`, which learns the machine's name by itself."""
    words = ["--head", head.ray_address, "--node-id", NODE, "--metadata-url", url]
    with (tmp_path / "agent.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "cluster.agent", *words],
            env=process_environment(tmp_path),
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    yield process
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0, (tmp_path / "agent.log").read_text()


def until(seen: Callable[[], object], what: str, timeout_s: float = 120.0) -> None:
    deadline = time.monotonic() + timeout_s
    pause = threading.Event()
    while not seen():
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
        pause.wait(0.1)


def member() -> MemberNode | None:
    found = RayMembership().observe().get(NODE)
    return found if found is not None and found.is_alive else None


def test_a_notice_drains_the_node_and_is_answered_when_its_work_has_left(
    tmp_path: Path, head: Machine, server: MetadataServer, agent: subprocess.Popen[bytes]
) -> None:
    LocalProvider(tmp_path, head.ray_address).create(
        NodeRequest(node_id=NODE, pool="local", resources={"CPU": 1.0})
    )
    until(member, "the node joins")
    client = GcsClient(address=head.ray_address)
    key = BEAT_PREFIX + NODE.encode()
    until(lambda: client.internal_kv_get(key, BEAT_NAMESPACE), "the agent gives a sign of life")
    beat = json.loads(client.internal_kv_get(key, BEAT_NAMESPACE))
    assert beat["problems"] == []

    @ray.remote(num_cpus=1)
    class Work:
        def is_there(self) -> bool:
            return True

    work = Work.remote()  # type: ignore[attr-defined]
    assert ray.get(work.is_there.remote())
    event_id = server.announce("w0", Announcement(type="Terminate", notice_s=600))
    announced = server.event(event_id)
    assert announced is not None
    until(lambda: (seen := member()) and seen.is_draining, "Ray drains the node")
    seen = member()
    assert seen is not None
    assert seen.deadline_at == pytest.approx(announced.not_before, abs=2.0)
    assert seen.leaves is not None
    assert "Terminate" in seen.leaves
    assert not announced.is_acknowledged, "its work is still there"

    ray.kill(work)
    until(lambda: announced.is_acknowledged, "the cloud is told that it need not wait")
    assert agent.poll() is None
