"""Which worker computes wrongly, from what workers have found for the same shards."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from remora.torch import Loop, Steps
from remora.torch.order import shards_of
from remora.torch.verification import Verdict, checks_of, doubted, is_verified, judge, judge_all

RIGHT, WRONG, OTHER = 7, 8, 9


@pytest.mark.parametrize(
    ("findings", "wrong"),
    [
        pytest.param({0: (WRONG, WRONG), 1: (RIGHT, RIGHT), 2: (RIGHT,)}, {0}, id="always, who carries it"),
        pytest.param(
            {0: (RIGHT, RIGHT), 1: (WRONG, OTHER), 2: (RIGHT,)}, {1}, id="never the same, who checks"
        ),
        pytest.param({0: (WRONG, RIGHT), 1: (RIGHT, RIGHT), 2: (RIGHT,)}, {0}, id="once"),
        pytest.param({0: (WRONG, RIGHT), 1: (RIGHT, RIGHT)}, {0}, id="once, of two workers"),
        pytest.param({0: (RIGHT, RIGHT), 1: (RIGHT, RIGHT), 2: (WRONG,)}, {2}, id="who decides"),
        pytest.param({0: (WRONG, WRONG), 1: (RIGHT, RIGHT)}, None, id="always, of two workers"),
        pytest.param({0: (1, 2), 1: (3, 4), 2: (5,)}, None, id="not deterministic"),
    ],
)
def test_what_most_workers_have_found_is_right(
    findings: dict[int, tuple[int, ...]], wrong: set[int] | None
) -> None:
    assert judge(findings, (0, 1, 2)) == (None if wrong is None else frozenset(wrong))


@pytest.mark.parametrize(
    ("nodes", "wrong"),
    [
        pytest.param((0, 1, 2), {0}, id="on three nodes"),
        pytest.param((0, 1, 0), {0}, id="whose neighbour on its node agrees with the other node"),
        pytest.param((0, 1, 1), None, id="where one node says it twice"),
        pytest.param((0, 0, 0), {0}, id="on one node, whose workers are counted"),
    ],
)
def test_nodes_are_counted(nodes: tuple[int, ...], wrong: set[int] | None) -> None:
    findings = {0: (WRONG, WRONG), 1: (RIGHT, RIGHT), 2: (RIGHT,)}
    assert judge(findings, nodes) == (None if wrong is None else frozenset(wrong))


def verdict_where(nodes: list[int], bad: set[int]) -> Verdict:
    """What is said where these ranks always find the same wrong bits."""
    checks = checks_of(4, 3, len(nodes), nodes)

    def found(rank: int, shard: int) -> int:
        return shard + 10_000 * (rank in bad)

    world = range(len(nodes))
    firsts = [[found(rank, checks.shards[one]) for one in (rank, checks.checked_by(rank))] for rank in world]
    doubts = doubted(checks, firsts)
    return judge_all(
        checks, doubts, firsts, [[found(one, checks.shards[rank]) for rank in doubts] for one in world]
    )


def test_between_two_nodes_that_disagree_nothing_is_decided() -> None:
    verdict = verdict_where([0, 0, 1, 1], {0, 1})
    assert (verdict.wrong, verdict.undecided, verdict.is_steady) == (set(), {0, 1, 2, 3}, True)


@pytest.mark.parametrize("bad", [0, 1, 2, 3])
def test_one_of_two_workers_of_a_node_is_named_with_two_nodes(bad: int) -> None:
    verdict = verdict_where([0, 0, 1, 1], {bad})
    assert (verdict.wrong, verdict.undecided) == ({bad}, set())


@pytest.mark.parametrize("bad", [{0, 1}, {2, 3}, {4, 5}])
def test_a_third_node_says_which_one_is_wrong(bad: set[int]) -> None:
    verdict = verdict_where([0, 0, 1, 1, 2, 2], bad)
    assert (verdict.wrong, verdict.undecided) == (bad, set())


@given(st.lists(st.integers(0, 2), min_size=2, max_size=8), st.data())
def test_workers_of_no_two_nodes_are_called_wrong_where_one_is(nodes: list[int], data: st.DataObject) -> None:
    node = data.draw(st.sampled_from(nodes))
    ranks = [rank for rank, one in enumerate(nodes) if one == node]
    bad = set(data.draw(st.lists(st.sampled_from(ranks), min_size=1, unique=True)))
    if len(set(nodes)) > 1:
        assert verdict_where(nodes, bad).wrong <= bad


nodes = st.lists(st.integers(0, 3), min_size=2, max_size=9)


@given(nodes, st.integers(1, 5), st.integers(1, 1000), st.data())
def test_one_worker_that_computes_wrongly_is_found_wherever_it_is(
    nodes: list[int], more: int, step: int, data: st.DataObject
) -> None:
    """It is named unless its node may be the only one that is right; then it is one of those that are doubted."""
    world, shards = len(nodes), len(nodes) * more
    bad = data.draw(st.integers(0, world - 1))
    checks = checks_of(step, 3, shards, nodes)
    assert all(checks.shards[rank] in shards_of(rank, world, shards) for rank in range(world))
    assert sorted(checks.checkers) == list(range(world))
    assert all(checks.checkers[rank] != rank for rank in range(world))

    def found(rank: int, shard: int, which: int) -> int:
        return shard if rank != bad else 10_000 + data.draw(st.sampled_from([0, which]))

    firsts = [
        [found(rank, checks.shards[one], 1) for one in (rank, checks.checked_by(rank))]
        for rank in range(world)
    ]
    doubts = doubted(checks, firsts)
    assert set(doubts) == {bad, checks.checked_by(bad)}
    seconds = [[found(rank, checks.shards[one], 2) for one in doubts] for rank in range(world)]
    verdict = judge_all(checks, doubts, firsts, seconds)
    can_be_named = len(set(nodes)) > 2 or (nodes.count(nodes[bad]) > 1 and world > 2)
    if can_be_named or verdict.wrong:
        assert (verdict.wrong, verdict.undecided) == ({bad}, set())
    else:
        assert bad in verdict.undecided


@given(st.integers(2, 6))
def test_what_several_workers_find_otherwise_the_second_time_is_no_machines_fault(world: int) -> None:
    """As of a dataset that has other bits with the threads of a loader than with those of the script."""
    checks = checks_of(5, 1, world, list(range(world)))
    of_loader = 10_000
    firsts = [
        [checks.shards[rank] + of_loader, checks.shards[checks.checked_by(rank)]] for rank in range(world)
    ]
    doubts = doubted(checks, firsts)
    seconds = [[checks.shards[one] for one in doubts] for _ in range(world)]
    verdict = judge_all(checks, doubts, firsts, seconds)
    assert (verdict.wrong, verdict.undecided) == (set(), set(doubts))


@given(nodes)
def test_another_machine_checks_where_there_is_one(nodes: list[int]) -> None:
    checks = checks_of(5, 1, 12, nodes)
    for rank, node in enumerate(nodes):
        checker, deciders = checks.checkers[rank], checks.deciders(rank)
        if max(map(nodes.count, nodes)) * 2 <= len(nodes):
            assert nodes[checker] != node
        assert not {rank, checker} & set(deciders)
        asked = sorted(nodes[one] for one in deciders)
        if others := set(nodes) - {node, nodes[checker]}:
            assert (len(asked), set(asked) <= others) == (1, True), "a third node decides"
        else:
            both = [node, nodes[checker]]
            assert asked == [one for one in sorted(set(both)) if nodes.count(one) > both.count(one)]


def test_each_shard_is_checked() -> None:
    drawn = {checks_of(step, 0, 6, [0, 1]).shards[0] for step in range(50)}
    assert drawn == {0, 1, 2}


def test_checks_are_due_every_so_many_steps() -> None:
    assert [step for step in range(1, 13) if is_verified(step, 5)] == [5, 10]
    assert not any(is_verified(step, None) for step in range(1, 13))


def made(loop: Callable[..., object], **settings: object) -> object:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    arguments = {
        "data": torch.ones(8, 2),
        "global_batch": 4,
        "shards": 2,
        "total_steps": 2,
        "exactness": "bitwise",
    }
    return loop(model, optimizer, **{**arguments, "verify_every": 5, **settings})


class Endless(torch.utils.data.IterableDataset):  # type: ignore[misc]  # torch is not checked
    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(torch.ones(8, 2))


@pytest.mark.parametrize(
    ("loop", "settings", "said"),
    [
        (Loop, {"exactness": "sample-exact"}, "only with exactness='bitwise'"),
        (Loop, {"verify_every": 0}, "at least 1, not 0"),
        (Loop, {"data": Endless()}, "needs a dataset with a length"),
        (Steps, {}, "verify_every needs Loop"),
    ],
)
def test_what_cannot_be_checked_is_refused(
    loop: Callable[..., object], settings: dict[str, object], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        made(loop, **settings)


def test_one_worker_alone_checks_nothing() -> None:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    arguments = {"data": torch.ones(8, 2), "global_batch": 4, "shards": 2, "total_steps": 2}
    losses = []
    for step in Loop(model, optimizer, exactness="bitwise", verify_every=1, **arguments):
        losses.append(float(step.backward(lambda model, batch: model(batch).mean())))
        optimizer.step()
    assert losses[1] < losses[0]
