"""A rehearsed preemption, from the request in a row to its account, on SQLite and on PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from remora.states import DrillState, NodeState
from remora.views import Drill, NodeEvent, Page, Problem
from service.api.app import create_app
from service.controller.connecting import ClusterConnection
from service.loops.drill import drill as drill_loop
from service.loops.tick import Tick
from service.queue.drills import QUIET_S
from service.settings import Settings
from service.store import drills
from service.store.database import Database
from tests.service_fakes import World

pytestmark = pytest.mark.postgresql_in_soak


@pytest.fixture
def settings(database_url: str, tmp_path: Path) -> Settings:
    return Settings(home=tmp_path / "home", database_url=database_url, nodes=2, node_cpus=1, lease_s=5.0)


@pytest.fixture
def world(database: Database, settings: Settings) -> World:
    world = World(database, settings)
    for _ in world.ticks_until("two ready nodes"):
        if [node.state for node in world.nodes()] == [NodeState.READY] * 2:
            break
    return world


@pytest.fixture
def client(settings: Settings) -> Iterator[TestClient]:
    with TestClient(create_app(settings), base_url="http://127.0.0.1") as opened:
        yield opened


def ask(client: TestClient, place: str, **order: object) -> Drill:
    answer = client.post(f"/v1/{place}/drill", json=order)
    assert answer.status_code == 202, answer.text
    drill = Drill.model_validate_json(answer.content)
    assert answer.headers["location"] == f"/v1/drills/{drill.id}"
    assert (drill.state, drill.struck_at) == (DrillState.REQUESTED, None)
    return drill


def refused(client: TestClient, place: str, status: int, code: str, **order: object) -> str:
    answer = client.post(f"/v1/{place}/drill", json=order)
    problem = Problem.model_validate_json(answer.content)
    assert (answer.status_code, problem.code) == (status, code), answer.text
    return problem.detail


def now(client: TestClient, drill: Drill) -> Drill:
    return Drill.model_validate_json(client.get(f"/v1/drills/{drill.id}").content)


def events_of(client: TestClient, node_id: str) -> list[str]:
    page = Page[NodeEvent].model_validate_json(client.get(f"/v1/nodes/{node_id}/events").content)
    assert [event.seq for event in page.items] == list(range(1, len(page.items) + 1))
    return [event.kind for event in page.items]


def test_a_silent_drill_takes_the_node_at_once_and_accounts_for_the_job(
    world: World, client: TestClient
) -> None:
    job_id = world.submit(max_workers=2)
    world.tick()
    driver = world.launcher.driver_of(job_id)
    driver.report("progress", at=world.now, state="running", world_size=2)
    driver.report("metric", at=world.now, step=5, world_size=2, values={})
    world.tick()
    victim = world.nodes()[0].id

    drill = ask(client, f"nodes/{victim}", silent=True)
    world.tick()
    struck_at = world.now
    assert not world.cluster.machines.get(victim) or not world.cluster.machines[victim].is_running
    assert (now(client, drill).struck_at, now(client, drill).taken_at) == (struck_at, struck_at)
    assert now(client, drill).jobs == [], "the job has not noticed"

    driver.report("event", at=struck_at + 2, kind="node.lost", message="gone", data={"ranks": [1]})
    driver.report("progress", at=struck_at + 3, state="running", world_size=1, repeated_steps=4)
    driver.report("metric", at=struck_at + 4, step=6, world_size=1, values={})
    world.tick(2)
    (cost,) = now(client, drill).jobs
    assert (cost.job_id, cost.workers_before, cost.workers_least, cost.workers) == (job_id, 2, 1, 1)
    assert (cost.repeated_steps, cost.next_step_s, cost.full_after_s) == (4, 4.0, None)

    driver.report("progress", at=struck_at + 9, state="running", world_size=2)
    driver.report("metric", at=struck_at + 10, step=7, world_size=2, values={})
    world.tick(2)
    over = now(client, drill)
    assert over.state is DrillState.ENDED
    assert over.ended_at is not None
    assert [(one.full_after_s, one.pause_s, one.workers) for one in over.jobs] == [(10.0, 6.0, 2)]
    kinds = events_of(client, victim)
    assert kinds[:5] == ["node.requested", "node.launched", "node.joined", "node.ready", "node.drilled"]
    assert kinds[-1] == "node.gone"
    assert client.get(f"/v1/nodes/{victim}").json()["state"] == "gone"


def test_with_a_notice_the_nodes_of_a_pool_get_it_and_are_taken_at_the_deadline(
    world: World, client: TestClient
) -> None:
    nodes = sorted(world.cluster.machines)
    drill = ask(client, "pools/local", notice_s=3)
    world.tick()
    struck = now(client, drill)
    assert (struck.node_ids, struck.notice_s, struck.taken_at) == (nodes, 3.0, None)
    assert world.cluster.notices == dict.fromkeys(nodes, world.now + 3.0)
    world.tick(11)
    assert now(client, drill).taken_at is None
    world.tick()
    over = now(client, drill)
    assert (over.state, over.taken_at, over.jobs) == (DrillState.ENDED, world.now, [])
    world.tick(4)
    assert not world.cluster.machines.keys() & set(nodes)


def test_a_controller_that_dies_in_the_middle_is_followed_by_one_that_goes_on(
    world: World, client: TestClient
) -> None:
    drill = ask(client, "pools/local", notice_s=2)
    take = world.cluster.take

    def dies(node_id: str) -> None:
        take(node_id)
        raise KeyboardInterrupt

    world.cluster.take = dies  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        world.tick(9)
    world.cluster.take = take  # type: ignore[method-assign]
    world.succeed()
    world.tick(2)
    assert now(client, drill).state is DrillState.ENDED


def test_a_job_elsewhere_is_watched_for_a_while_and_left_out(world: World, client: TestClient) -> None:
    job_id = world.submit(max_workers=2)
    world.tick()
    driver = world.launcher.driver_of(job_id)
    driver.report("progress", at=world.now, state="running", world_size=1)
    world.tick()
    drill = ask(client, f"nodes/{world.nodes()[1].id}", silent=True)
    world.tick(4)
    assert now(client, drill).state is DrillState.STRUCK
    world.now += QUIET_S
    world.tick()
    assert (now(client, drill).state, now(client, drill).jobs) == (DrillState.ENDED, [])


def test_what_cannot_be_notified_or_taken_is_refused_with_a_sentence(
    world: World, client: TestClient
) -> None:
    node_id = world.nodes()[0].id
    world.cluster.notice_errors[node_id] = RuntimeError("its head does not answer")
    drill = ask(client, f"nodes/{node_id}", notice_s=30)
    world.tick()
    assert (now(client, drill).state, now(client, drill).message) == (
        DrillState.REFUSED,
        "its head does not answer",
    )
    assert world.cluster.machines[node_id].is_running

    drill = ask(client, f"nodes/{node_id}", silent=True)
    world.controller.use(
        ClusterConnection(world.launcher, world.cluster, world.cluster, world.supply, world.cluster)
    )
    world.tick()
    assert now(client, drill).message == "the machines here cannot be taken for a rehearsal"


def test_a_provider_that_fails_is_asked_again(world: World, client: TestClient) -> None:
    drill = ask(client, f"nodes/{world.nodes()[0].id}", silent=True)
    take = world.cluster.take

    def fails(node_id: str) -> None:
        raise RuntimeError(f"{node_id} does not end")

    world.cluster.take = fails  # type: ignore[method-assign]
    world.tick(2)
    assert now(client, drill).message == f"{drill.node_ids[0]} does not end"
    world.cluster.take = take  # type: ignore[method-assign]
    world.tick(2)
    assert now(client, drill).state is DrillState.ENDED


def test_requests_that_make_no_sense_are_refused(world: World, client: TestClient) -> None:
    node_id = world.nodes()[0].id
    place = f"nodes/{node_id}"
    both = refused(client, place, 422, "invalid_drill", silent=True, notice_s=5)
    assert both == 'give either "notice_s" (seconds) or "silent": true'
    assert refused(client, place, 422, "invalid_drill") == both
    assert "notice_s" in refused(client, place, 422, "invalid_drill", notice_s=-1)
    assert "notice_s" in refused(client, place, 422, "invalid_drill", notice_s="soon")
    assert "loud" in refused(client, place, 422, "invalid_drill", silent=True, loud=True)
    refused(client, "nodes/node_1", 404, "node_not_found", silent=True)
    refused(client, "pools/gpu", 409, "node_not_ready", silent=True)
    drill = ask(client, place, silent=True)
    assert drill.id in refused(client, place, 409, "drill_under_way", silent=True)
    assert client.get("/v1/drills/drill_1").json()["code"] == "drill_not_found"
    assert client.get("/v1/nodes/node_1").json()["code"] == "node_not_found"
    assert client.get("/v1/nodes/node_1/events").json()["code"] == "node_not_found"


def test_nothing_is_done_for_a_controller_that_lost_its_lease(
    world: World, client: TestClient, database: Database, settings: Settings
) -> None:
    drill = ask(client, f"nodes/{world.nodes()[0].id}", silent=True)
    assert world.controller.lease is not None
    old = replace(world.controller.lease, token=world.controller.lease.token - 1)
    with pytest.raises(Exception, match="lease"):
        drill_loop(Tick(database, settings, old, world.now), world.cluster)
    assert now(client, drill).state is DrillState.REQUESTED
    assert all(machine.is_running for machine in world.cluster.list())
    assert len(database.query(lambda connection: drills.open_drills(connection, "default"))) == 1
