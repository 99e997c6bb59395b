"""The interval between checkpoints follows their cost and the losses, and stays within its bounds."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainers.checkpoints.cadence import FIRST_S, LEAST_S, MOST_S, MOST_SHARE, Cadence

HOUR = 3600.0


def cadence(cost_s: float, prior_s: float = HOUR) -> Cadence:
    return Cadence(prior_s=prior_s).measure(1, cost_s)


def test_it_is_young_and_dalys() -> None:
    assert cadence(2.0).interval_s(0, 1) == pytest.approx((2 * 2.0 * HOUR) ** 0.5 - 2.0)


def test_before_anything_was_measured_it_is_a_guess() -> None:
    assert Cadence(prior_s=HOUR).interval_s(5, 8) == FIRST_S


@given(
    cost_s=st.floats(0, 1e4),
    prior_s=st.floats(1, 1e9),
    losses=st.integers(0, 1000),
    workers=st.integers(1, 4096),
)
def test_it_is_bounded_and_never_takes_more_than_its_share(
    cost_s: float, prior_s: float, losses: int, workers: int
) -> None:
    interval_s = cadence(cost_s, prior_s).interval_s(losses, workers)
    assert LEAST_S <= interval_s <= MOST_S
    assert cost_s / interval_s <= MOST_SHARE * 1.001 or interval_s == MOST_S
    assert cadence(cost_s, prior_s).interval_s(losses + 1, workers) <= interval_s, (
        "who loses more saves more often"
    )


def test_the_slowest_rank_is_what_a_checkpoint_costs_and_old_ones_are_forgotten_slowly() -> None:
    seen = Cadence(prior_s=HOUR).measure(1, 0.2).measure(1, 1.0).measure(1, 0.4)
    assert seen.cost_s == 1.0
    assert seen.measure(2, 2.0).cost_s == pytest.approx(1.3)
    for step in range(2, 40):
        seen = seen.measure(step, 3.0)
    assert seen.cost_s == pytest.approx(3.0, abs=0.01)


def test_stalls_are_summed_by_the_slowest_rank_of_each_checkpoint() -> None:
    seen = Cadence(prior_s=HOUR).measure(1, 0.2).measure(1, 1.0).measure(1, 0.4).measure(2, 0.5)
    assert seen.stalled_s == pytest.approx(1.5)
    assert seen.measure(3, float("inf")).stalled_s < 1e5
    assert seen.measure(3, float("nan")).stalled_s == pytest.approx(1.5)


def test_what_the_attempt_sees_outweighs_the_prior_in_the_end() -> None:
    seen = Cadence(prior_s=20 * HOUR)
    assert seen.between_losses_s(0, 4) == 5 * HOUR
    seen = seen.work(100 * HOUR, 4)
    assert seen.between_losses_s(100, 4) == pytest.approx(HOUR, rel=0.05)


@pytest.mark.parametrize("cost_s", [0.5, 5.0, 30.0])
def test_no_fixed_interval_loses_much_less_time(cost_s: float) -> None:
    """Losses at random, on average one an hour: the share of time that goes into steps that count."""
    losses = random.Random(3)
    ends = [losses.expovariate(1 / HOUR) for _ in range(4000)]

    def goodput(interval_s: float) -> float:
        counted = sum(interval_s * (end // (interval_s + cost_s)) for end in ends)
        return counted / sum(ends)

    ours = goodput(cadence(cost_s).interval_s(0, 1))
    assert ours >= max(goodput(2.0**power) for power in range(3, 13)) - 0.005
