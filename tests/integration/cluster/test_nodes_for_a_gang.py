"""A Ray program gets nodes for its placement group from a controller that buys, and they are given back.

Head, nodes, the program and the controller with all its loops are the real ones; nodes are processes of this machine
that are bought for a price.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from cluster.local.environment import process_environment
from remora.states import NodeState
from remora.views import Page, Pool
from service.api.app import create_app
from tests.e2e.processes import until
from tests.integration.cluster.buying_cluster import BuyingCluster, buying_cluster

pytestmark = [pytest.mark.slow, pytest.mark.soak, pytest.mark.timeout(580)]

PROGRAM = """
import sys
import ray
from ray.util.placement_group import placement_group
ray.init(address=sys.argv[1], log_to_driver=False)
group = placement_group([{"CPU": 2}, {"CPU": 2}], strategy="STRICT_SPREAD")
print("asked", flush=True)
ray.get(group.ready())
print("has it", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[BuyingCluster]:
    with buying_cluster(tmp_path) as cluster:
        yield cluster


def ray_status(cluster: BuyingCluster) -> str:
    return subprocess.run(
        [str(Path(sys.executable).with_name("ray")), "status", f"--address={cluster.head.ray_address}"],
        env=process_environment(cluster.home),
        capture_output=True,
        text=True,
        check=True,
    ).stdout


def test_a_program_gets_the_nodes_of_its_gang_and_they_are_given_back(cluster: BuyingCluster) -> None:
    assert cluster.nodes() == []
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, cluster.head.ray_address],
        env=process_environment(cluster.home),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert program.stdout is not None
        assert program.stdin is not None
        assert program.stdout.readline() == "asked\n"
        with TestClient(create_app(cluster.settings), base_url="http://127.0.0.1") as api:

            def pool() -> Pool:
                (found,) = Page[Pool].model_validate_json(api.get("/v1/pools").content).items
                return found

            (request,) = until(lambda: cluster.asked(api), "the request is shown")
            assert (request.strategy, request.count, request.resources) == ("STRICT_SPREAD", 2, {"CPU": 2.0})
            assert f"{{'CPU': 2.0}} * {request.count} (STRICT_SPREAD): 1+ pending" in ray_status(cluster)
            until(lambda: [n.state for n in cluster.nodes()] == [NodeState.READY] * 2, "two nodes are ready")
            assert program.stdout.readline() == "has it\n"
            until(lambda: not cluster.asked(api), "nothing waits any more")
            assert pool().nodes == {NodeState.READY: 2}
            shown = ray_status(cluster)
            assert " 2 cpu\n" in shown
            assert "(no resource demands)" in shown
        assert {node.project for node in cluster.nodes()} == {"ray"}
        assert all(node.idle_since is None for node in cluster.nodes()), "what the program has is not idle"
        program.stdin.write("\n")
        program.stdin.flush()
        until(lambda: cluster.nodes() == [], "they are given back")
    finally:
        program.kill()
        program.communicate()
