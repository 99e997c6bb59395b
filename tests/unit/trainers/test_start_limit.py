"""When an actor that a head of Ray was asked for is asked for again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trainers.ray_train.start_limit import AFTER_HEAD_S, StartLimit

ONE, OTHER = frozenset({"one"}), frozenset({"other"})
heads = st.sampled_from([frozenset(), ONE, OTHER, ONE | OTHER])
looks = st.lists(st.tuples(heads, st.floats(0.0, 100.0)), max_size=12)


def test_with_the_head_that_was_asked_there_is_no_limit() -> None:
    limit = StartLimit(ONE).seen(ONE, 5.0).seen(frozenset(), 6.0)
    assert limit == StartLimit(ONE), "a head that is away is no other head"
    assert not limit.is_over(1e9)


def test_it_is_over_15_seconds_after_another_head_was_seen_first() -> None:
    limit = StartLimit(ONE).seen(ONE | OTHER, 10.0).seen(OTHER, 20.0)
    assert not limit.is_over(10.0 + AFTER_HEAD_S - 0.1)
    assert limit.is_over(10.0 + AFTER_HEAD_S)


def test_where_the_head_that_was_asked_is_not_known_the_first_look_counts() -> None:
    assert StartLimit(frozenset()).seen(ONE, 3.0).is_over(3.0 + AFTER_HEAD_S)


def test_what_has_begun_is_looked_at_again_15_seconds_later() -> None:
    over = StartLimit(ONE).seen(OTHER, 0.0)
    assert over.is_over(AFTER_HEAD_S)
    renewed = over.renewed(AFTER_HEAD_S)
    assert not renewed.is_over(2 * AFTER_HEAD_S - 0.1)
    assert renewed.is_over(2 * AFTER_HEAD_S)
    assert StartLimit(ONE).renewed(7.0) == StartLimit(ONE)


@given(looks)
def test_the_first_head_that_was_not_there_decides_whatever_is_seen_later(
    seen: list[tuple[frozenset[str], float]],
) -> None:
    seen = sorted(seen, key=lambda look: look[1])
    limit = StartLimit(ONE)
    for one, now in seen:
        limit = limit.seen(one, now)
    first = next((now for one, now in seen if "other" in one), None)
    assert limit.another_at == first
