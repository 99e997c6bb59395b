"""A budget is of all clusters: what nodes of one will cost until they end counts in the plans of the others."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import sqlalchemy as sa

from cluster.policies.documents import read_stored
from cluster.policies.policies import BudgetStep
from remora.states import JobState, NodeState
from service.settings import Settings
from service.store import spending
from service.store.database import Database
from tests.contracts.service.buying import DOCUMENT, SOLD, apply, buying_world, living, running_on
from tests.service_fakes import World

pytestmark = pytest.mark.postgresql_in_soak

#: Two clusters with a pool each; a node costs 0.04 USD an hour, and 0.002 USD until it is drained.
BOTH = (
    DOCUMENT.format(max_nodes=4)
    + DOCUMENT.format(max_nodes=4).removeprefix("pools:\n").replace("cpu:", "locked:\n    cluster: ward")
    + "projects:\n  patients: {{cluster: ward}}\nbudget:\n  usd_per_day: {usd}\n"
)


@pytest.fixture
def world(database: Database, tmp_path: Path) -> World:
    made = buying_world(database, Settings(home=tmp_path, nodes=0, lease_s=5.0))
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
