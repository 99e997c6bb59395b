"""A node of which an attempt says that it computes wrongly is drained, and another one takes its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from remora.states import NodeState
from service.queue.rows import NodeRow
from service.settings import Settings
from service.store import nodes as node_store
from service.store import sick_reports
from service.store.database import Database
from tests.contracts.service.buying import DOCUMENT, apply, buying_world, living, running_on, train
from tests.service_fakes import World

pytestmark = pytest.mark.postgresql_in_soak

WHY = "rank 1 computes wrongly"


@pytest.fixture
def world(database: Database, tmp_path: Path) -> World:
    world = buying_world(database, Settings(home=tmp_path, nodes=0, lease_s=5.0))
    apply(world, DOCUMENT.format(max_nodes=4))
    return world


def accuse(world: World, job_id: str, address: object) -> None:
    """The job's driver says that a node computes wrongly."""
    data = {"rank": 1, "address": address}
    world.launcher.driver_of(job_id).tell(
        "event", at=world.now, kind="worker.miscomputed", message=WHY, data=data
    )


def node(world: World, node_id: str) -> NodeRow:
    found = world.database.query(lambda connection: node_store.get_node(connection, node_id))
    assert found is not None
    return found


def reports(world: World) -> list[sick_reports.SickReport]:
    return world.database.query(sick_reports.all_reports)


def test_it_is_drained_with_the_reason_and_replaced(world: World) -> None:
    job_id = running_on(world, 3)
    bad = living(world)[1]
    accuse(world, job_id, bad.address)
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
        attempt_id=attempt.id, address=str(bad.address), at=world.now, message=WHY
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
    report = sick_reports.SickReport(attempt_id=attempt.id, address=str(here.address), at=before, message=WHY)
    world.database.transact(lambda connection: sick_reports.add_reports(connection, [report]))
    world.tick()
    assert node(world, here.id).state is NodeState.READY
    assert reports(world) == []
