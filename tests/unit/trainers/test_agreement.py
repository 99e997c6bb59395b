"""Ranks that never talk to each other agree on one boundary, whatever the delays of messages."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainers.driver.agreement import Agreement


def agreement(ranks: int) -> Agreement:
    return Agreement(token=1, ranks=frozenset(range(ranks)), reason="test", is_stop=False, asked_at=0.0)


@dataclass
class Rank:
    """A script that calls `should_checkpoint()` once per step, as `remora.training` does it."""

    boundary: int = 0
    is_held: bool = False
    target: int | None = None
    #: It entered the boundary `boundary` and waits there for a decision.
    waits: bool = False
    asked_at: int | None = None
    #: Messages on their way to it, and its answer on the way to the driver.
    inbox: list[tuple[str, int]] = field(default_factory=list)
    outbox: list[int] = field(default_factory=list)

    def receive(self) -> None:
        kind, value = self.inbox.pop(0)
        if kind == "hold":
            self.is_held = True
            self.outbox.append(self.boundary)
        else:
            self.is_held = False
            self.target = value

    def step(self) -> None:
        """Enter the next boundary, or look again at the one where it waits."""
        if not self.waits:
            self.boundary += 1
        if self.target is not None and self.boundary >= self.target:
            self.asked_at, self.target, self.waits = self.boundary, None, False
        else:
            self.waits = self.is_held


def may_step(rank: Rank, ranks: list[Rank]) -> bool:
    """A collective lies between two boundaries: no rank passes it before every rank has come to it."""
    if rank.waits:
        return not rank.is_held
    passed = [one.boundary - int(one.waits) for one in ranks]
    return rank.boundary <= min(passed)


@settings(max_examples=200)
@given(count=st.integers(1, 6), seed=st.integers(0, 2**32), warm_up=st.integers(0, 40))
def test_all_ranks_checkpoint_at_the_same_boundary_and_none_waits_for_ever(
    count: int, seed: int, warm_up: int
) -> None:
    rng = random.Random(seed)
    ranks = [Rank() for _ in range(count)]
    round_ = agreement(count)
    decided: int | None = None
    for number in range(10_000):
        if number == warm_up:
            for rank in ranks:
                rank.inbox.append(("hold", 0))
        choices = [("step", rank) for rank in ranks if rank.asked_at is None and may_step(rank, ranks)]
        choices += [("receive", rank) for rank in ranks if rank.inbox]
        choices += [("answer", rank) for rank in ranks if rank.outbox]
        if not choices:
            break
        what, rank = rng.choice(choices)
        if what == "step":
            rank.step()
        elif what == "receive":
            rank.receive()
        else:
            boundary = round_.answer(ranks.index(rank), 1, rank.outbox.pop(0))
            if boundary is not None:
                decided = boundary
                assert all(one.boundary - int(one.waits) < boundary for one in ranks), "no rank has passed it"
                for one in ranks:
                    one.inbox.append(("decide", boundary))
    assert [rank.asked_at for rank in ranks] == [decided] * count


@pytest.mark.parametrize(("rank", "token"), [(0, 2), (7, 1)])
def test_answers_of_other_rounds_and_strangers_do_not_count(rank: int, token: int) -> None:
    round_ = agreement(1)
    assert round_.answer(rank, token, 5) is None
    assert round_.answer(0, 1, 5) == 6
    assert round_.answer(0, 1, 9) is None, "a decision stands"
