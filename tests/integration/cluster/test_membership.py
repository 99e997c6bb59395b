"""What Ray says about machines that join twice, and about agents that fall silent."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
import ray
from ray.cluster_utils import Cluster
from ray.util.placement_group import placement_group, remove_placement_group

from cluster.node.agent import gcs_requests
from cluster.ray.drain import RayDrains
from cluster.ray.heartbeats import HEARTBEAT_S, SILENT_S, written
from cluster.ray.members import MemberNode
from cluster.ray.membership import RayMembership
from remora.ray_labels import NODE_LABEL
from tests.e2e.processes import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A head without work, to which this process is connected."""
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    ray.init(address=cluster.address, log_to_driver=False)
    yield cluster
    ray.shutdown()
    cluster.shutdown()


class Clock:
    """A time that only tests move."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def joins(cluster: Cluster, node_id: str) -> tuple[object, str]:
    """A raylet of the node joins; it, and Ray's own id of it."""
    raylet = cluster.add_node(num_cpus=1, labels={NODE_LABEL: node_id})
    return raylet, raylet.node_id


def member(node_id: str) -> MemberNode:
    return RayMembership().observe()[node_id]


def test_a_machine_that_joins_twice_is_its_newest_raylet_for_its_readers_and_for_its_agent(
    cluster: Cluster,
) -> None:
    first, first_id = joins(cluster, "node_a")
    assert member("node_a").ray_node_id == first_id
    _, second_id = joins(cluster, "node_a")
    assert sum(node["Labels"].get(NODE_LABEL) == "node_a" and node["Alive"] for node in ray.nodes()) == 2
    assert member("node_a").ray_node_id == second_id
    answer = gcs_requests.drain(cluster.address, "node_a", time.time() + 600.0, "Preempt by the cloud")
    assert answer == gcs_requests.Drained(second_id)
    # Without work it is let go at once; a drain of the other one would have ended that.
    until(lambda: member("node_a").ray_node_id == first_id, "the newest is drained and goes", 60.0)
    assert member("node_a").is_alive
    assert not member("node_a").is_draining
    assert gcs_requests.is_empty(cluster.address, "node_a", second_id) is False, (
        "work may be sent to the older one"
    )
    cluster.remove_node(first)
    until(lambda: not member("node_a").is_alive, "none lives", 60.0)
    assert gcs_requests.is_empty(cluster.address, "node_a", second_id) is True
    assert gcs_requests.is_empty(cluster.address, "node_a", "") is None, (
        "nothing was drained: it may be cut off"
    )


def test_an_agent_is_heard_until_it_gives_no_new_sign_of_life(cluster: Cluster) -> None:
    raylet, _ = joins(cluster, "node_b")
    clock = Clock()
    membership = RayMembership(clock)

    def look(after_s: float = HEARTBEAT_S) -> MemberNode:
        clock.now += after_s
        return membership.observe()["node_b"]

    assert look().agent is None, "it has none yet"
    gcs_requests.send_heartbeat(cluster.address, "node_b", written(1.0, [], None))
    heard = look().agent
    assert heard is not None
    assert (heard.heartbeat.at, heard.unchanged_s) == (1.0, 0.0)
    looks = [look().agent for _ in range(int(SILENT_S / HEARTBEAT_S) + 1)]
    assert [one is not None and one.is_silent for one in looks] == [False] * (len(looks) - 1) + [True]
    gcs_requests.send_heartbeat(cluster.address, "node_b", written(2.0, [], "Preempt by the cloud"))
    again = look()
    assert again.agent is not None
    assert not again.agent.is_silent
    assert again.leaves is None, "it is not drained yet"
    cluster.remove_node(raylet)
    until(lambda: not look(0.0).is_alive, "it is given up", 60.0)
    gone = look()
    assert gone.leaves == "Preempt by the cloud", "what its agent said last"
    assert look() == gone, "and it is not asked again"


def test_a_node_is_in_use_from_the_moment_on_at_which_ray_gives_it_away(cluster: Cluster) -> None:
    raylet, _ = joins(cluster, "node_c")
    kept = ray.put(bytes(1_000_000))
    assert not member("node_c").is_in_use
    (place,) = (node["NodeID"] for node in ray.nodes() if node["Alive"] and node["Labels"].get(NODE_LABEL))
    there = placement_group([{"CPU": 0.5}], "STRICT_PACK", _soft_target_node_id=place)
    ray.get(there.ready())
    assert member("node_c").is_in_use, "no worker has started yet"
    remove_placement_group(there)
    until(lambda: not member("node_c").is_in_use, "it is free again", 30.0)
    del kept
    drains = RayDrains(RayMembership())
    drains.drain("node_c", "it has been unused", time.time() + 600.0)
    until(lambda: not member("node_c").is_alive, "what is drained and not in use leaves at once", 60.0)
    cluster.remove_node(raylet)
