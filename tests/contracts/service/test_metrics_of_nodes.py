"""What `/metrics` says of nodes and the queue, from the rows that the controller writes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import sqlalchemy as sa

from remora.states import JobState, NodeState
from service.queue.lifecycle import Decision, NodeDecision
from service.queue.rows import NodeRow
from service.store.database import Database
from service.store.jobs import insert_job
from service.store.nodes import insert_node, save_node
from service.store.tables import refusals
from service.store.totals import NodeGroup, NodeLosses, count_cloud_errors, count_node_loss, totals
from tests.service_fakes import job_row
from tests.statements import statements

pytestmark = pytest.mark.postgresql_in_soak


def bought(connection: sa.Connection, name: str, pool: str, offering: str, price: float) -> NodeRow:
    row = NodeRow(id=name, pool=pool, created_at=1000.0, offering=offering, price_per_hour=price)
    return insert_node(connection, NodeDecision(row, ()))


def ready(connection: sa.Connection, row: NodeRow, at: float) -> NodeRow:
    return save_node(connection, row, NodeDecision(replace(row, state=NodeState.READY, ready_at=at), ()))


def test_nodes_are_counted_with_their_prices_by_pool_capacity_and_state(database: Database) -> None:
    def work(connection: sa.Connection) -> None:
        for number in range(2):
            row = bought(connection, f"node_{number}", "gpu", "Standard_A/1/spot", 0.5)
            ready(connection, row, 1045.0)
        bought(connection, "node_2", "gpu", "Standard_A/2/on-demand", 2.0)
        bought(connection, "node_3", "cpu", "", 0.0)

    database.transact(work)
    found = database.transact(lambda connection: totals(connection, 2000.0))
    assert found.nodes == (
        NodeGroup("cpu", "", "requested", 1, 0.0),
        NodeGroup("gpu", "on-demand", "requested", 1, 2.0),
        NodeGroup("gpu", "spot", "ready", 2, 1.0),
    )


def test_the_time_until_a_node_is_ready_is_counted_once(database: Database) -> None:
    def work(connection: sa.Connection) -> None:
        for number, at in enumerate((1010.0, 1045.0, 1060.0, 9000.0)):
            row = ready(connection, bought(connection, f"node_{number}", "gpu", "a/1/spot", 0.5), at)
            save_node(connection, row, NodeDecision(replace(row, state=NodeState.DRAINING), ()))

    database.transact(work)
    found = database.transact(lambda connection: totals(connection, 9999.0))
    assert found.node_starts == {
        "15": 1,
        "30": 1,
        "60": 3,
        "120": 3,
        "180": 3,
        "300": 3,
        "600": 3,
        "1200": 3,
        "+Inf": 4,
    }
    assert found.node_starts_s == 10.0 + 45.0 + 60.0 + 8000.0


def test_who_waits_longest_for_nodes_and_refusals_that_hold_are_seen(database: Database) -> None:
    def work(connection: sa.Connection) -> None:
        waiting = {"reason": "waiting_for_nodes"}
        insert_job(connection, Decision(job_row(1100.0, waits_from=1150.0, **waiting), None))
        insert_job(
            connection, Decision(job_row(1000.0, waits_from=1000.0, lost_since=1300.0, **waiting), None)
        )
        insert_job(connection, Decision(job_row(900.0, waits_from=900.0, reason="waiting_for_jobs"), None))
        running = replace(job_row(800.0, waits_from=800.0, **waiting), state=JobState.RUNNING)
        insert_job(connection, Decision(running, None))
        rows = [
            {"offering": "a/1/spot", "until": 2500.0, "reason": "none", "tries": 2},
            {"offering": "a/2/spot", "until": 1500.0, "reason": "it is over", "tries": 1},
            {"offering": "a/3/spot", "until": 2500.0, "reason": "reopened", "tries": 0},
        ]
        connection.execute(sa.insert(refusals), rows)

    database.transact(work)
    found = database.transact(lambda connection: totals(connection, 2000.0))
    assert found.waiting_since == 1150.0
    assert found.refused_offerings == 1


def test_what_the_cloud_did_not_do_is_counted_by_kind_and_losses_by_capacity(database: Database) -> None:
    def work(connection: sa.Connection) -> None:
        spot = bought(connection, "node_1", "gpu", "a/1/spot", 0.5)
        count_node_loss(connection, spot, was_announced=True)
        count_node_loss(connection, spot, was_announced=False)
        count_node_loss(connection, bought(connection, "node_2", "cpu", "", 0.0), was_announced=False)
        for _ in range(2):
            count_cloud_errors(connection, {"capacity": 3, "throttled": 1})
        count_cloud_errors(connection, {})
        ill = ready(connection, bought(connection, "node_3", "gpu", "a/1/spot", 0.5), 1045.0)
        save_node(connection, ill, NodeDecision(replace(ill, sick_since=1050.0), ()))

    database.transact(work)
    found = database.transact(lambda connection: totals(connection, 2000.0))
    assert found.cloud_errors == {"capacity": 6, "throttled": 2}
    assert found.node_losses == (
        NodeLosses("", False, 1),
        NodeLosses("spot", True, 1),
        NodeLosses("spot", False, 1),
    )
    assert found.sick_nodes == 1


def test_it_takes_the_same_statements_for_ten_times_as_many_rows(database: Database) -> None:
    def fill(connection: sa.Connection, begin: int, count: int) -> None:
        for number in range(begin, begin + count):
            bought(connection, f"node_{number}", "gpu", "a/1/spot", 0.5)
            insert_job(connection, Decision(job_row(1000.0 + number), None))

    def asked() -> int:
        with statements(database) as seen:
            database.transact(lambda connection: totals(connection, 2000.0))
        return len(seen)

    database.transact(lambda connection: fill(connection, 0, 3))
    few = asked()
    database.transact(lambda connection: fill(connection, 3, 27))
    assert asked() == few
