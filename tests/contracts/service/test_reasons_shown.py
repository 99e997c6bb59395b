"""Operators and owners read what the newest plan does not do, and why; on SQLite and on PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from fastapi.testclient import TestClient

from cluster.policies.documents import digest_of
from cluster.policies.offerings import CapacityType, Offering
from cluster.provider import InsufficientCapacity
from cluster.scheduling import installed_rules
from remora.states import JobState, NodeState
from remora.views import Job, Node, Page, Pool
from service.api.app import create_app
from service.clouds.fixed_pool import fixed_pool
from service.queue.policy_versions import PolicyRequest, next_version
from service.queue.rows import NodeRow
from service.settings import Settings
from service.store import policies, spending
from service.store.database import Database
from tests.service_fakes import World

pytestmark = pytest.mark.postgresql_in_soak

SPOT = Offering(
    size="Standard_D4s_v5",
    zone="1",
    capacity=CapacityType.SPOT,
    resources={"CPU": 1.0},
    price_per_hour=0.04,
)
POOL = "sizes: [Standard_D4s_v5], zones: [1], capacity: spot"


@pytest.fixture
def settings(database_url: str, tmp_path: Path) -> Settings:
    return Settings(
        home=tmp_path / "home", database_url=database_url, nodes=2, cloud="azure-emulated", lease_s=5.0
    )


@pytest.fixture
def world(database: Database, settings: Settings) -> World:
    """A cluster whose nodes are bought."""
    world = World(database, settings)
    world.buys = True
    world.supply.sold = (SPOT,)
    world.controller = world.new_controller()
    return world


@pytest.fixture
def client(settings: Settings) -> Iterator[TestClient]:
    with TestClient(create_app(settings), base_url="http://127.0.0.1") as opened:
        yield opened


def follow_policies(world: World, document: str) -> None:
    def work(connection: sa.Connection) -> None:
        newest = policies.newest_policies(connection) or fixed_pool(world.settings)
        request = PolicyRequest(document=document, digest=digest_of(document), based_on=newest.version)
        policies.insert_policies(connection, next_version(newest, request, world.now))

    world.database.transact(work)


def pools(client: TestClient) -> list[Pool]:
    answer = client.get("/v1/pools")
    assert answer.status_code == 200, answer.text
    return Page[Pool].model_validate_json(answer.content).items


def reported(client: TestClient) -> list[tuple[str, float]]:
    """What holds the one pool up, and since when."""
    (pool,) = pools(client)
    return [(wait.reason, wait.since) for wait in pool.waits]


def node(client: TestClient, node_id: str) -> Node:
    shown = Node.model_validate_json(client.get(f"/v1/nodes/{node_id}").content)
    listed = Page[Node].model_validate_json(client.get("/v1/nodes").content).items
    assert shown in listed
    return shown


def job(client: TestClient, job_id: str, **headers: str) -> Job:
    return Job.model_validate_json(client.get(f"/v1/jobs/{job_id}", headers=headers).content)


def ready(world: World) -> list[NodeRow]:
    return [one for one in world.nodes() if one.state is NodeState.READY]


def train(world: World, nodes: int, **fields: Any) -> str:
    """A job that runs on that number of nodes."""
    job_id = world.submit(**fields)
    for _ in world.ticks_until("its nodes are ready and it is admitted"):
        if len(ready(world)) == nodes and world.job(job_id).state is JobState.ADMITTED:
            break
    workers = {str(one.address): 1 for one in ready(world)}
    driver = world.launcher.driver_of(job_id)
    driver.report("progress", at=world.now, state="running", world_size=nodes, workers=workers)
    world.tick(2)
    return job_id


class Written:
    """Counts the rows of reasons and of jobs that are written."""

    def __init__(self, database: Database) -> None:
        self.statements: list[str] = []
        sa.event.listen(sa.engine.Engine, "before_cursor_execute", self._hear)

    def _hear(self, _: object, __: object, statement: str, *___: object) -> None:
        words = statement.split()
        if words[0] in ("INSERT", "UPDATE", "DELETE") and {"waits", "jobs"} & set(words[1:3]):
            self.statements.append(statement)

    def close(self) -> None:
        sa.event.remove(sa.engine.Engine, "before_cursor_execute", self._hear)


@pytest.fixture
def written(database: Database) -> Iterator[Written]:
    written = Written(database)
    yield written
    written.close()


def test_a_pool_says_why_its_warm_node_is_not_bought_until_it_is(world: World, client: TestClient) -> None:
    follow_policies(world, f"pools: {{cpu: {{{POOL}, max_nodes: 3, warm_nodes: 1}}}}")
    until = world.now + 60.0
    world.cluster.refusals = [InsufficientCapacity("none left", offering=SPOT.id, until=until)]
    world.tick(2)
    since = world.now
    world.tick(3)
    ((reason, came_up),) = reported(client)
    assert reason.startswith(
        "1 node of its own cannot be had: spot Standard_D4s_v5 in zone 1 is refused until"
    )
    assert came_up == since
    (pool,) = pools(client)
    assert (pool.name, pool.min_nodes, pool.max_nodes, pool.warm_nodes, pool.nodes) == ("cpu", 0, 3, 1, {})
    world.now = until
    world.tick(3)
    assert reported(client) == []
    assert pools(client)[0].nodes == {NodeState.READY: 1}


def test_refusals_in_a_row_are_shown_with_their_dates_and_taken_back_by_a_command(
    world: World, client: TestClient
) -> None:
    app: Any = client.app
    app.state.remora = replace(app.state.remora, clock=lambda: world.now)
    follow_policies(world, f"pools: {{cpu: {{{POOL}, max_nodes: 3, warm_nodes: 1}}}}")

    def refuse() -> None:
        day_s = 86_400.0
        world.cluster.refusals = [
            InsufficientCapacity("none left", offering=SPOT.id, until=world.now + day_s)
        ]

    for tries, closed_s in ((1, 180.0), (2, 360.0), (3, 720.0)):
        refuse()
        world.tick(4)
        ((one,),) = [pool.refused for pool in pools(client)]
        assert world.cluster.refusals == [], "it was asked for"
        assert (one.offering, one.tries, one.until - one.at) == (SPOT.id, tries, closed_s)
        assert one.reason == "none left"
        world.now = one.until
    refuse()
    world.tick(2)
    reopened = client.post("/v1/pools/cpu/reopen")
    assert reopened.status_code == 200
    assert Pool.model_validate_json(reopened.content).refused == []
    world.tick(3)
    (pool,) = pools(client)
    assert (pool.nodes, pool.refused) == ({NodeState.READY: 1}, [])
    (known,) = world.database.query(lambda connection: spending.known_refusals(connection, "default", 0.0))
    assert known.tries == 0, "the next refusal is a first one"


def test_a_refusal_is_shown_to_the_pools_that_could_buy_the_offering_and_to_no_other(
    world: World, client: TestClient
) -> None:
    app: Any = client.app
    app.state.remora = replace(app.state.remora, clock=lambda: world.now)
    other = POOL.replace("zones: [1]", "zones: [2]")
    follow_policies(world, f"pools: {{cpu: {{{POOL}, max_nodes: 3, warm_nodes: 1}}, other: {{{other}}}}}")
    world.cluster.refusals = [InsufficientCapacity("none", offering=SPOT.id, until=world.now + 900.0)]
    world.tick(2)
    assert {pool.name: len(pool.refused) for pool in pools(client)} == {"cpu": 1, "other": 0}


def test_a_pool_that_is_not_there_cannot_be_reopened(client: TestClient) -> None:
    answer = client.post("/v1/pools/no%20such/reopen")
    assert (answer.status_code, answer.json()["code"]) == (404, "pool_not_found")


def test_a_node_says_why_it_stays_and_nothing_while_it_works(world: World, client: TestClient) -> None:
    follow_policies(world, f"pools: {{cpu: {{{POOL}, max_nodes: 3, idle_s: 40}}}}")
    job_id = train(world, 1)
    (one,) = ready(world)
    assert (node(client, one.id).reason, node(client, one.id).reason_since) == (None, None)
    world.launcher.driver_of(job_id).report("ended", end_reason="completed", message="", exit_code=0)
    world.tick(3)
    shown = node(client, one.id)
    assert shown.reason == "it is unused, and goes at 1970-01-01 00:17:21 UTC if it still is"
    assert shown.reason_since == world.now - 0.25
    world.now += 40.0
    world.tick(3)
    assert (node(client, one.id).state, node(client, one.id).reason) == (NodeState.GONE, None)


def test_a_running_job_says_why_it_is_not_larger_until_nothing_is_in_its_way(
    world: World, client: TestClient
) -> None:
    document = f"pools: {{cpu: {{{POOL}, max_nodes: 2}}}}"
    follow_policies(world, document)
    job_id = train(world, 2, max_workers=3)
    before = job(client, job_id)
    assert before.why_short == "there is no capacity for 1 worker: pool 'cpu' may have 2 nodes"
    assert (before.reason, before.message) == (None, None)
    follow_policies(world, document.replace("2", "3"))
    world.tick()
    after = job(client, job_id, **{"If-None-Match": f'"{before.version}"'})
    assert after.version > before.version
    assert str(after.why_short).startswith("1 node for it is starting, ready at about ")
    world.tick(3)
    assert job(client, job_id).why_short is None
    driver = world.launcher.driver_of(job_id)
    follow_policies(world, document)
    driver.report("ended", end_reason="completed", message="", exit_code=0)
    world.tick(2)
    assert job(client, job_id).why_short is None


def test_the_job_that_is_next_says_why_no_node_is_bought_for_it_and_when_enough_may_be_free(
    world: World, client: TestClient
) -> None:
    document = f"pools: {{cpu: {{{POOL}, max_nodes: 1}}}}"
    follow_policies(world, document)
    runs = train(world, 1)
    driver, began = world.launcher.driver_of(runs), world.now
    driver.report("metric", at=began, step=1, world_size=1, values={})
    waits = world.submit()
    world.tick(3)
    limited = "there is no capacity for 1 worker: pool 'cpu' may have 1 node"
    is_next = "is next: it needs 1 worker of 1 CPU and other jobs leave capacity for 0"
    assert job(client, waits).message == f"{is_next}; {limited}"
    world.now = began + 100.0
    driver.report("progress", at=world.now, step=100, total_steps=400)
    world.tick(3)
    said = str(job(client, waits).message)
    assert said.startswith(
        f"{is_next}; enough may be free at about 1970-01-01 00:24:00 UTC, if the running jobs"
    )
    assert said.endswith(f"; {limited}")
    follow_policies(world, document.replace("1}", "2}"))
    world.tick()
    assert "; 1 node for it is starting, ready at about " in str(job(client, waits).message)


def test_a_rule_that_vetoes_is_shown_at_its_pool(
    world: World, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    moods = ["the power is out"]
    monkeypatch.setattr(installed_rules, "_load", {"power": lambda *_: next(iter(moods), None)}.__getitem__)
    follow_policies(world, f"{{pools: {{cpu: {{{POOL}, max_nodes: 3, min_nodes: 1}}}}, rules: [power]}}")
    world.tick()
    came_up = world.now
    world.tick(2)
    why = "the rule power lets no node of pool cpu be launched: the power is out"
    assert reported(client) == [(why, came_up)]
    moods.clear()
    world.tick(2)
    assert reported(client) == []


def test_nothing_is_written_while_nothing_changes_though_money_is_spent(
    world: World, client: TestClient, written: Written
) -> None:
    world.supply.sold = (replace(SPOT, price_per_hour=40.0),)
    budget = "budget: {usd_per_day: 1000, steps: {stop-growing: 0.000001}}"
    follow_policies(world, f"{{pools: {{cpu: {{{POOL}, max_nodes: 3, min_nodes: 1}}}}, {budget}}}")
    world.tick(2)
    job_id = train(world, 1, max_workers=2)
    world.tick()
    (since,) = {at for _, at in reported(client)}
    assert "stop-growing" in reported(client)[0][0]
    assert "stop-growing" in str(job(client, job_id).why_short)
    written.statements.clear()
    world.now += 600.0  # which are USD 6 more
    world.tick(20)
    assert written.statements == []
    assert {at for _, at in reported(client)} == {since}


def test_another_controller_goes_on_with_what_was_reported(
    world: World, client: TestClient, written: Written
) -> None:
    follow_policies(world, f"pools: {{cpu: {{{POOL}, max_nodes: 1, min_nodes: 1}}}}")
    train(world, 1, max_workers=2)
    world.tick(4)
    world.controller.resign()
    world.controller = world.new_controller()
    written.statements.clear()
    world.tick(4)
    assert written.statements == []


def test_a_removed_pool_is_shown_while_it_has_nodes(world: World, client: TestClient) -> None:
    document = f"pools: {{cpu: {{{POOL}, max_nodes: 3}}, more: {{{POOL}}}}}"
    follow_policies(world, document)
    assert [pool.name for pool in pools(client)] == ["cpu", "more"]
    train(world, 1)
    follow_policies(world, f"pools: {{more: {{{POOL}}}}}")
    world.tick()
    more, cpu = pools(client)
    assert (more.name, cpu.name) == ("more", "cpu")
    assert (cpu.max_nodes, cpu.nodes) == (0, {NodeState.DRAINING: 1})


def test_on_this_machine_limits_are_shown_as_they_are_followed(database: Database, tmp_path: Path) -> None:
    settings = Settings(home=tmp_path / "local", database_url=database.url.render_as_string(False), nodes=2)
    world = World(database, settings)
    for _ in world.ticks_until("two nodes are ready"):
        if len(ready(world)) == 2:
            break
    job_id = train(world, 2, max_workers=3)
    follow_policies(world, "pools: {local: {sizes: [local], max_nodes: 3, warm_nodes: 1}}")
    with TestClient(create_app(settings), base_url="http://127.0.0.1") as client:
        assert (
            job(client, job_id).why_short
            == "there is no capacity for 1 worker: pool 'local' may have 2 nodes"
        )
        (pool,) = pools(client)
        assert (pool.min_nodes, pool.max_nodes, pool.warm_nodes) == (3, 3, 0)
        assert pool.nodes == {NodeState.READY: 2}
