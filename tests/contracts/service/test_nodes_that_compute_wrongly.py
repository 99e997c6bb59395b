"""A node of which an attempt says that it computes wrongly is drained, and another one takes its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from remora.states import NodeState
from service.loops.sick_nodes import KEPT_S, MOST_PER_PROJECT
from service.queue.rows import NodeRow
from service.settings import Settings
from service.store import nodes as node_store
from service.store import sick_reports
from service.store.database import Database
from service.store.ingest import SICK_EVENTS
from tests.contracts.service.buying import DOCUMENT, apply, buying_world, living, running_on, train
from tests.service_fakes import World

pytestmark = pytest.mark.postgresql_in_soak

WHY = "rank 1 computes wrongly"


@pytest.fixture
def world(database: Database, tmp_path: Path) -> World:
    world = buying_world(database, Settings(home=tmp_path, nodes=0, lease_s=5.0))
    apply(world, DOCUMENT.format(max_nodes=4))
    return world


def accuse(world: World, job_id: str, address: object, kind: str = "worker.miscomputed") -> None:
    """The job's driver says that a node is sick."""
    data = {"rank": 1, "address": address}
    world.launcher.driver_of(job_id).report("event", at=world.now, kind=kind, message=WHY, data=data)


def node(world: World, node_id: str) -> NodeRow:
    found = world.database.query(lambda connection: node_store.get_node(connection, node_id))
    assert found is not None
    return found


def reports(world: World) -> list[sick_reports.SickReport]:
    """Those that no node was drained for."""
    return [one for one in kept_reports(world) if one.drained_at is None]


def kept_reports(world: World) -> list[sick_reports.SickReport]:
    return world.database.query(lambda c: sick_reports.reports_of(c, "default"))


@pytest.mark.parametrize("kind", sorted(SICK_EVENTS))
def test_it_is_drained_with_the_reason_and_replaced(world: World, kind: str) -> None:
    job_id = running_on(world, 3)
    bad = living(world)[1]
    accuse(world, job_id, bad.address, kind)
    world.tick(2)
    drained = node(world, bad.id)
    assert (drained.state, drained.sick_since is None) == (NodeState.DRAINING, False)
    assert str(drained.message).startswith(f"this machine is sick: {WHY}; what works on it has until")
    assert list(world.cluster.drains) == [bad.id]
    assert reports(world) == []
    train(world, job_id)
    for _ in world.ticks_until("another node is ready"):
        world.now += 10.0
        ready = [one for one in living(world) if one.state is NodeState.READY]
        if len(ready) == 3:
            break
    assert bad.id not in {one.id for one in ready}


def test_a_controller_that_died_after_it_stored_the_report_drains_it_later(world: World) -> None:
    job_id = running_on(world, 3)
    bad = living(world)[1]
    attempt = world.attempts(job_id)[-1]
    report = sick_reports.SickReport(
        attempt_id=attempt.id, project="default", address=str(bad.address), at=world.now, message=WHY
    )
    world.database.transact(lambda connection: sick_reports.add_reports(connection, [report, report]))
    world.succeed()
    world.tick(2)
    assert node(world, bad.id).state is NodeState.DRAINING
    assert reports(world) == []


@pytest.mark.parametrize("address", ["10.99.99.99", "x" * 1000, None, 7, {"a": 1}])
def test_what_names_no_node_is_forgotten(world: World, address: object) -> None:
    job_id = running_on(world, 2)
    accuse(world, job_id, address)
    world.tick(2)
    assert {one.state for one in living(world)} == {NodeState.READY}
    assert reports(world) == []


def test_a_later_node_with_the_address_of_one_that_is_gone_is_left_alone(world: World) -> None:
    job_id = running_on(world, 2)
    attempt = world.attempts(job_id)[-1]
    here = living(world)[0]
    before = here.created_at - 1.0
    report = sick_reports.SickReport(
        attempt_id=attempt.id, project="default", address=str(here.address), at=before, message=WHY
    )
    world.database.transact(lambda connection: sick_reports.add_reports(connection, [report]))
    world.tick()
    assert node(world, here.id).state is NodeState.READY
    assert reports(world) == []


def test_what_is_said_again_of_a_node_that_drains_changes_nothing(world: World) -> None:
    job_id = running_on(world, 3)
    bad = living(world)[1]
    accuse(world, job_id, bad.address)
    world.tick(2)
    before = node(world, bad.id)
    report = sick_reports.SickReport(
        attempt_id="another", project="default", address=str(bad.address), at=world.now, message="another"
    )
    world.database.transact(lambda connection: sick_reports.add_reports(connection, [report]))
    world.tick(2)
    after = node(world, bad.id)
    assert (after.deadline_at, after.message, after.sick_since) == (
        before.deadline_at,
        before.message,
        before.sick_since,
    )
    assert reports(world) == []


def test_a_node_that_its_cloud_takes_keeps_that_deadline(world: World) -> None:
    job_id = running_on(world, 3)
    bad = living(world)[1]
    world.cluster.draining.add(bad.id)
    world.tick(2)
    before = node(world, bad.id)
    assert (before.state, before.sick_since) == (NodeState.DRAINING, None)
    accuse(world, job_id, bad.address)
    world.tick(2)
    after = node(world, bad.id)
    assert (after.deadline_at, after.sick_since is None) == (before.deadline_at, False)


def test_a_project_has_a_few_nodes_drained_in_an_hour(world: World) -> None:
    running_on(world, 3)
    before = [
        sick_reports.SickReport(
            attempt_id=f"att_{number}",
            project="default",
            address=f"10.9.9.{number}",
            at=world.now,
            message=WHY,
            drained_at=world.now,
        )
        for number in range(MOST_PER_PROJECT)
    ]
    bad = living(world)[1]
    new = sick_reports.SickReport(
        attempt_id="att_x", project="default", address=str(bad.address), at=world.now, message=WHY
    )
    world.database.transact(lambda connection: sick_reports.add_reports(connection, [*before, new]))
    world.tick(2)
    assert node(world, bad.id).state is NodeState.READY
    world.now += KEPT_S
    world.tick(2)
    assert kept_reports(world) == [], "they are kept for an hour"
