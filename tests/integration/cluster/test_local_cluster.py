"""Real raylets: they join, die, freeze, drain and go, and nothing of them is left.

One head for the whole module; every test makes the nodes it needs.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import ray

from cluster.local.connection import connect
from cluster.local.environment import MACHINE_VARIABLE, process_environment
from cluster.local.folders import ClusterFolders
from cluster.local.head import find_head, start_head, stop_head, wait_until_reachable
from cluster.local.provider import LocalProvider
from cluster.local.records import MachineRecord
from cluster.processes import find_by_environment, identity
from cluster.provider import NodeRequest
from cluster.ray.drain import DrainRefused, RayDrains, drain
from cluster.ray.members import MemberNode
from cluster.ray.membership import RayMembership

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # Longer than any socket's path may be: Ray's own files must not depend on it.
    return tmp_path_factory.mktemp("home") / ("long" * 30)


@pytest.fixture(scope="module")
def head(home: Path) -> Iterator[MachineRecord]:
    started = start_head(home)
    wait_until_reachable(home, started)
    connect(home, started.ray_address)
    yield started
    ray.shutdown()
    stop_head(home)
    assert find_by_environment(MACHINE_VARIABLE, started.mark) == []
    assert not ClusterFolders(home).temporary.exists()


@pytest.fixture
def provider(home: Path, head: MachineRecord) -> Iterator[LocalProvider]:
    local = LocalProvider(home, head.ray_address)
    yield local
    for node_id in local.node_ids():
        local.kill(node_id)
        local.delete(node_id)


def until(seen: Callable[[], bool], what: str, timeout_s: float = 60.0) -> float:
    """Poll until it is so; returns the seconds it took, fails the test after `timeout_s`."""
    began = time.monotonic()
    pause = threading.Event()
    while not seen():
        assert time.monotonic() - began < timeout_s, f"not within {timeout_s} s: {what}"
        pause.wait(0.05)
    return time.monotonic() - began


def members() -> dict[str, MemberNode]:
    return RayMembership().observe()


def is_member(node_id: str) -> bool:
    member = members().get(node_id)
    return member is not None and member.is_alive


def join(provider: LocalProvider, *node_ids: str) -> None:
    for node_id in node_ids:
        provider.create(NodeRequest(node_id=node_id, pool="local", resources={"CPU": 1.0, "slot": 2.0}))
    until(lambda: all(is_member(node_id) for node_id in node_ids), f"{node_ids} join")


def on(node_id: str) -> dict[str, object]:
    """Options of an actor that runs on this node."""
    return {"num_cpus": 1, "label_selector": {"remora-node": node_id}}


@ray.remote
class Parent:
    """A worker that starts a child in a session of its own, as supervisors do."""

    def spawn(self) -> int:
        child = subprocess.Popen(
            [sys.executable, "-c", "import signal; signal.pause()"], start_new_session=True
        )
        return child.pid


def test_nodes_join_with_labels_resources_and_addresses_of_their_own(provider: LocalProvider) -> None:
    join(provider, "node_a", "node_b")
    seen, listed = members(), {node.node_id: node for node in provider.list()}
    assert seen.keys() == {"node_a", "node_b"} == listed.keys()
    for node_id, member in seen.items():
        assert member.resources["CPU"] == 1.0
        assert member.resources["slot"] == 2.0
        assert not member.is_draining
        assert member.address == listed[node_id].address
        socket.create_connection((member.address, member.raylet_port), timeout=1.0).close()
    assert seen["node_a"].address != seen["node_b"].address
    labels = {
        node["Labels"]["remora-node"]: node["Labels"]
        for node in ray.nodes()
        if "remora-node" in node["Labels"]
    }
    assert labels["node_a"]["remora-pool"] == "local"


@pytest.mark.soak
def test_a_machine_that_is_late_joins_in_the_end_and_one_that_shall_never_join_does_not(
    provider: LocalProvider, home: Path
) -> None:
    (home / "faults.json").write_text('{"never_join": 1, "join_late": 1, "late_s": 0.5}')
    provider.create(NodeRequest(node_id="node_idle", pool="local", resources={"CPU": 1.0}))
    join(provider, "node_late")
    assert not is_member("node_idle")
    assert [node.is_running for node in provider.list()] == [True, True]


def test_a_killed_node_is_gone_whole_and_ray_notices_within_seconds(provider: LocalProvider) -> None:
    join(provider, "node_c")
    parent = Parent.options(**on("node_c")).remote()
    child = ray.get(parent.spawn.remote())
    assert identity(child)
    provider.kill("node_c")
    assert identity(child) is None, "also the child in a session of its own"
    assert provider.processes("node_c") == ()
    (node,) = provider.list()
    assert (node.is_running, "ended" in str(node.message)) == (False, True)
    assert until(lambda: not is_member("node_c"), "Ray notices the death", 15.0) < 10.0


def test_a_restarted_controller_adopts_and_deletes_without_leaving_anything(
    home: Path, head: MachineRecord, provider: LocalProvider
) -> None:
    # A process that makes a node and is killed at once, as a controller may be.
    code = f"""
import os, pathlib, signal
from cluster.local.provider import LocalProvider
from cluster.provider import NodeRequest
provider = LocalProvider(pathlib.Path({str(home)!r}), {head.ray_address!r})
provider.create(NodeRequest(node_id="node_d", pool="local", resources={{"CPU": 1.0}}))
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", code], env=process_environment(home)).returncode == -9
    until(lambda: is_member("node_d"), "the orphan joins")
    (node,) = provider.list()
    assert node.is_running
    folder = ClusterFolders(home).temporary_of("node_d")
    assert folder.is_dir()
    provider.delete("node_d")
    assert provider.list() == []
    assert provider.processes("node_d") == ()
    assert not folder.exists()
    until(lambda: not is_member("node_d"), "Ray notices the end", 15.0)


@pytest.mark.soak
def test_a_frozen_node_is_lost_for_ray_but_still_listed(provider: LocalProvider) -> None:
    join(provider, "node_e")
    provider.freeze("node_e")
    until(lambda: not is_member("node_e"), "Ray gives the silent node up", 30.0)
    (node,) = provider.list()
    assert node.is_running
    provider.thaw("node_e")


def test_a_drained_node_shows_its_deadline_and_ends_when_its_work_has(provider: LocalProvider) -> None:
    join(provider, "node_f")
    parent = Parent.options(**on("node_f")).remote()
    ray.get(parent.spawn.remote())
    deadline_at = time.time() + 120.0
    drain(members()["node_f"].ray_node_id, "the cloud takes it", deadline_at)
    until(lambda: members()["node_f"].is_draining, "it drains", 5.0)
    member = members()["node_f"]
    assert member.is_alive
    assert member.deadline_at == pytest.approx(deadline_at, abs=0.01)
    drains = RayDrains(RayMembership())
    drains.drain("node_f", "no job uses it", deadline_at + 60.0)
    assert members()["node_f"].deadline_at == member.deadline_at, "what the cloud said is not put off"
    drains.drain("node_f", "the budget is spent", deadline_at - 60.0)
    until(
        lambda: members()["node_f"].deadline_at == pytest.approx(deadline_at - 60.0, abs=0.01),
        "it goes sooner",
        5.0,
    )
    ray.kill(parent)
    until(lambda: not is_member("node_f"), "it ends after its work", 15.0)
    # Its raylet ended in good order, which `ray start` does not take for an end: deleting it is the planner's part.
    (node,) = provider.list()
    assert node.is_running


@pytest.mark.soak
def test_what_cannot_be_drained_is_refused_in_a_sentence(head: MachineRecord) -> None:
    with pytest.raises(DrainRefused, match="was not drained"):
        drain("ab" * 28, "test", time.time() + 10)
    with pytest.raises(DrainRefused, match="was not drained"):
        drain("not hexadecimal", "test", time.time() + 10)
    with pytest.raises(DrainRefused, match="node_never was not drained"):
        RayDrains(RayMembership()).drain("node_never", "test", time.time() + 10)


def test_the_head_is_adopted_not_started_twice(home: Path, head: MachineRecord) -> None:
    assert start_head(home) == head == find_head(home)
    assert (home / "ray.address").read_text().strip() == head.ray_address


def test_strangers_without_the_secret_are_turned_away(home: Path, head: MachineRecord) -> None:
    token = home / "ray.token"
    assert token.stat().st_mode & 0o777 == 0o600
    code = f"from ray._raylet import GcsClient; GcsClient({head.ray_address!r}).internal_kv_keys(b'')"
    stranger = {
        **process_environment(home),
        "RAY_AUTH_MODE": "disabled",
        "RAY_gcs_rpc_server_connect_timeout_s": "1",
    }
    answer = subprocess.run(
        [sys.executable, "-c", code], env=stranger, capture_output=True, text=True, timeout=60
    )
    assert answer.returncode != 0
    assert "InvalidAuthToken" in answer.stderr
