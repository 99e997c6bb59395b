"""How many drivers are kept ready, and which ones are ended."""

from __future__ import annotations

import pytest

from trainers.ready_drivers import PoolChange, plan_pool, token_of

A, B, C = "driver-ready-7-a", "driver-ready-7-b", "driver-ready-7-c"


@pytest.mark.parametrize(
    ("slots", "most", "kept"),
    [(0, 3, 1), (1, 3, 1), (2, 3, 2), (64, 3, 3), (64, 0, 0)],
)
def test_one_for_each_worker_that_fits_up_to_the_setting_and_one_before_there_is_a_node(
    slots: int, most: int, kept: int
) -> None:
    own: list[str] = []
    while plan_pool(7, own, own, most=most, slots=slots, may_start=True).starts:
        own.append(f"driver-ready-7-{len(own)}")
    assert len(own) == kept
    assert plan_pool(7, own, own, most=most, slots=slots, may_start=True).end == ()


def test_none_is_started_at_a_bad_moment() -> None:
    assert plan_pool(7, [], [], most=3, slots=3, may_start=False) == PoolChange(end=(), starts=False)


def test_when_nodes_went_the_newest_ones_end() -> None:
    assert plan_pool(7, [A, B, C], [A, B, C], most=3, slots=1, may_start=True) == PoolChange(
        end=(B, C), starts=False
    )


def test_those_of_earlier_tokens_end_and_those_of_later_ones_are_left_alone() -> None:
    earlier, later, orphan = "driver-ready-6-x", "driver-ready-8-x", "driver-spare-0f"
    found = {A, earlier, later, orphan}
    assert plan_pool(7, [A], found, most=1, slots=1, may_start=True).end == (earlier, orphan)


def test_one_of_the_same_token_that_this_process_does_not_know_ends() -> None:
    """It reached the cluster again, and what it had made before it cannot distinguish from what is taken."""
    assert plan_pool(7, [A], {A, B}, most=1, slots=1, may_start=True).end == (B,)


def test_the_token_is_in_the_name() -> None:
    assert [token_of(name) for name in (A, "driver-ready-12-f", "driver-spare-12", "driver-ready-x")] == [
        7,
        12,
        -1,
        -1,
    ]
