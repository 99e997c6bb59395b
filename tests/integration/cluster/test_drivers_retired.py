"""Nodes for drivers of an earlier release are retired by the release that comes into force, and end."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.local.environment import process_environment
from cluster.local.folders import ClusterFolders
from remora.ports import free_port
from tests.integration.trainers.lab import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

#: One loopback address for each node: the head and those for drivers.
HEAD = "127.0.84.1"
ADDRESSES = {
    "head": HEAD,
    "drivers-1.0-a": "127.0.84.2",
    "drivers-1.1-b": "127.0.84.3",
    "drivers": "127.0.84.4",
}


class Server:
    """A head and nodes for drivers, each a process group of its own."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.address = f"{HEAD}:{free_port(HEAD)}"
        self.nodes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str) -> None:
        words = [name.partition("-")[0], "--home", str(self.home), "--head", self.address]
        self.nodes[name] = subprocess.Popen(
            [
                sys.executable,
                "-P",
                "-m",
                "cluster.head",
                *words,
                "--address",
                ADDRESSES[name],
                "--name",
                name,
            ],
            env=process_environment(self.home, PYTHONUNBUFFERED="1"),
            stdout=(self.home.parent / f"{name}.log").open("ab"),
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def retire_for(self, name: str) -> subprocess.CompletedProcess[str]:
        words = ["--home", str(self.home), "--head", self.address, "--for", name]
        return subprocess.run(
            [sys.executable, "-P", "-m", "cluster.head.retire", *words],
            env=process_environment(self.home),
            capture_output=True,
            text=True,
            check=False,
        )

    def close(self) -> None:
        for node in self.nodes.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(node.pid, signal.SIGKILL)
            node.wait()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path / "home")
    try:
        yield server
    finally:
        server.close()
        ClusterFolders(server.home).remove_temporary()


def test_the_nodes_of_other_releases_end(server: Server) -> None:
    for name in ("head", "drivers-1.0-a", "drivers"):
        server.start(name)
    # Until there is one for the next drivers, none is retired; it may join meanwhile.
    until(lambda: not server.retire_for("drivers-1.0-a").returncode, "the node of the first release is there")
    server.start("drivers-1.1-b")
    retired = server.retire_for("drivers-1.1-b")
    assert (retired.returncode, retired.stdout.split()) == (0, ["drivers-1.0-a"]), retired.stderr
    until(lambda: server.nodes["drivers-1.0-a"].poll() is not None, "the retired node ends")
    # Then its supervisor does not start it again.
    assert server.nodes["drivers-1.0-a"].returncode == 0
    assert {name for name, node in server.nodes.items() if node.poll() is None} == {
        "head",
        "drivers",
        "drivers-1.1-b",
    }
