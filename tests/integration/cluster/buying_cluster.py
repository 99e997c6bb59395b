"""A head, and a controller with all its loops that buys nodes of this machine for Ray programs, for a price."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import ray
from fastapi.testclient import TestClient

from cluster.local.connection import connect
from cluster.local.head import start_head, stop_head, wait_until_reachable
from cluster.local.provider import LocalProvider
from cluster.policies.documents import digest_of
from cluster.policies.offerings import CapacityType, Offering
from cluster.ray.drain import RayDrains
from cluster.ray.membership import RayMembership
from cluster.ray.programs import RayPrograms
from remora.views import Page, RayRequest
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
from tests.service_fakes import FakeLauncher, FakeSupply

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


class BuyingCluster:
    """The controller, which ticks whenever a test looks."""

    def __init__(self, home: Path, jobs_port: int = 0) -> None:
        self.home = home
        self.settings = Settings(
            home=home, database_url=f"sqlite:///{home / 'remora.db'}", cloud="azure-emulated", lease_s=60.0
        )
        self.database = Database(self.settings.database_url)
        migrate(self.database)
        self.head = start_head(home, jobs_port=jobs_port)
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
        """The nodes that have not ended, after one more tick of the controller."""
        assert self._controller.tick(CLOCK())
        rows = self.database.query(lambda connection: current_nodes(connection, "default", CLOCK()))
        return [row for row in rows if row.ended_at is None]

    def close(self) -> None:
        ray.shutdown()
        for machine in self.provider.list():
            self.provider.delete(machine.node_id)
        stop_head(self.home)
        self.database.close()

    def asked(self, api: TestClient) -> list[RayRequest]:
        """What programs ask for, as the API shows it after one more tick of the controller."""
        self.nodes()
        answer = api.get("/v1/ray-requests").content
        return Page[RayRequest].model_validate_json(answer).items


@contextmanager
def buying_cluster(folder: Path, jobs_port: int = 0) -> Iterator[BuyingCluster]:
    """One whose head has started; with a `jobs_port` that serves Ray's job API."""
    home = folder / "home"
    home.mkdir(mode=0o700)
    cluster = BuyingCluster(home, jobs_port)
    try:
        cluster.connect()
        yield cluster
    finally:
        cluster.close()
