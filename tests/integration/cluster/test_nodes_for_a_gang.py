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
import ray
from fastapi.testclient import TestClient

from cluster.local.connection import connect
from cluster.local.environment import process_environment
from cluster.local.head import start_head, stop_head, wait_until_reachable
from cluster.local.provider import LocalProvider
from cluster.policies.documents import digest_of
from cluster.policies.offerings import CapacityType, Offering
from cluster.ray.drain import RayDrains
from cluster.ray.membership import RayMembership
from cluster.ray.programs import RayPrograms
from remora.states import NodeState
from remora.views import Page, Pool, RayRequest
from service.api.app import create_app
from service.clouds.fixed_pool import fixed_pool
from service.controller.connecting import ClusterConnection
from service.controller.controller import Controller
from service.queue.policy_versions import PolicyRequest, next_version
from service.queue.rows import NodeRow
from service.settings import Settings
from service.steady_clock import CLOCK
from service.store import policies
from service.store.database import Database
from service.store.migrate import migrate
from service.store.nodes import current_nodes
from tests.e2e.processes import until
from tests.service_fakes import FakeLauncher, FakeSupply

pytestmark = [pytest.mark.slow, pytest.mark.soak, pytest.mark.timeout(580)]

SOLD = Offering(
    size="local", zone=None, capacity=CapacityType.ON_DEMAND, resources={"CPU": 2.0}, price_per_hour=0.01
)
POLICIES = """
pools:
  cpu: {sizes: [local], capacity: on-demand, max_nodes: 3, idle_s: 2}
projects:
  ray: {usd_per_day: 5}
ray_programs: {}
"""
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


class Cluster:
    """The controller, which takes a turn whenever a test looks."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.settings = Settings(
            home=home, database_url=f"sqlite:///{home / 'remora.db'}", cloud="azure-emulated", lease_s=60.0
        )
        self.database = Database(self.settings.database_url)
        migrate(self.database)
        self.head = start_head(home)
        self.provider = LocalProvider(home, self.head.ray_address)

    def connect(self) -> None:
        wait_until_reachable(self.home, self.head)
        connect(self.home, self.head.ray_address)
        membership = RayMembership()
        connection = ClusterConnection(
            FakeLauncher(),
            self.provider,
            membership,
            FakeSupply((SOLD,)),
            RayDrains(membership),
            follows_policies=True,
            ray_programs=RayPrograms(membership),
        )
        self._controller = Controller(self.database, self.settings, connection)
        newest = fixed_pool(self.settings)
        request = PolicyRequest(document=POLICIES, digest=digest_of(POLICIES), based_on=newest.version)
        version = next_version(newest, request, CLOCK())
        self.database.transact(lambda connection: policies.insert_policies(connection, version))

    def nodes(self) -> list[NodeRow]:
        """The nodes that have not ended, after one more turn of the controller."""
        assert self._controller.tick(CLOCK())
        rows = self.database.query(lambda connection: current_nodes(connection, "default", CLOCK()))
        return [row for row in rows if row.ended_at is None]

    def close(self) -> None:
        ray.shutdown()
        for machine in self.provider.list():
            self.provider.delete(machine.node_id)
        stop_head(self.home)
        self.database.close()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    cluster = Cluster(home)
    try:
        cluster.connect()
        yield cluster
    finally:
        cluster.close()


def ray_status(cluster: Cluster) -> str:
    return subprocess.run(
        [str(Path(sys.executable).with_name("ray")), "status", f"--address={cluster.head.ray_address}"],
        env=process_environment(cluster.home),
        capture_output=True,
        text=True,
        check=True,
    ).stdout


def test_a_program_gets_the_nodes_of_its_gang_and_they_are_given_back(cluster: Cluster) -> None:
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

            def asked() -> list[RayRequest]:
                cluster.nodes()
                answer = api.get("/v1/ray-requests").content
                return Page[RayRequest].model_validate_json(answer).items

            def pool() -> Pool:
                (found,) = Page[Pool].model_validate_json(api.get("/v1/pools").content).items
                return found

            (request,) = until(asked, "the request is shown")
            assert (request.strategy, request.count, request.resources) == ("STRICT_SPREAD", 2, {"CPU": 2.0})
            assert f"{{'CPU': 2.0}} * {request.count} (STRICT_SPREAD): 1+ pending" in ray_status(cluster)
            until(lambda: [n.state for n in cluster.nodes()] == [NodeState.READY] * 2, "two nodes are ready")
            assert program.stdout.readline() == "has it\n"
            until(lambda: not asked(), "nothing waits any more")
            assert pool().nodes == {NodeState.READY: 2}
            told = ray_status(cluster)
            assert " 2 cpu\n" in told
            assert "(no resource demands)" in told
        assert {node.project for node in cluster.nodes()} == {"ray"}
        assert all(node.idle_since is None for node in cluster.nodes()), "what the program has is not idle"
        program.stdin.write("\n")
        program.stdin.flush()
        until(lambda: cluster.nodes() == [], "they are given back")
    finally:
        program.kill()
        program.communicate()
