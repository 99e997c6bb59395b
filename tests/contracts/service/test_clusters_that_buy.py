"""Several clusters that buy: one budget is of all of them, and each has what its own cloud says."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa
from fastapi.testclient import TestClient

from cluster.policies.documents import read_stored
from cluster.policies.policies import BudgetStep
from cluster.provider import InsufficientCapacity
from remora.states import JobState, NodeState
from service.api.app import create_app
from service.queue.rows import NewEvent, RayRequestRow, WaitKind, WaitRow
from service.settings import Settings
from service.store import policies, ray_requests, spending, waits
from service.store.database import Database
from service.store.pruning import Limits, prune
from tests.contracts.service.buying import (
    DOCUMENT,
    OTHER_SPOT,
    SOLD,
    SPOT,
    apply,
    buying_world,
    living,
    running_on,
)
from tests.service_fakes import World

pytestmark = pytest.mark.postgresql_in_soak

#: Two clusters with a pool each; a node costs 0.04 USD an hour, and 0.002 USD until it is drained.
BOTH = (
    DOCUMENT.format(max_nodes=4)
    + DOCUMENT.format(max_nodes=4).removeprefix("pools:\n").replace("cpu:", "locked:\n    cluster: ward")
    + "projects:\n  patients: {{cluster: ward}}\nbudget:\n  usd_per_day: {usd}\n"
)


@pytest.fixture
def world(database: Database, database_url: str, tmp_path: Path) -> World:
    settings = Settings(home=tmp_path, cloud="azure", nodes=0, lease_s=5.0, database_url=database_url)
    made = buying_world(database, settings)
    apply(made, BOTH.format(usd=100))
    return made


@pytest.fixture
def ward(world: World) -> World:
    """The second cluster, which buys in the same cloud."""
    made = World(world.database, world.settings.model_copy(update={"cluster": "ward"}))
    made.buys, made.supply.sold = True, SOLD
    made.controller = made.new_controller()
    return made


def test_nodes_of_all_clusters_are_drained_before_the_budget_is_exceeded(world: World, ward: World) -> None:
    job_id = running_on(world, 4)
    ward.now = world.now
    ward.tick()
    paid = world.database.query(lambda c: spending.rate_elsewhere(c, "ward"))
    assert paid == pytest.approx(0.16)
    assert world.database.query(lambda c: spending.rate_elsewhere(c, "default")) == 0.0
    spent, _ = world.database.query(lambda c: spending.spent(c, world.now))
    # Enough for the cluster that has no node, and not for what those of the other cost until they are drained.
    document = BOTH.format(usd=spent.today + 0.003)
    apply(world, document)
    ward.tick()
    assert step_of(world, document) is BudgetStep.PAUSE
    for _ in world.ticks_until("its nodes drain"):
        if all(node.state is NodeState.DRAINING for node in living(world)):
            break
    assert world.job(job_id).state is not JobState.FAILED


def test_a_cluster_buys_only_what_nodes_of_the_others_leave_of_the_budget(world: World, ward: World) -> None:
    running_on(world, 4)
    ward.now = world.now
    # For those four and one more, for the time for which a node has to be worth it, and until it is drained.
    apply(world, BOTH.format(usd=0.06))
    ward.submit(project="patients", cluster="ward", max_workers=4)
    ward.tick(3)
    assert len(living(ward)) == 1


def test_what_one_cloud_refuses_is_asked_for_in_the_other(world: World, ward: World) -> None:
    """Each may stand in another region, or have another subscription."""
    until = world.now + 600.0
    world.cluster.refusals.append(InsufficientCapacity("none is there", offering=SPOT, until=until))
    world.submit()
    world.tick(2)
    ward.now = world.now
    ward.submit(project="patients", cluster="ward")
    ward.tick(2)
    assert [node.offering for node in living(world)] == [OTHER_SPOT]
    assert [node.offering for node in living(ward)] == [SPOT]
    said = InsufficientCapacity("none is in the ward", offering=SPOT, until=until + 60.0)
    ward.cluster.refusals.append(said)
    ward.submit(project="patients", cluster="ward")
    ward.tick(2)

    def known(cluster: str) -> list[tuple[str, str]]:
        found = world.database.query(lambda c: spending.known_refusals(c, cluster, world.now))
        return [(one.offering, one.reason) for one in found]

    assert known("default") == [(SPOT, "none is there")]
    assert known("ward") == [(SPOT, "none is in the ward")]
    world.now = ward.now
    app = create_app(world.settings)
    with TestClient(app, base_url="http://127.0.0.1") as client:
        app.state.remora = replace(app.state.remora, clock=lambda: world.now)
        shown = {one["name"]: one["refused"] for one in client.get("/v1/pools").json()["items"]}
        assert {name: [one["reason"] for one in refused] for name, refused in shown.items()} == {
            "cpu": ["none is there"],
            "locked": ["none is in the ward"],
        }
        offerings = {
            one["name"]: {sold["offering"]: sold["closed_until"] for sold in one["offerings"]}
            for one in client.get("/v1/pools").json()["items"]
        }
        assert {name: sold[SPOT] for name, sold in offerings.items()} == {
            name: refused[0]["until"] for name, refused in shown.items()
        }
        assert offerings["cpu"][OTHER_SPOT] is None
        assert client.post("/v1/pools/locked/reopen").json()["refused"] == []
        (cpu, _) = client.get("/v1/pools").json()["items"]
        assert [one["reason"] for one in cpu["refused"]] == ["none is there"]


def test_what_a_cluster_forgets_of_a_pool_that_moved_the_other_one_remembers(database: Database) -> None:
    """Reasons, requests of Ray programs, events that are written once, and the newest quotas."""
    old = WaitRow(kind=WaitKind.POOL, about="cpu", place=0, since=0.0, reason="it waits")
    asked = RayRequestRow(id="r", project="ray", kind="tasks", count=1, since=0.0, reason="it waits")

    def work(connection: sa.Connection) -> None:
        waits.replace_waits(connection, [], [old])
        ray_requests.replace_requests(connection, "default", [asked], [])
        # The other cluster has them from here on.
        waits.replace_waits(connection, [], [replace(old, cluster="ward")])
        ray_requests.replace_requests(connection, "ward", [replace(asked, cluster="ward")], [])
        waits.replace_waits(connection, [old], [])
        ray_requests.replace_requests(connection, "default", [], ["r"])
        for at, cluster in enumerate(("default", "default", "ward", "ward")):
            quotas = NewEvent(at=float(at), kind="quotas.read", message="m", data={"units": {"q": at}})
            policies.append_cluster_event(connection, quotas, cluster)
        policies.append_cluster_event(connection, NewEvent(at=9.0, kind="k", message="said"), "default")

    database.transact(work)
    assert len(database.query(lambda c: waits.all_waits(c, "ward"))) == 1
    assert len(database.query(lambda c: ray_requests.rows_of(c, "ward"))) == 1
    said = {
        cluster: database.query(
            lambda c, one=cluster: policies.has_cluster_event(c, "k", "said", one, since=0.0)  # type: ignore[misc]
        )
        for cluster in ("default", "ward")
    }
    assert said == {"default": True, "ward": False}
    limits = Limits(age_s=1.0, jobs=10, rows=1000)
    database.transact(lambda c: prune(c, limits=limits, now=1000.0, most=1000))
    assert database.query(policies.quotas_by_cluster) == {"default": {"q": 1}, "ward": {"q": 3}}


def step_of(world: World, document: str) -> BudgetStep | None:
    figures = read_stored(document).budget.figures
    return world.database.query(lambda c: spending.budget_step(c, figures, world.now))


def test_a_milder_step_of_another_controller_does_not_replace_a_harder_one(
    database: Database, world: World
) -> None:
    """Also where both were made from the same rows: the second one waits for the first."""
    done: list[threading.Thread] = []

    def milder() -> None:
        database.transact(lambda c: spending.reach(c, BudgetStep.SHRINK, "f", world.now))

    def harder(connection: sa.Connection) -> None:
        spending.reach(connection, BudgetStep.PAUSE, "f", world.now)
        other = threading.Thread(target=milder)
        other.start()
        done.append(other)
        while not database.is_sqlite and not is_waited_for(database):
            pass

    database.transact(harder)
    done[0].join(20.0)
    assert not done[0].is_alive()
    assert database.query(lambda c: spending.budget_step(c, "f", world.now)) is BudgetStep.PAUSE
    database.transact(lambda c: spending.reach(c, BudgetStep.SHRINK, "other figures", world.now))
    found = database.query(lambda c: spending.budget_step(c, "other figures", world.now))
    assert found is BudgetStep.SHRINK


def is_waited_for(database: Database) -> bool:
    """A transaction waits for another one."""
    waiting = sa.text("SELECT count(*) FROM pg_locks WHERE NOT granted")
    return bool(database.query(lambda c: c.execute(waiting).scalar()))
