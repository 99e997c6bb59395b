"""A checkpoint of an agreement that was given up is kept, and is not the end that a later agreement is for."""

from __future__ import annotations

from typing import Any

from trainers.checkpoints.manifest import ShardFile
from trainers.driver.group import RETRY_S, Commit, Send, WorkerGroup
from trainers.driver.progress import Progress


class Ranks:
    """Two ranks that take part in agreements, and what the driver sends them."""

    def __init__(self) -> None:
        self.now = 0.0
        self.group = WorkerGroup(
            generation=1, world_size=2, started_at=0.0, progress=Progress(), checkpoint_interval_s=None
        )
        self.sent: list[dict[str, Any]] = []
        self.commits: list[int] = []
        for rank in (0, 1):
            self.say(rank, "hello")
            self.say(rank, "report", step=1)

    def act(self, effects: Any) -> None:
        for effect in effects:
            if isinstance(effect, Send):
                self.sent.append(effect.message)
            elif isinstance(effect, Commit):
                self.commits.append(effect.step)

    def say(self, rank: int, kind: str, **message: Any) -> None:
        self.act(self.group.receive(rank, {"type": kind, **message}, self.now))

    def after(self, seconds: float) -> None:
        self.now += seconds
        self.act(self.group.tick(self.now))

    def agree(self, boundary: int) -> int:
        """All answer the newest question; its number."""
        token: int = self.of_kind("hold")[-1]["token"]
        for rank in (0, 1):
            self.say(rank, "held", token=token, boundary=boundary)
        assert self.of_kind("decide")[-1]["token"] == token
        return token

    def store(self, rank: int, step: int, token: int | None) -> None:
        """The files of a rank are stored, of a checkpoint that it was asked for by that number, if it says so."""
        file = ShardFile(name=f"rank-{rank}.pt", size_bytes=5, sha256="0" * 64, rank=rank)
        of = {} if token is None else {"token": token}
        self.say(rank, "shard", step=step, files=(file,), asked=True, **of)

    def of_kind(self, kind: str) -> list[dict[str, Any]]:
        return [message for message in self.sent if message["type"] == kind]


def given_up_and_asked_again() -> tuple[Ranks, int, int]:
    """A planned stop whose first checkpoint came to nothing; the numbers of both agreements."""
    ranks = Ranks()
    ranks.act(ranks.group.request_stop("drain", 0.0))
    first = ranks.agree(10)
    ranks.say(1, "abandoned", step=9)
    ranks.after(RETRY_S)
    return ranks, first, ranks.agree(20)


def test_the_step_of_the_agreement_that_was_given_up_ends_no_worker() -> None:
    ranks, first, second = given_up_and_asked_again()
    for rank in (0, 1):
        ranks.store(rank, 11, first)
    assert ranks.commits == [11], "it is a checkpoint like any other"
    ranks.act(ranks.group.committed(11, ranks.now))
    assert ranks.of_kind("stop") == []
    for rank in (0, 1):
        ranks.store(rank, 21, second)
    ranks.act(ranks.group.committed(21, ranks.now))
    assert len(ranks.of_kind("stop")) == 1


def test_a_late_part_that_comes_while_the_step_that_is_agreed_on_is_committed_changes_nothing() -> None:
    ranks, first, second = given_up_and_asked_again()
    for rank in (0, 1):
        ranks.store(rank, 21, second)
    ranks.store(1, 11, first)
    ranks.act(ranks.group.committed(21, ranks.now))
    assert len(ranks.of_kind("stop")) == 1


def test_a_library_that_does_not_say_for_which_question_it_saves_is_believed() -> None:
    ranks, _, _ = given_up_and_asked_again()
    for rank in (0, 1):
        ranks.store(rank, 21, None)
    ranks.act(ranks.group.committed(21, ranks.now))
    assert len(ranks.of_kind("stop")) == 1
