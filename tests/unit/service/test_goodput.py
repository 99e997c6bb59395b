"""Goodput after the published definitions, and what would have saved what was lost."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.queue.accounts import Amount
from service.queue.cost_causes import Cause
from service.queue.goodput import (
    Goodput,
    Progressed,
    fleet_scheduling_goodput,
    job_scheduling_goodput,
    losses,
    program_goodput,
    runtime_goodput,
    sentence,
    usd_text,
)
from service.queue.ledger import UseRow

HOUR_NS = 3_600_000_000_000


def amount(hours: float, usd_per_hour: float = 1.0) -> Amount:
    node_ns = round(hours * HOUR_NS)
    return Amount(node_ns, 0, node_ns * round(usd_per_hour * 1e6))


def use(node_id: str, began_at: float, ended_at: float | None, workers: int) -> UseRow:
    return UseRow(
        job_id="job_1", node_id=node_id, began_at=began_at, ended_at=ended_at, attempt=1, workers=workers,
        pool="gpu", offering="", part=1.0, price_per_hour=1.0,
    )  # fmt: skip


SPENT = {
    Cause.TRAINING: amount(6.0),
    Cause.RECOMPUTING: amount(2.0),
    Cause.CHECKPOINT: amount(0.5),
    Cause.PROVISIONING: amount(1.0),
    Cause.KEPT: amount(0.5),
}


def test_runtime_goodput_is_what_made_new_steps_of_what_was_held() -> None:
    assert runtime_goodput(SPENT) == pytest.approx(6.0 / 8.5)
    assert fleet_scheduling_goodput(SPENT) == pytest.approx(8.5 / 10.0)
    assert runtime_goodput({Cause.KEPT: amount(1.0)}) is None
    assert fleet_scheduling_goodput({}) is None


def test_a_job_is_scheduled_while_it_has_its_smallest_worker_group() -> None:
    uses = [use("a", 100.0, 700.0, 2), use("b", 200.0, 400.0, 2), use("c", 600.0, None, 2)]
    # Four workers from 200 to 400 and from 600 to 700.
    assert job_scheduling_goodput(uses, 4, 0.0, 1000.0) == pytest.approx(0.3)
    assert job_scheduling_goodput(uses, 2, 0.0, 1000.0) == pytest.approx(0.9)
    assert job_scheduling_goodput(uses, 2, 500.0, 650.0) == pytest.approx(1.0)
    assert job_scheduling_goodput([], 1, 5.0, 5.0) is None


def test_program_goodput_is_the_mean_rate_beside_the_best_that_was_sustained() -> None:
    def points(*seconds: float) -> list[Progressed]:
        at, found = 0.0, [Progressed(step=0, at=0.0, attempt=1, world_size=2)]
        for step, more in enumerate(seconds, start=1):
            at += more
            found.append(Progressed(step=step, at=at, attempt=1, world_size=2))
        return found

    assert program_goodput(points(*[1.0] * 10)) == pytest.approx(1.0)
    assert program_goodput(points(*[1.0] * 5, *[2.0] * 5)) == pytest.approx(10 / 15)
    assert program_goodput(points(1.0, 1.0)) is None, "too few to say"
    one_fast = points(*[1.0] * 19, 0.001)
    assert program_goodput(one_fast) == pytest.approx(1.0), "one fast step is no sustained rate"


def test_goodput_is_the_product_of_what_is_known() -> None:
    assert Goodput(scheduling=0.5, runtime=0.8, program=None).overall == pytest.approx(0.4)
    assert Goodput(scheduling=None, runtime=None, program=None).overall is None


def test_each_loss_says_what_would_have_saved_how_much() -> None:
    found = losses(SPENT)
    assert [one.cause for one in found] == [
        Cause.RECOMPUTING, Cause.PROVISIONING, Cause.CHECKPOINT, Cause.KEPT,
    ]  # fmt: skip
    # With half the interval stalls are 1 and repeated steps 1 hour: 0.5 of 2.5 hours less.
    assert found[0].saved == pytest.approx(0.2)
    assert found[0].by == "with 0.5 times the interval between checkpoints"
    assert sentence(SPENT) == (
        "60% of 10.00 USD trained; recomputing cost the most besides, 2.00 USD, of which 0.40 USD would have been saved"
        " with 0.5 times the interval between checkpoints."
    )
    free = {Cause.TRAINING: amount(3.0, 0.0), Cause.UNUSED: amount(1.0, 0.0)}
    assert sentence(free).startswith(
        "75% of 4.00 node hours trained; idle unused cost the most besides, 1.00 node hours"
    )
    assert sentence({Cause.TRAINING: amount(1.0)}) == "100% of 1.00 USD trained."
    assert sentence({}) == "No node was paid for in this time."


@pytest.mark.parametrize(
    ("usd", "text"),
    [
        (0.0, "0.00"),
        (7.4, "7.40"),
        (0.05, "0.050"),
        (0.0123, "0.012"),
        (0.00042, "0.00042"),
        (-0.002, "-0.0020"),
    ],
)
def test_small_amounts_are_not_rounded_to_nothing(usd: float, text: str) -> None:
    assert usd_text(usd) == f"{text} USD"


def test_a_saving_of_less_than_a_cent_or_a_minute_is_no_advice() -> None:
    cheap = {Cause.TRAINING: amount(0.01, 0.5), Cause.UNUSED: amount(0.01, 0.5)}
    assert sentence(cheap) == "50% of 0.010 USD trained; idle unused cost the most besides, 0.0050 USD."
    short = {Cause.TRAINING: amount(0.01, 0.0), Cause.UNUSED: amount(0.01, 0.0)}
    assert (
        sentence(short)
        == "50% of 72 node seconds trained; idle unused cost the most besides, 36 node seconds."
    )


@given(st.floats(0.01, 100.0), st.floats(0.01, 100.0), st.floats(0.05, 20.0))
def test_no_other_interval_would_save_more(stalled: float, repeated: float, times: float) -> None:
    spent = {Cause.CHECKPOINT: amount(stalled), Cause.RECOMPUTING: amount(repeated)}
    saved = losses(spent)[0].saved * (stalled + repeated)
    assert (
        stalled + repeated - (stalled / times + repeated * times)
        <= saved + 0.01 * (stalled + repeated) + 1e-6
    )
    assert 0.0 <= saved <= stalled + repeated
    assert math.isfinite(saved)


@given(st.dictionaries(st.sampled_from(Cause), st.floats(0.0, 100.0).map(amount)))
def test_what_was_lost_is_all_but_training(spent: dict[Cause, Amount]) -> None:
    lost = sum(one.amount.node_ns for one in losses(spent))
    kept = sum(spent.get(cause, Amount()).node_ns for cause in (Cause.TRAINING, Cause.PROGRAMS))
    assert lost + kept == sum(one.node_ns for one in spent.values())
    assert all(0.0 <= one.saved <= 1.0 and one.by for one in losses(spent))
    assert sentence(spent).endswith(".")
