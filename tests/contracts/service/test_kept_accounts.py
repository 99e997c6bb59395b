"""What is stored of accounts, and what is read of it, on both databases."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import sqlalchemy as sa

from remora.states import NodeState
from service.queue.cost_causes import Cause, Payer, Span, to_ms
from service.queue.ledger import Entries, UseRow
from service.queue.lifecycle import NodeDecision
from service.queue.rows import NodeRow, WorkPhase
from service.store import costs, ledger, nodes
from service.store.database import Database
from service.store.rows import columns
from service.store.tables import events, jobs, phases, uses
from tests.service_fakes import job_row

NODE = NodeRow(
    id="node_1", pool="gpu", created_at=0.0, offering="big/1/spot", price_per_hour=3.6, state=NodeState.READY,
    launched_at=0.0, ready_at=0.0, resources={"CPU": 4.0},
)  # fmt: skip


def use_of(job_id: str, began_at: float, ended_at: float | None = None, price: float = 3.6) -> UseRow:
    return UseRow(
        job_id=job_id, node_id=NODE.id, began_at=began_at, ended_at=ended_at, attempt=1, workers=1, pool="gpu",
        offering=NODE.offering, part=1.0, price_per_hour=price,
    )  # fmt: skip


def store(database: Database, *kept: UseRow, begun: tuple[tuple[float, WorkPhase], ...] = ()) -> None:
    """A node that these jobs used; each did the same from its beginning on."""
    job_ids = sorted({use.job_id for use in kept})

    def work(connection: sa.Connection) -> None:
        nodes.insert_node(connection, NodeDecision(NODE, ()))
        connection.execute(sa.insert(jobs), [columns(replace(job_row(), id=job_id)) for job_id in job_ids])
        ledger.write(connection, Entries(begun=kept))
        rows = [
            {"job_id": use.job_id, "attempt": 1, "number": n, "began_at": use.began_at + at, "phase": phase}
            for use in kept
            for n, (at, phase) in enumerate(begun, start=1)
        ]
        if rows:
            connection.execute(sa.insert(phases), rows)

    database.transact(work)


def causes(spans: list[Span]) -> dict[Cause, int]:
    """Milliseconds of the node that jobs paid for."""
    found: dict[Cause, int] = {}
    for span in spans:
        if span.payer is Payer.JOB:
            found[span.cause] = found.get(span.cause, 0) + span.node_ns // 1_000_000
    return found


STARTED_LATE = ((0.0, WorkPhase.STARTING), (10.0, WorkPhase.RUNNING), (100.0, WorkPhase.TRAINING))


def test_a_range_that_ends_before_the_first_step_is_split_as_it_is_within_a_longer_one(
    database: Database,
) -> None:
    store(database, use_of("job_1", 0.0), begun=STARTED_LATE)
    short = database.query(partial(costs.rows_between, begins_at=0.0, ends_at=50.0))
    assert causes(list(short.spans([(0, 50_000)]))) == {Cause.STARTING: 50_000}
    whole = database.query(partial(costs.rows_between, begins_at=0.0, ends_at=150.0))
    assert causes(list(whole.spans([(0, 50_000)]))) == {Cause.STARTING: 50_000}
    assert causes(list(whole.spans([(0, to_ms(150.0))]))) == {Cause.STARTING: 100_000, Cause.TRAINING: 50_000}


def test_the_release_before_deletes_jobs_whose_phases_it_does_not_know(database: Database) -> None:
    store(database, use_of("job_1", 0.0, 50.0), begun=STARTED_LATE)

    def delete(connection: sa.Connection) -> None:
        """As its `remove_job` does."""
        for table in (events, uses):
            connection.execute(sa.delete(table).where(table.c.job_id == "job_1"))
        connection.execute(sa.delete(jobs).where(jobs.c.id == "job_1"))

    database.transact(delete)
    assert database.query(lambda c: c.execute(sa.select(phases)).all()) == []


@pytest.mark.parametrize("ended_at", [None, 90.0])
def test_what_was_used_keeps_the_price_that_was_read_while_the_ledger_was_being_written(
    database: Database, ended_at: float | None
) -> None:
    """The ledger's thread read the assumed price, the cloud's thread wrote the read one, and then the first wrote."""
    store(database, use_of("job_1", 0.0))

    def read_prices(connection: sa.Connection) -> None:
        nodes.save_node(connection, NODE, NodeDecision(replace(NODE, price_per_hour=7.2)))
        ledger.reprice(connection, {NODE.id: 7.2})

    database.transact(read_prices)
    late = Entries(ended=(use_of("job_1", 0.0, 60.0),), begun=(use_of("job_1", 60.0, ended_at),))
    database.transact(lambda connection: ledger.write(connection, late))
    found = database.query(lambda connection: ledger.uses_of(connection, "job_1"))
    assert [(use.began_at, use.ended_at, use.price_per_hour) for use in found] == [
        (0.0, 60.0, 7.2), (60.0, ended_at, 7.2),
    ]  # fmt: skip


def test_what_others_did_on_a_jobs_nodes_before_and_after_it_is_not_read(database: Database) -> None:
    others = [use_of(f"job_{number:03}", 100.0 * number, 100.0 * number + 100.0) for number in range(40)]
    store(database, *others, begun=((0.0, WorkPhase.TRAINING),))

    def of_job(connection: sa.Connection) -> tuple[tuple[float, float], costs.CostRows]:
        paid = costs.paid_range(connection, "job_020", 4000.0)
        return paid, costs.rows_of_jobs(connection, ["job_020"], *paid, with_phases=False)

    paid, rows = database.query(of_job)
    assert paid == (2000.0, 2100.0)
    assert ([use.job_id for use in rows.uses], rows.phases) == (["job_020"], [])
    assert causes(list(rows.spans([(2_000_000, 2_100_000)]))) == {Cause.TRAINING: 100_000}


def test_a_job_pays_from_when_a_node_was_bought_for_it_until_its_last_use(database: Database) -> None:
    booting = replace(NODE, id="node_2", bought_for="job_1", launched_at=300.0, ready_at=None)

    def paid(now: float) -> tuple[float, float]:
        return database.query(lambda connection: costs.paid_range(connection, "job_1", now))

    assert paid(10.0) == (10.0, 10.0)
    store(database, use_of("job_1", 5.0, 50.0))
    assert paid(400.0) == (5.0, 50.0)
    database.transact(lambda connection: nodes.insert_node(connection, NodeDecision(booting, ())))
    assert paid(400.0) == (5.0, 400.0), "its machine boots"
