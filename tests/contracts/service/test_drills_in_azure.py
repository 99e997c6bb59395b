"""A rehearsed preemption by Azure itself: the controller over Azure's own clients, and a notice that takes its time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cluster.azure.emulator.emulated_cloud import EmulatedMachine
from remora.states import DrillState
from service.queue.drills import NOTICE_PATIENCE_S
from service.queue.rows import DrillRow
from service.settings import Settings
from service.store import drills
from service.store.database import Database
from service.store.ids import new_id
from service.store.migrate import migrate
from tests.contracts.cluster.azure_rig import AzureRig
from tests.contracts.service.azure_storm import Storm
from tests.contracts.service.storm_cloud import node_of

#: Seconds from the request to the notice: longer than the notice, as Azure's minutes are.
ANNOUNCED_AFTER_S = 120.0
NOTICE_S = 30.0


@pytest.fixture
def rig() -> Iterator[AzureRig]:
    with AzureRig(manual_clock=True) as rig:
        rig.knobs(announce_s=ANNOUNCED_AFTER_S, notice_s=NOTICE_S)
        yield rig


@pytest.fixture
def storm(rig: AzureRig, tmp_path: Path) -> Iterator[Storm]:
    """One job on two nodes, in fair weather."""
    database = Database(f"sqlite:///{tmp_path / 'remora.db'}")
    migrate(database)
    storm = Storm(rig, database, Settings(home=tmp_path, nodes=0), seed=1)
    storm.follow(max_nodes=3)
    storm.submit(2, 4, steps=100_000)
    until(storm, lambda: storm.books.workers() == 4)
    yield storm
    database.close()


def until(storm: Storm, is_so: Callable[[], bool], seconds: float = 2.0) -> None:
    """Ticks `seconds` seconds apart."""
    for _ in range(100):
        storm.tick(seconds)
        if is_so():
            return
    raise AssertionError("it did not come to be so within a hundred ticks")


def ask(storm: Storm, notice_s: float = NOTICE_S) -> Callable[[], DrillRow]:
    """A drill of the oldest node; what is called says how it goes."""
    node = storm.books.living()[0].id
    asked = DrillRow(
        id=new_id("drill", storm.rig.clock()),
        node_ids=[node],
        requested_at=storm.rig.clock(),
        notice_s=notice_s,
    )
    storm.database.transact(lambda connection: drills.insert_drill(connection, asked))

    def now() -> DrillRow:
        row = storm.database.query(lambda connection: drills.get_drill(connection, asked.id))
        assert row is not None
        return row

    return now


def reported_drains(storm: Storm) -> dict[str, float]:
    """The machines' agents drain their nodes for a notice; when each notice came."""
    reported: dict[str, float] = {}

    def drain(machine: EmulatedMachine, at: float) -> None:
        reported[node_of(machine)] = storm.rig.clock()
        storm.ray.draining[node_of(machine)] = at
        storm.ray.leaves[node_of(machine)] = "the cloud takes the machine back (Preempt)"
        (driver,) = storm.launcher.drivers.values()
        driver.report(
            "event", at=storm.rig.clock(), kind="worker_group.drain", message="a node goes", data={}
        )

    storm.rig.cloud.on_notice.append(drain)
    return reported


def test_a_drill_waits_for_azures_own_notice_and_lets_azure_take_the_machine(storm: Storm) -> None:
    reported = reported_drains(storm)
    drill = ask(storm)
    asked_at = storm.rig.clock()
    until(storm, lambda: bool(reported))
    (node,) = drill().node_ids
    assert reported[node] == pytest.approx(asked_at + ANNOUNCED_AFTER_S, abs=4.0)
    assert node in storm.ray.running(), "no machine went before its notice"
    assert drill().taken_at is None
    until(storm, lambda: drill().taken_at is not None)
    gone = drill()
    assert gone.message is None
    assert gone.struck_at == pytest.approx(reported[node], abs=4.0), "seconds count from the notice"
    assert gone.taken_at is not None
    assert gone.taken_at - reported[node] <= NOTICE_S + 10.0
    (cost,) = gone.jobs
    assert (cost.was_hit, cost.workers_before) == (True, 4)
    assert cost.workers_least < 4
    messages = [event.message for event in storm.books.node_events(node) if event.kind == "node.draining"]
    assert ["Preempt" in message for message in messages] == [True]


def test_a_notice_that_never_comes_is_said_and_the_machine_stays(storm: Storm) -> None:
    storm.rig.knobs(announce_s=100_000.0)
    drill = ask(storm)
    until(storm, lambda: drill().ended_at is not None, seconds=45.0)
    over = drill()
    assert (over.state, over.taken_at, over.jobs) == (DrillState.ENDED, None, [])
    assert over.message == (
        "the cloud has given no notice within 35 min after it was asked to take"
        f" {over.node_ids[0]}; it may still come"
    )
    assert over.ended_at == pytest.approx(over.requested_at + NOTICE_PATIENCE_S, abs=90.0)
    assert over.node_ids[0] in storm.ray.running()


def test_a_machine_that_goes_without_its_agent_having_heard_is_named(storm: Storm) -> None:
    drill = ask(storm)
    until(storm, lambda: drill().taken_at is not None, seconds=10.0)
    assert drill().message == f"{drill().node_ids[0]} went without having heard of a notice"


def test_a_notice_of_another_length_is_azures_all_the_same_and_the_drill_says_so(storm: Storm) -> None:
    drill = ask(storm, notice_s=300.0)
    storm.tick(2.0)
    assert (drill().notice_s, drill().message) == (
        NOTICE_S,
        "the cloud gives its own notice, of 30 s at most, and not one of 300 s",
    )


def test_a_controller_that_dies_while_it_waits_is_followed_by_one_that_waits_on(storm: Storm) -> None:
    reported = reported_drains(storm)
    drill = ask(storm)
    storm.tick(2.0)
    storm._begin()
    storm.pass_by(10.0)
    until(storm, lambda: drill().taken_at is not None, seconds=10.0)
    assert list(reported) == drill().node_ids
    assert drill().message is None
