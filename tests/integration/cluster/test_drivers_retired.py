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
import ray

from cluster.local.connection import connect
from cluster.local.environment import process_environment
from cluster.local.folders import ClusterFolders
from remora.free_ports import free_port
from remora.ray_resources import DRIVER_SHARE, DRIVERS
from tests.integration.trainers.lab import until
from trainers.ray_train import coordinator

pytestmark = [pytest.mark.slow, pytest.mark.soak, pytest.mark.timeout(300)]

#: One loopback address for each node: the head and those for drivers.
HEAD = "127.0.84.1"
ADDRESSES = {
    "head": HEAD,
    "drivers-1.0-a": "127.0.84.2",
    "drivers-1.1-b": "127.0.84.3",
    "drivers": "127.0.84.4",
}


#: A program that has Ray make the coordinator, on the node to which it connects.
RAYS_OWN = """
import sys
from pathlib import Path
from ray.data._internal.cluster_autoscaler.default_autoscaling_coordinator import (
    get_or_create_autoscaling_coordinator,
)
from cluster.local.connection import connect
connect(Path(sys.argv[1]), *sys.argv[2:])
get_or_create_autoscaling_coordinator()
"""


class Server:
    """A head and nodes for drivers, each a process group of its own."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.address = f"{HEAD}:{free_port(HEAD)}"
        self.nodes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str) -> None:
        words = [name.partition("-")[0], "--home", str(self.home), "--head", self.address]
        # As an operator starts those on another machine: remora-server drivers ...
        module = "service.installation" if name == "drivers" else "cluster.head"
        self.nodes[name] = subprocess.Popen(
            [
                sys.executable,
                "-P",
                "-m",
                module,
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
        ray.shutdown()
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


def test_the_coordinator_of_ray_train_holds_no_node_that_retires(server: Server) -> None:
    old, new = "drivers-1.0-a", "drivers-1.1-b"
    server.start("head")
    server.start(old)
    until(lambda: connects(server), "the head is there")
    until(lambda: node_id(old), "the node of the first release is there")
    ours = coordinator.CoordinatorClient("att_one")
    until(lambda: reserved(ours) == {}, "the coordinator answers")
    assert stands_on(ours) == node_id(old), "with the drivers"

    server.start(new)
    retired = server.retire_for(new)
    assert (retired.returncode, retired.stdout.split()) == (0, [old]), retired.stderr
    until(lambda: server.nodes[old].poll() is not None, "the retired node ends")
    assert reserved(ours) == {}, "who asked it asks on"
    assert stands_on(ours) == node_id(new)


def test_a_coordinator_that_a_program_had_bound_to_a_node_stays_until_its_last_driver_ends(
    server: Server,
) -> None:
    old, new = "drivers-1.0-a", "drivers-1.1-b"
    server.start("head")
    server.start(old)
    until(lambda: connects(server), "the head is there")
    until(lambda: node_id(old), "the node of the first release is there")
    words = [sys.executable, "-c", RAYS_OWN, str(server.home), server.address, ADDRESSES[old]]
    subprocess.run(words, env=process_environment(server.home), check=True)
    ours = coordinator.CoordinatorClient("att_one")
    assert reserved(ours) == {}
    bound = coordinator.find()._actor_id
    driver = Driver.options(resources={DRIVERS: DRIVER_SHARE}, num_cpus=0).remote()
    ray.get(driver.name.remote(), timeout=60.0)

    server.start(new)
    assert server.retire_for(new).returncode == 0
    coordinator.keep("Driver")
    assert reserved(ours) == {}, "a driver of the release before asks it, and would ask no other"
    assert coordinator.find()._actor_id == bound

    ray.kill(driver)
    until(lambda: coordinator.keep("Driver") or server.nodes[old].poll() is not None, "the old node ends")
    with pytest.raises(coordinator.DEAD):
        reserved(ours)
    ours.replace()
    assert reserved(ours) == {}
    assert coordinator.find()._actor_id != bound
    assert stands_on(ours) == node_id(new)


@ray.remote
class Driver:
    """Stands for a driver of the release before."""

    def name(self) -> str:
        return "driver"


def connects(server: Server) -> bool:
    """This process is connected through the node of the head, which stays."""
    try:
        connect(server.home, server.address, HEAD)
    except Exception as error:
        print(error)
        return False
    return True


def node_id(name: str) -> str | None:
    """Ray's id of the living node of that name."""
    address = ADDRESSES[name]
    found = [
        node["NodeID"] for node in ray.nodes() if node["Alive"] and node["NodeManagerAddress"] == address
    ]
    return found[0] if found else None


def reserved(client: coordinator.CoordinatorClient) -> object:
    """What an attempt gets that has asked for nothing."""
    answer = client._autoscaling_coordinator.get_reserved_resources.remote("att_one", recompute=True)
    return ray.get(answer, timeout=60.0)


def stands_on(client: coordinator.CoordinatorClient) -> str:
    actor = client._autoscaling_coordinator._actor_id.hex()
    return str(ray._private.state.actors(actor)["Address"]["NodeID"])
