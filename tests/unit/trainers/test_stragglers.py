"""A worker that the others wait for is reported, and no other one."""

from __future__ import annotations

import pytest

from trainers.driver.group import Note, WorkerGroup
from trainers.driver.progress import Progress
from trainers.driver.stragglers import AGAIN_S, LOOKS, Straggler, Stragglers


def stragglers(
    own_s: list[float], *, shards: list[int] | None = None, looks: int = LOOKS, begin: float = 0.0
) -> list[Straggler]:
    """Who straggles when every rank reports the same again and again, once a second."""
    return heard(Stragglers(len(own_s)), own_s, shards, looks, begin)


def heard(
    seen: Stragglers, own_s: list[float], shards: list[int] | None, looks: int, begin: float
) -> list[Straggler]:
    return [
        one
        for look in range(looks)
        for rank, seconds in enumerate(own_s)
        for one in seen.measure(rank, seconds, (shards or [1] * len(own_s))[rank], begin + look)
    ]


@pytest.mark.parametrize(
    ("own_s", "shards", "ranks", "why"),
    [
        ([1.0, 1.0, 2.5, 1.0], None, [2], "it needs more than twice as long"),
        ([1.0, 1.0, 1.9, 1.0], None, [], "it needs less than twice as long"),
        ([1.0, 2.5], None, [1], "two are enough to compare"),
        ([2.5], None, [], "no worker waits for the only one"),
        ([0.001, 0.001, 0.015], None, [], "so little is noise"),
        ([1.0, 1.0, 3.0], [1, 1, 3], [], "it has more to do"),
        ([1.0, 1.0, 3.0], [3, 3, 1], [2], "it has even less to do"),
        ([1.0, 1.0, 1.0], [3, 3, 1], [], "no worker waits for it"),
        ([3.0, 3.0, 1.0, 1.0, 1.0], None, [0, 1], "several"),
    ],
)
def test_who_straggles(own_s: list[float], shards: list[int] | None, ranks: list[int], why: str) -> None:
    assert [one.rank for one in stragglers(own_s, shards=shards)] == ranks, why


def test_it_has_to_be_slow_for_a_while() -> None:
    assert stragglers([1.0, 1.0, 5.0], looks=LOOKS - 1) == []
    assert stragglers([1.0, 1.0, 5.0], looks=LOOKS) == [Straggler(2, 5.0, 1.0)]


def test_one_slow_step_in_a_while_is_nothing() -> None:
    seen = Stragglers(2)
    for second in range(100):
        assert list(seen.measure(0, 1.0, 1, second)) == []
        assert list(seen.measure(1, 9.0 if second % 4 == 0 else 1.0, 1, second)) == []


def test_it_is_not_reported_again_for_a_while() -> None:
    seen = Stragglers(2)
    assert len(heard(seen, [1.0, 5.0], None, int(AGAIN_S), 0.0)) == 1
    assert len(heard(seen, [1.0, 5.0], None, 2 * LOOKS, AGAIN_S)) == 1


@pytest.mark.parametrize("own_s", [-1.0, float("nan"), float("inf")])
def test_nonsense_is_refused(own_s: float) -> None:
    with pytest.raises(ValueError, match="cannot need"):
        list(Stragglers(2).measure(0, own_s, 1, 0.0))


def test_a_worker_group_reports_it_once_and_passes_over_words_of_an_older_group() -> None:
    group = WorkerGroup(
        generation=2, world_size=2, started_at=0.0, progress=Progress(), checkpoint_interval_s=None
    )
    events = [
        effect.body
        for second in range(3 * LOOKS)
        for rank, own_s, generation in [(0, 1.00004, 2), (1, 9.0, 1), (1, 5.00004, 2)]
        for effect in group.receive(
            rank, {"type": "pace", "generation": generation, "own_s": own_s, "shards": 3}, float(second)
        )
        if isinstance(effect, Note)
    ]
    assert [event["data"] for event in events] == [{"rank": 1, "own_s": 5.0, "others_s": 1.0}]


def test_slow_looks_count_only_in_a_row() -> None:
    """The first one behind an even look is not slow yet, as half of what the rank has reported is not."""
    seen, slow = Stragglers(2), [1.0, 2.5]
    assert heard(seen, [1.0, 1.0], None, 1, 0.0) == []
    assert heard(seen, slow, None, LOOKS, 1.0) == []
    assert [one.rank for one in heard(seen, slow, None, 1, 1.0 + LOOKS)] == [1]
