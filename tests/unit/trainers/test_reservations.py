"""On which nodes the workers of a group are to stand."""

from __future__ import annotations

import pytest

from trainers.ray_train.reservations import capacity_on, spread_out


@pytest.mark.parametrize(
    ("free", "count", "taken", "nodes"),
    [
        ({"a": 1, "b": 1, "c": 1}, 2, [], ["a", "b"]),
        ({"a": 1, "b": 4, "c": 2}, 5, [], ["b", "b", "b", "b", "c"]),
        ({"a": 4, "b": 4}, 2, ["b", "b"], ["b", "b"]),
        ({"a": 4, "b": 2}, 2, ["b"], ["b", "a"]),
        ({"a": 1, "b": 1}, 1, ["a"], ["b"]),
        ({"a": 1}, 3, [], ["a"]),
        ({"a": 1}, 1, ["a", "a"], []),
        ({"a": 1}, 1, ["gone"], ["a"]),
        ({}, 1, [], []),
    ],
)
def test_workers_stand_on_few_nodes_and_beside_their_own(
    free: dict[str, int], count: int, taken: list[str], nodes: list[str]
) -> None:
    assert spread_out(free, count, taken) == nodes


def test_two_that_start_at_once_do_not_want_the_same_node() -> None:
    free = {"a": 1, "b": 4, "c": 1}
    assert spread_out(free, 2, preferred={"a", "c"}) == ["a", "c"]
    assert spread_out(free, 2, ["c"], preferred={"a"}) == ["a", "b"]


@pytest.mark.parametrize(
    ("free", "worker", "most", "workers"),
    [
        ({"CPU": 4.0}, {"CPU": 1.0}, 8, 4),
        ({"CPU": 4.0}, {"CPU": 1.0}, 3, 3),
        ({"CPU": 4.0, "GPU": 1.0}, {"CPU": 1.0, "GPU": 1.0}, 8, 1),
        ({"CPU": 4.0}, {"CPU": 1.0, "GPU": 1.0}, 8, 0),
        ({"CPU": 0.3}, {"CPU": 0.1}, 8, 3),
        ({"CPU": 1.0}, {"CPU": 1.0, "GPU": 0.0}, 8, 1),
        ({}, {"CPU": 0.0}, 2, 2),
        ({"CPU": -1.0}, {"CPU": 1.0}, 8, 0),
    ],
)
def test_capacity_is_counted_in_whole_workers(
    free: dict[str, float], worker: dict[str, float], most: int, workers: int
) -> None:
    assert capacity_on({"a": free}, worker, most) == {"a": workers}
