"""The embedded service as its user starts it: killed part by part, killed whole, adopted, ended."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import remora
from cluster.local.environment import MACHINE_VARIABLE
from cluster.local.folders import ClusterFolders
from cluster.local.head import find_head
from cluster.local.provider import LocalProvider
from cluster.local.records import MachineRecord
from cluster.processes import find_by_environment, identity, signal_all

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[3]
COMMAND = [sys.executable, "-m", "service.up"]


class Service:
    """A running `service.up` and what it prints."""

    def __init__(self, home: Path) -> None:
        words = ["--home", str(home), "--port", "0", "--nodes", "2", "--node-cpus", "1"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        self.home = home
        self.process = subprocess.Popen(
            [*COMMAND, *words], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self.lines: list[str] = []
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._news:
                self.lines.append(line.rstrip())
                self._news.notify_all()

    def said(self, pattern: str, timeout_s: float = 90.0) -> re.Match[str]:
        """Wait for a line that matches."""
        with self._news:
            found = self._news.wait_for(
                lambda: next((m for line in self.lines if (m := re.search(pattern, line))), None), timeout_s
            )
        assert found, f"{pattern!r} was not said: {self.lines}"
        return found

    def url(self) -> str:
        return self.said(r"http://\S+").group()

    def child(self, module: str) -> int:
        """Pid of the API or the controller."""
        children = psutil.Process(self.process.pid).children()
        return next(child.pid for child in children if module in child.cmdline())

    def end(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        code = self.process.wait(60)
        self._reader.join()
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code


def until(seen: Callable[[], object], what: str, timeout_s: float = 90.0) -> None:
    deadline = time.monotonic() + timeout_s
    pause = threading.Event()
    while not seen():
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
        pause.wait(0.05)


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    home = tmp_path / "home"
    yield home
    subprocess.run(
        [*COMMAND, "--down", "--home", str(home)], env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True
    )


@pytest.fixture
def start(home: Path) -> Iterator[Callable[[], Service]]:
    services: list[Service] = []

    def begin() -> Service:
        services.append(Service(home))
        return services[-1]

    yield begin
    for service in services:
        if service.process.poll() is None:
            service.end(signal.SIGTERM)


def running(home: Path) -> dict[str, MachineRecord]:
    """Living nodes by id, with their processes."""
    head = find_head(home)
    listed = LocalProvider(home, head.ray_address if head else "").list()
    nodes = {node.node_id for node in listed if node.is_running}
    records = (json.loads((home / "nodes" / f"{node}.json").read_text()) for node in nodes)
    return {record["id"]: MachineRecord(**record) for record in records}


def ready(url: str) -> set[str]:
    with urllib.request.urlopen(f"{url}/v1/nodes", timeout=5) as answer:  # noqa: S310  # loopback
        nodes: list[dict[str, Any]] = json.load(answer)["items"]
    return {node["id"] for node in nodes if node["state"] == "ready"}


def assert_nothing_left(home: Path, machines: set[str], url: str) -> None:
    for name in machines:
        assert find_by_environment(MACHINE_VARIABLE, ClusterFolders(home).mark_of(name)) == []
    assert not ClusterFolders(home).temporary.exists()
    assert not (home / "ray.address").exists()
    assert not list((home / "nodes").glob("*.json"))
    port = int(url.rsplit(":", 1)[1])
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=1.0)


@pytest.mark.soak
def test_whatever_dies_comes_back_and_the_end_leaves_nothing(
    home: Path, start: Callable[[], Service]
) -> None:
    service = start()
    service.said(r"nodes +2 ready")
    head, nodes = find_head(home), running(home)
    assert head is not None
    seen = {head.id, *nodes}
    assert len(nodes) == 2

    # The controller dies: another one takes over, the nodes stay.
    controller = service.child("service.controller")
    os.kill(controller, signal.SIGKILL)
    service.said(r"controller +ended and starts again")
    service.said(r"controller +ready")
    assert service.child("service.controller") != controller
    assert running(home) == nodes

    # Everything of the service dies at once: head and nodes live on.
    parts = [service.child("service.controller"), service.child("service.api_process")]
    service.end(signal.SIGKILL)
    until(lambda: not any(map(identity, parts)), "API and controller die with their parent", 10.0)
    assert find_head(home) == head
    assert running(home) == nodes

    # The next service adopts them.
    service = start()
    service.said(r"nodes +2 ready")
    assert find_head(home) == head
    assert running(home) == nodes

    # The head dies: a new one with new nodes, the API stays.
    api = service.child("service.api_process")
    signal_all(find_by_environment(MACHINE_VARIABLE, head.mark), signal.SIGKILL)
    service.said(r"head +ended and starts again")
    until(lambda: len(ready(service.url()) & running(home).keys()) == 2, "two nodes join the new head")
    new = find_head(home)
    assert new is not None
    assert new.ray_address != head.ray_address
    assert not running(home).keys() & nodes.keys()
    assert service.child("service.api_process") == api
    seen |= running(home).keys()

    # The end.
    url = service.url()
    assert service.end(signal.SIGINT) == 0
    assert_nothing_left(home, seen, url)


@pytest.mark.soak
def test_down_ends_what_a_killed_service_left_behind(home: Path, start: Callable[[], Service]) -> None:
    service = start()
    service.said(r"head +ready")
    url = service.url()
    until(lambda: len(running(home)) == 2, "two nodes start")
    head = find_head(home)
    assert head is not None
    machines = {head.id, *running(home)}
    service.end(signal.SIGKILL)
    answer = subprocess.run(
        [*COMMAND, "--down", "--home", str(home)],
        env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "Ended 3 left-over machines" in answer.stdout
    assert_nothing_left(home, machines, url)


@pytest.mark.soak
def test_applied_policies_change_the_nodes(home: Path, start: Callable[[], Service]) -> None:
    service = start()
    service.said(r"nodes +2 ready")
    first = running(home).keys()
    with remora.Client(service.url()) as client:
        assert client.policy().version == 0
        client.apply_policy(policies_with(nodes=3), based_on=0)
        until(lambda: len(ready(service.url())) == 3, "a third node is ready")
        assert first < ready(service.url())

        client.apply_policy(policies_with(nodes=1), based_on=1)
        until(lambda: len(running(home)) == 1, "one node is left")

        client.roll_back_policy(0, based_on=2)
        until(lambda: len(ready(service.url()) & running(home).keys()) == 2, "two nodes are ready again")
        kinds = [one.kind for one in client.cluster_events()]
        assert kinds == ["policies.applied", "policies.applied", "policies.rolled_back"]

    # A second start says that the number of nodes cannot be changed.
    service.end(signal.SIGTERM)
    start().said(r"nodes +as version 3 of the policies says")


def policies_with(nodes: int) -> str:
    return (
        f"pools: {{local: {{sizes: [local], capacity: on-demand, min_nodes: {nodes}, max_nodes: {nodes}}}}}"
    )
