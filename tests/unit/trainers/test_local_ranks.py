"""A worker has one local rank for its life, which picks its own GPU among those that it sees."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainers.driver.regrouping import WorkerLocation, assign_ranks
from trainers.ray_train.local_ranks import LocalPlace, LocalWorker, places_of_joiners

GPUS_OF_A_NODE = 8
#: For each change the workers that are lost, of those that live, and the nodes of those that join.
changes = st.lists(
    st.tuples(st.sets(st.integers(0, 11)), st.lists(st.sampled_from("abc"), max_size=4)), max_size=8
)


@dataclass
class Living:
    """A worker, and what its process saw when it started."""

    slot: int
    node: str
    gpu: int
    local_rank: int
    #: Entries of CUDA_VISIBLE_DEVICES.
    visible: list[str]


def start(nodes: list[str]) -> list[Living]:
    """A group as Ray Train starts one: local ranks in the order of GPUs, all of which each worker sees."""
    found: list[Living] = []
    for slot, node in enumerate(sorted(nodes)):
        number = sum(one.node == node for one in found)
        visible = [str(gpu) for gpu in range(sorted(nodes).count(node))]
        found.append(Living(slot, node, number, number, visible))
    return found


def joined(living: list[Living], nodes: list[str], pick: st.DataObject) -> list[Living]:
    """Workers that join on these nodes, each with any GPU that is free."""
    joining: list[tuple[str, tuple[int, ...]]] = []
    for node in nodes:
        taken = {one.gpu for one in living if one.node == node}
        taken |= {gpu for where, gpus in joining if where == node for gpu in gpus}
        if free := sorted(set(range(GPUS_OF_A_NODE)) - taken):
            joining.append((node, (pick.draw(st.sampled_from(free)),)))
    present = [LocalWorker(one.node, one.local_rank, (one.gpu,)) for one in living]
    slot = max((one.slot for one in living), default=0) + 1
    return [
        Living(slot + number, node, gpus[0], place.local_rank, place.visible_gpus.split(","))
        for number, ((node, gpus), place) in enumerate(
            zip(joining, places_of_joiners(present, joining), strict=True)
        )
    ]


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=6), changes, st.data())
def test_whatever_is_lost_and_joins_local_ranks_stay_and_are_unique(
    nodes: list[str], steps: list[tuple[set[int], list[str]]], data: st.DataObject
) -> None:
    living = start(nodes)
    for lost, joining in steps:
        living = [one for place, one in enumerate(living) if place not in lost]
        living += joined(living, joining, data)
        assigned = assign_ranks(
            [WorkerLocation(one.slot, one.node, "10.0.0.1", one.local_rank) for one in living]
        )
        for one, place in zip(living, assigned, strict=True):
            assert place.local_rank == one.local_rank
            assert place.local_world_size == sum(other.node == one.node for other in living)
            assert one.visible[one.local_rank] == str(one.gpu), "its number picks its own GPU"
            assert len(set(one.visible)) == len(one.visible)
        assert len({(one.node, one.local_rank) for one in living}) == len(living)


@pytest.mark.parametrize(
    ("present", "gpus", "place"),
    [
        ([], (), LocalPlace(0, 1, "")),
        ([(0, (0,)), (1, (1,))], (2,), LocalPlace(2, 3, "0,1,2")),
        ([(1, (1,))], (7,), LocalPlace(0, 2, "7,1")),
        ([(0, (0,)), (3, (3,))], (2,), LocalPlace(1, 3, "0,2")),
        ([(0, (0, 1))], (4, 5), LocalPlace(1, 2, "0,1,4,5")),
        ([(0, ("GPU-a",))], ("GPU-b",), LocalPlace(1, 2, "GPU-a,GPU-b")),
        ([(0, (0,)), (1, (0,))], (1,), LocalPlace(2, 3, "1")),
    ],
)
def test_the_lowest_free_number_and_the_gpus_in_the_order_of_numbers(
    present: list[tuple[int, tuple[int, ...]]], gpus: tuple[int, ...], place: LocalPlace
) -> None:
    workers = [LocalWorker("a", number, own) for number, own in present]
    assert places_of_joiners([*workers, LocalWorker("b", 0, (0,))], [("a", gpus)]) == [place]


def test_workers_that_join_together_get_different_numbers() -> None:
    places = places_of_joiners([LocalWorker("a", 1, (1,))], [("a", (3,)), ("a", (2,)), ("b", (0,))])
    assert places == [LocalPlace(0, 3, "3,1,2"), LocalPlace(2, 3, "3,1,2"), LocalPlace(0, 1, "0")]
