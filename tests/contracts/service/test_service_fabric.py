"""A job that asks for InfiniBand is bought one fabric domain, and its attempts are bound to one each."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster.policies.documents import digest_of
from cluster.policies.offerings import CapacityType, Offering
from cluster.provider import InsufficientCapacity
from remora.spec.spec import JobSpec
from remora.states import AttemptState, EndReason, JobState, NodeState
from service.api.views import attempt_view, node_view
from service.clouds.fixed_pool import fixed_pool
from service.queue.policy_versions import PolicyRequest, next_version
from service.queue.rows import AttemptRow, NodeRow
from service.settings import Settings
from service.store import policies
from service.store.database import Database
from tests.service_fakes import World

pytestmark = pytest.mark.postgresql_in_soak

DRY, FIRST, SECOND = "cheap/1/on-demand", "fast/1/on-demand", "fast/2/on-demand"
SPEC = JobSpec.from_mapping(
    {"command": "python train.py", "placement": {"fabric": "infiniband"}}
).to_mapping()
DOCUMENT = """\
pools:
  gpu:
    sizes: [cheap, fast]
    zones: [1, 2]
    capacity: on-demand
    max_nodes: 6
"""


def sold(size: str, zone: str) -> Offering:
    return Offering(
        size=size,
        zone=zone,
        capacity=CapacityType.ON_DEMAND,
        resources={"CPU": 1.0},
        price_per_hour=1.0,
        has_fabric=size == "fast",
    )


@pytest.fixture
def world(database: Database, tmp_path: Path) -> World:
    """A cloud with one size that InfiniBand joins, in two zones, and one that it does not."""
    world = World(database, Settings(home=tmp_path, nodes=0, lease_s=5.0))
    world.buys = True
    world.supply.sold = (sold("cheap", "1"), sold("fast", "1"), sold("fast", "2"))
    world.controller = world.new_controller()
    newest = fixed_pool(world.settings)
    request = PolicyRequest(document=DOCUMENT, digest=digest_of(DOCUMENT), based_on=newest.version)
    database.transact(
        lambda connection: policies.insert_policies(connection, next_version(newest, request, world.now))
    )
    return world


def living(world: World) -> list[NodeRow]:
    return [node for node in world.nodes() if node.ended_at is None]


def domains(world: World) -> set[tuple[str | None, str]]:
    return {(node.fabric, node.offering) for node in living(world) if node.state is NodeState.READY}


def attempt(world: World, job_id: str) -> AttemptRow:
    """Its newest one."""
    return world.attempts(job_id)[-1]


def trains(world: World) -> str:
    """A job that trains on the two nodes of its domain."""
    job_id = world.submit(min_workers=2, max_workers=2, spec=SPEC)
    for _ in world.ticks_until("the job is admitted"):
        if world.job(job_id).state is JobState.ADMITTED:
            break
    workers = {str(node.address): 1 for node in living(world)}
    world.launcher.driver_of(job_id).report("progress", state="running", world_size=2, workers=workers)
    world.tick()
    assert attempt(world, job_id).state is AttemptState.RUNNING
    return job_id


def lose_everything(world: World) -> None:
    for node in living(world):
        world.cluster.lose(node.id)


def test_its_workers_start_in_the_domain_that_was_bought_for_it(world: World) -> None:
    job_id = world.submit(min_workers=2, max_workers=3, spec=SPEC)
    for _ in world.ticks_until("the job is admitted"):
        if world.job(job_id).state is JobState.ADMITTED:
            break
    name = f"gpu-{job_id}"
    assert domains(world) == {(name, FIRST)}
    assert attempt_view(attempt(world, job_id)).fabric == name
    assert {node_view(node).fabric for node in living(world)} == {name}
    assert world.launcher.driver_of(job_id).plan.labels == {"remora-fabric": (name,)}


def test_a_domain_that_is_there_is_widened_for_the_next_job(world: World) -> None:
    first = trains(world)
    other = world.submit(min_workers=1, max_workers=1)
    second = world.submit(min_workers=2, max_workers=4, spec=SPEC)
    for _ in world.ticks_until("all are admitted"):
        if {world.job(one).state for one in (other, second)} == {JobState.ADMITTED}:
            break
    assert attempt(world, other).fabric is None
    assert {attempt(world, one).fabric for one in (first, second)} == {f"gpu-{first}"}


def test_of_two_domains_it_starts_in_the_one_that_was_bought_for_it(world: World) -> None:
    first = trains(world)
    world.cluster.refusals.extend(
        InsufficientCapacity("none", offering=FIRST, until=world.now + 600.0) for _ in range(2)
    )
    world.cluster.cut_off.add("2")
    second = world.submit(min_workers=2, max_workers=2, spec=SPEC)
    world.tick(3)
    assert world.job(second).state is JobState.QUEUED
    # Both domains have capacity from the same tick on.
    world.cluster.cut_off.clear()
    world.launcher.driver_of(first).report("ended", end_reason="completed", message="done", exit_code=0)
    world.tick()
    assert attempt(world, second).fabric == f"gpu-{second}"


def test_the_choice_outlives_the_controller_that_made_it(world: World) -> None:
    world.launcher.failing["start"] = RuntimeError("the head is busy")
    job_id = world.submit(min_workers=2, max_workers=2, spec=SPEC)
    for _ in world.ticks_until("the job is admitted"):
        if world.job(job_id).state is JobState.ADMITTED:
            break
    assert attempt(world, job_id).launched_at is None
    world.controller.resign()
    world.controller = world.new_controller()
    del world.launcher.failing["start"]
    world.tick()
    assert world.launcher.driver_of(job_id).plan.labels == {"remora-fabric": (f"gpu-{job_id}",)}


def test_when_its_domain_is_lost_and_cannot_be_had_again_another_attempt_takes_another(world: World) -> None:
    job_id = trains(world)
    said = [InsufficientCapacity("none", offering=FIRST, until=world.now + 600.0) for _ in range(2)]
    world.cluster.refusals.extend(said)
    lose_everything(world)
    for _ in world.ticks_until("another attempt is admitted"):
        if len(world.attempts(job_id)) == 2:
            break
    first, second = world.attempts(job_id)
    assert (first.end_reason, first.message) == (
        EndReason.NODE_LOST,
        "all nodes of its fabric domain were lost",
    )
    assert (world.job(job_id).losses, world.job(job_id).user_failures) == (1, 0)
    assert second.fabric == f"gpu-{job_id}-2"
    assert domains(world) == {(second.fabric, SECOND)}
    assert world.launcher.driver_of(job_id).plan.labels == {"remora-fabric": (second.fabric,)}


def test_when_the_same_can_be_had_again_the_attempt_goes_on_in_its_domain(world: World) -> None:
    job_id = trains(world)
    before = {node.id for node in living(world)}
    world.launcher.driver_of(job_id).report("progress", state="starting", world_size=0, workers={})
    lose_everything(world)
    for _ in world.ticks_until("there are others"):
        if domains(world) and not before & {node.id for node in living(world)}:
            break
    assert domains(world) == {(f"gpu-{job_id}", FIRST)}
    (only,) = world.attempts(job_id)
    assert (only.end_reason, only.stop_reason) == (None, None)


def test_without_any_pool_that_has_it_the_job_says_so_at_once_and_holds_up_no_other_job(world: World) -> None:
    world.supply.sold = (sold("cheap", "1"),)
    never = world.submit(spec=SPEC)
    other = world.submit()
    for _ in world.ticks_until("the other one is admitted"):
        if world.job(other).state is JobState.ADMITTED:
            break
    assert [node.offering for node in living(world)] == [DRY]
    assert world.job(never).reason == "waiting_for_nodes"
    assert world.job(never).message == (
        "no pool buys machines that InfiniBand joins: leave `placement.fabric` out, or have a size with InfiniBand "
        "added to a pool; the pools are gpu"
    )
