"""A world in which nodes are bought, and jobs that train on them, for the tests of buying and of budgets."""

from __future__ import annotations

from cluster.policies.documents import digest_of
from cluster.policies.offerings import CapacityType, Offering
from remora.states import JobState, NodeState
from service.clouds.fixed_pool import fixed_pool
from service.queue.policy_versions import PolicyRequest, next_version
from service.queue.rows import NodeRow
from service.settings import Settings
from service.store import job_history, policies
from service.store.database import Database
from tests.service_fakes import World

SPOT = "Standard_D4s_v5/1/spot"
OTHER_SPOT = "Standard_D4s_v5/2/spot"
ON_DEMAND = "Standard_D4s_v5/1/on-demand"
DAY_S = 86_400.0

DOCUMENT = """\
pools:
  cpu:
    sizes: [Standard_D4s_v5]
    zones: [1, 2]
    capacity: prefer-spot
    max_nodes: {max_nodes}
    idle_s: 30
    patience_s: 20
    drain_s: 60
"""


def _sold(zone: str, capacity: CapacityType, price: float) -> Offering:
    return Offering(
        size="Standard_D4s_v5",
        zone=zone,
        capacity=capacity,
        resources={"CPU": 1.0},
        price_per_hour=price,
        quota="lowprioritycores" if capacity is CapacityType.SPOT else "standardDSv5Family",
        quota_units=4,
    )


SOLD = tuple(
    _sold(zone, capacity, price)
    for zone in ("1", "2")
    for capacity, price in ((CapacityType.SPOT, 0.04), (CapacityType.ON_DEMAND, 0.2))
)


def buying_world(database: Database, settings: Settings) -> World:
    """A world whose nodes are bought, of a size that is sold in two zones, spot and on demand."""
    world = World(database, settings)
    world.buys = True
    world.supply.sold = SOLD
    world.controller = world.new_controller()
    apply(world, DOCUMENT.format(max_nodes=3))
    return world


def apply(world: World, document: str) -> None:
    """The operators' policies from now on."""

    def work(connection: object) -> None:
        newest = policies.newest_policies(connection) or fixed_pool(world.settings)  # type: ignore[arg-type]
        request = PolicyRequest(document=document, digest=digest_of(document), based_on=newest.version)
        policies.insert_policies(connection, next_version(newest, request, world.now))  # type: ignore[arg-type]

    world.database.transact(work)


def living(world: World) -> list[NodeRow]:
    return [node for node in world.nodes() if node.ended_at is None]


def train(world: World, job_id: str) -> None:
    """The job's driver says that a worker runs on each ready node."""
    ready = [node for node in living(world) if node.state is NodeState.READY]
    workers = {str(node.address): 1 for node in ready}
    driver = world.launcher.driver_of(job_id)
    driver.report("progress", at=world.now, state="running", world_size=len(workers), workers=workers)
    world.tick()


def running_on(world: World, nodes: int) -> str:
    """A job that trains on that number of nodes of three that it could use."""
    job_id = world.submit(min_workers=1, max_workers=nodes)
    for _ in world.ticks_until("the job starts"):
        ready = [node for node in living(world) if node.state is NodeState.READY]
        if len(ready) == nodes and world.job(job_id).state is JobState.ADMITTED:
            break
    train(world, job_id)
    return job_id


MIXED = DOCUMENT.format(max_nodes=4).replace("prefer-spot", "mixed").replace("    patience_s: 20\n", "")
STEPS = """\
budget:
  usd_per_day: {usd}
  steps: {{stop-growing: 0.5, spot-only: 0.6, shrink: 0.7, pause: 0.8}}
"""


def reported_budget(world: World, job_id: str) -> list[tuple[object, str]]:
    """What the job's owner has read of the cluster's budget: the step, and the last words."""
    events = world.database.query(lambda c: job_history.page_of_events(c, job_id, 0, 1000))
    reported = [event for event in events if event.kind == "job.budget"]
    return [(event.data["step"], event.message.rpartition("; ")[2]) for event in reported]


def in_steps(world: World) -> tuple[str, dict[str, list[str]]]:
    """A job on three nodes until the day's money is used up; what stayed at each step that its owner saw."""
    apply(world, MIXED + STEPS.format(usd=0.2))
    job_id = running_on(world, 3)
    stayed: dict[str, list[str]] = {}
    for _ in world.ticks_until("there is no money left"):
        world.now += 80.0
        for step, _ in reported_budget(world, job_id)[len(stayed) :]:
            stayed[str(step)] = sorted(one.offering for one in living(world) if one.leaving_since is None)
        if "pause" in stayed:
            break
    return job_id, stayed
