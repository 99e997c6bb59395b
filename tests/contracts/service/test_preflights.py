"""A node gets work once it was measured, and none when it computes wrongly or does not answer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from remora.states import JobState, NodeState
from service.queue.lifecycle import NodeDecision
from service.queue.rows import NodeRow
from service.settings import Settings
from service.store import nodes as node_store
from service.store.database import Database
from tests.contracts.service.buying import DOCUMENT, apply, buying_world, living, train
from tests.service_fakes import World

pytestmark = pytest.mark.postgresql_in_soak

WRONG = {"digests": [["0" * 64]]}


@pytest.fixture
def world(database: Database, tmp_path: Path) -> World:
    return measuring_world(database, tmp_path)


def measuring_world(database: Database, home: Path, **settings: Any) -> World:
    given = Settings(home=home, nodes=0, lease_s=5.0, preflight="on", preflight_s=60.0, **settings)
    world = buying_world(database, given)
    apply(world, DOCUMENT.format(max_nodes=4))
    return world


def events(world: World, node_id: str) -> list[tuple[str, str]]:
    found = world.database.query(lambda c: node_store.page_of_node_events(c, node_id, 0, 100))
    return [(event.kind, event.message) for event in found]


def kinds(world: World, node_id: str) -> list[str]:
    return [kind for kind, _ in events(world, node_id)]


def joined(world: World, count: int, hold: Callable[[list[NodeRow]], None]) -> list[NodeRow]:
    """The nodes once all of them have joined; `hold` is called with those that there are, before each tick."""
    world.submit(min_workers=count, max_workers=count)
    for _ in world.ticks_until("all have joined"):
        hold(living(world))
        if len(living(world)) == count and all(one.preflight_since is not None for one in living(world)):
            return living(world)
    raise AssertionError("unreachable")


def silence(world: World) -> Callable[[list[NodeRow]], None]:
    """No node answers."""
    return lambda rows: world.preflights.findings.update(dict.fromkeys([row.id for row in rows]))


def node(world: World, node_id: str) -> NodeRow:
    found = world.database.query(lambda connection: node_store.get_node(connection, node_id))
    assert found is not None
    return found


def settled(world: World) -> dict[str, NodeState]:
    """The states of the nodes once none is measured any more."""
    for _ in world.ticks_until("all are judged"):
        states = {row.id: row.state for row in living(world)}
        if not {NodeState.REQUESTED, NodeState.LAUNCHED, NodeState.JOINED} & set(states.values()):
            return states
    raise AssertionError("unreachable")


def test_a_job_starts_on_nodes_that_were_measured_and_with_each_other(world: World) -> None:
    job_id = world.submit(min_workers=2, max_workers=2)
    for _ in world.ticks_until("it starts"):
        if world.job(job_id).state is JobState.ADMITTED:
            break
    one, other = living(world)
    assert world.preflights.asked == [one.id, other.id]
    assert world.preflights.linked == [(one.id, other.id)], "a pair once"
    for node, neighbour in ((one, other), (other, one)):
        assert kinds(world, node.id)[-3:] == ["node.joined", "node.preflight_passed", "node.ready"]
        found = {"device": "cpu", "gpus": 0, "memory_bytes": 16 * 10**9, "product_s": 0.001}
        assert node.preflight == {**found, "neighbour": neighbour.id, "mb_per_s": 1000.0}


def test_no_job_starts_on_a_node_that_is_not_measured_and_no_group_grows_there(world: World) -> None:
    job_id = world.submit(min_workers=1, max_workers=2)
    for _ in world.ticks_until("one is ready, the other one is silent"):
        rows = living(world)
        if len(rows) > 1:
            world.preflights.findings[rows[1].id] = None
        world.now += 1.0
        if world.job(job_id).state is JobState.ADMITTED and len(rows) > 1:
            break
    world.tick(3)
    ready, silent = living(world)
    assert (ready.state, silent.state) == (NodeState.READY, NodeState.JOINED)
    driver = world.launcher.driver_of(job_id)
    assert driver.plan.closed_nodes == (silent.id,), "from the first moment on"
    assert driver.heard[-1][silent.id] == "", "it is for no job"
    world.preflights.findings[silent.id] = {}
    settled(world)
    world.tick(2)
    assert driver.heard[-1][silent.id] == job_id, "it was bought for it"


def test_what_computes_wrongly_never_gets_work_and_is_replaced(world: World) -> None:
    bad: list[str] = []

    def hold(rows: list[NodeRow]) -> None:
        if not bad and rows:
            bad.append(rows[0].id)
            world.preflights.findings[bad[0]] = WRONG

    job_id = world.submit(min_workers=2, max_workers=2)
    for _ in world.ticks_until("it starts without the node"):
        hold(living(world))
        world.now += 5.0
        if world.job(job_id).state is JobState.ADMITTED:
            break
    found = dict(events(world, bad[0]))
    why = "a product of two matrices of small integers was wrong on its processor"
    assert found["node.preflight_failed"] == why
    assert found["node.draining"].startswith(
        f"this machine is sick: it failed its preflight: {why}; what works"
    )
    assert "node.ready" not in found
    assert node(world, bad[0]).sick_since is not None
    assert bad[0] in world.cluster.drains
    assert bad[0] not in {row.id for row in living(world) if row.state is NodeState.READY}


@pytest.mark.parametrize(
    ("finding", "why"),
    [
        ({"hip": "6.2.4"}, "its PyTorch is built for AMD GPUs (ROCm 6.2.4), on which Remora does not train"),
        ({"bad_memory": ["cuda:3"]}, "the memory of cuda:3 does not hold what is written to it"),
        ({"problem": "cuda:0: CUDA error: uncorrectable ECC error encountered"}, "cuda:0: CUDA error"),
        (
            {"digests": "all of them"},
            "it could not be measured: its answer has no list 'digests' of at most 64",
        ),
    ],
)
def test_what_else_a_node_fails_for(world: World, finding: dict[str, Any], why: str) -> None:
    (one,) = joined(
        world, 1, lambda rows: world.preflights.findings.update({row.id: finding for row in rows})
    )
    for _ in world.ticks_until("it is drained"):
        if "node.preflight_failed" in kinds(world, one.id):
            break
    assert dict(events(world, one.id))["node.preflight_failed"].startswith(why)


def test_a_node_that_does_not_answer_in_time_is_drained(world: World) -> None:
    (one,) = joined(world, 1, silence(world))
    world.now += 59.0
    world.tick()
    assert node(world, one.id).state is NodeState.JOINED
    world.now += 1.0
    world.tick()
    assert dict(events(world, one.id))["node.preflight_failed"] == "it did not answer within 60 s"


def test_a_measurement_that_breaks_off_is_begun_again_a_few_times(world: World) -> None:
    (one,) = joined(
        world, 1, lambda rows: world.preflights.errors.update({row.id: ["killed"] * 2 for row in rows})
    )
    assert set(settled(world).values()) == {NodeState.READY}
    assert world.preflights.asked == [one.id] * 3


def test_a_fault_of_a_few_seconds_fails_no_node(world: World) -> None:
    """Whatever is asked meanwhile ends at once."""
    (one,) = joined(
        world, 1, lambda rows: world.preflights.errors.update({row.id: ["unreachable"] * 99 for row in rows})
    )
    world.tick(40)
    assert node(world, one.id).state is NodeState.JOINED
    world.preflights.errors.clear()
    assert settled(world) == {one.id: NodeState.READY}
    assert len(world.preflights.asked) == 2


def test_a_node_of_an_earlier_release_gets_work_without_being_measured(world: World) -> None:
    """Machines that were ordered before an upgrade, and images of Kubernetes, join with what they were built with."""
    (one,) = joined(world, 1, lambda rows: world.preflights.old.update(row.id for row in rows))
    assert settled(world) == {one.id: NodeState.READY}
    assert dict(events(world, one.id))["node.preflight_passed"] == "it was not measured: its Remora is old"


def test_a_controller_that_dies_at_any_write_is_followed_by_one_that_measures_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever write of a node is its last: before the node is asked, and before what it answered is stored."""
    job_id = world.submit(min_workers=2, max_workers=2)
    real, died = node_store.save_node, set()

    def dies_once(connection: Any, before: NodeRow, decision: NodeDecision) -> NodeRow:
        key = (before.id, decision.node.state)
        if before.state is NodeState.JOINED and key not in died:
            died.add(key)
            raise RuntimeError("the controller is killed")
        return real(connection, before, decision)

    monkeypatch.setattr(node_store, "save_node", dies_once)
    deaths = 0
    for _ in world.ticks_until("the job starts all the same"):
        if len(died) > deaths:
            deaths = len(died)
            world.succeed()
        if world.job(job_id).state is JobState.ADMITTED:
            break
    assert len(died) == 4, "of two nodes the begin and the end"
    for row in living(world):
        assert kinds(world, row.id).count("node.preflight_passed") == 1


def test_a_successor_that_comes_after_the_limit_asks_before_it_judges(world: World) -> None:
    (one,) = joined(world, 1, silence(world))
    world.now += 600.0
    world.succeed()
    world.tick()
    assert node(world, one.id).state is NodeState.JOINED, "the one before may have had the answer"
    world.preflights.findings[one.id] = {}
    assert settled(world) == {one.id: NodeState.READY}


def test_a_slow_link_is_recorded_and_no_reason_to_drain_where_no_least_speed_is_set(world: World) -> None:
    rows = joined(world, 2, lambda rows: world.preflights.speeds.update({row.id: 1.0 for row in rows}))
    assert set(settled(world).values()) == {NodeState.READY}
    assert [node(world, row.id).preflight["mb_per_s"] for row in rows] == [1.0, 1.0]  # type: ignore[index]


def test_where_a_least_speed_is_set_a_third_node_decides_which_end_is_slow(
    database: Database, tmp_path: Path
) -> None:
    world = measuring_world(database, tmp_path, preflight_mb_per_s=100.0)
    slow: list[str] = []

    def hold(rows: list[NodeRow]) -> None:
        if rows and not slow:
            slow.append(rows[0].id)
            world.preflights.speeds[slow[0]] = 5.0

    rows = joined(world, 3, hold)
    for _ in world.ticks_until("the slow one is found"):
        if "node.preflight_failed" in kinds(world, slow[0]):
            break
    others = [row.id for row in rows if row.id != slow[0]]
    assert all("node.preflight_failed" not in kinds(world, other) for other in others)
    why = dict(events(world, slow[0]))["node.preflight_failed"]
    assert why.startswith("it exchanges 5 MB/s with node_")
    assert why.endswith("REMORA_PREFLIGHT_MB_PER_S asks for 100")


def test_of_two_nodes_with_a_slow_link_and_no_third_none_is_drained(
    database: Database, tmp_path: Path
) -> None:
    world = measuring_world(database, tmp_path, preflight_mb_per_s=100.0)
    joined(world, 2, lambda rows: world.preflights.speeds.update({row.id: 5.0 for row in rows}))
    assert set(settled(world).values()) == {NodeState.READY}


def test_what_was_measured_with_a_node_that_got_work_meanwhile_says_nothing(
    database: Database, tmp_path: Path
) -> None:
    world = measuring_world(database, tmp_path, preflight_mb_per_s=100.0)
    job_id = world.submit(min_workers=1, max_workers=2)
    for _ in world.ticks_until("one is ready, and the other one is silent"):
        rows = living(world)
        if len(rows) > 1:
            world.preflights.findings[rows[1].id] = None
        world.now += 1.0
        if world.job(job_id).state is JobState.ADMITTED and len(rows) > 1:
            break
    ready, new = living(world)
    world.preflights.holds_links = True
    world.preflights.findings[new.id] = {}
    for _ in world.ticks_until("they are measured with each other"):
        if world.preflights.linked:
            break
    assert world.preflights.linked == [(new.id, ready.id)]
    train(world, job_id)
    world.preflights.speeds[ready.id], world.preflights.holds_links = 5.0, False
    assert settled(world)[new.id] is NodeState.READY
    assert "mb_per_s" not in (node(world, new.id).preflight or {})
    said = dict(events(world, new.id))["node.preflight_passed"]
    assert said.endswith(f"could not be measured: {ready.id} was given work, or left, meanwhile")


def test_a_link_that_cannot_be_measured_is_no_fault_of_a_node(world: World) -> None:
    rows = joined(world, 2, lambda rows: world.preflights.speeds.update(dict.fromkeys([r.id for r in rows])))
    assert set(settled(world).values()) == {NodeState.READY}
    said = dict(events(world, rows[0].id))["node.preflight_passed"]
    assert said.endswith(f"what joins it to {rows[1].id} could not be measured: no route")


def test_a_link_that_is_not_begun_holds_no_node_back_for_longer_than_a_neighbour_is_waited_for(
    world: World,
) -> None:
    rows = joined(world, 2, lambda rows: world.preflights.unknown.update(row.id for row in rows))
    for _ in world.ticks_until("both are ready"):
        if all(node(world, row.id).state is NodeState.READY for row in rows):
            break
    assert world.now - max(row.preflight_since or 0.0 for row in rows) < 25.0, "of a limit of 60 s"
    assert world.preflights.linked == []


def test_a_link_is_begun_once_ray_knows_both_ends(world: World) -> None:
    rows = joined(world, 2, lambda rows: world.preflights.unknown.update(row.id for row in rows))
    world.tick(4)
    world.preflights.unknown.clear()
    assert set(settled(world).values()) == {NodeState.READY}
    assert world.preflights.linked == [(rows[0].id, rows[1].id)]


def test_what_databases_refuse_keeps_no_node_from_being_judged(world: World) -> None:
    rows = joined(world, 2, lambda rows: hostile(world, [row.id for row in rows]))
    assert set(settled(world).values()) == {NodeState.READY}
    assert (node(world, rows[0].id).preflight or {})["device"] == "a\ufffdb\ufffd"
    assert "mb_per_s" not in (node(world, rows[0].id).preflight or {})


def hostile(world: World, node_ids: list[str]) -> None:
    world.preflights.findings.update({node_id: {"device": "a\0b\ud800"} for node_id in node_ids})
    world.preflights.speeds.update(dict.fromkeys(node_ids, float("nan")))
    world.preflights.errors.update(
        {node_id: ["\0"] for node_id in node_ids[:1] if not world.preflights.asked}
    )


def test_where_nodes_are_not_measured_they_are_ready_as_they_join(database: Database, tmp_path: Path) -> None:
    world = buying_world(database, Settings(home=tmp_path, nodes=0, lease_s=5.0))
    world.submit(min_workers=2, max_workers=2)
    settled(world)
    world.tick(8)
    assert [row.preflight for row in living(world)] == [None, None]
    assert world.preflights.asked == []
