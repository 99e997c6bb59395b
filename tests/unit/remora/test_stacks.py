"""How `remora stacks` puts what ranks report together (pure)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remora.cli.stacks import ask, merged, name_of, reported
from remora.views import Event


def event(seq: int, kind: str = "worker.stack", **data: Any) -> Event:
    return Event(seq=seq, job_id="job_1", at=1.0, kind=kind, message="", data=data)


def test_the_newest_stack_of_each_rank_counts() -> None:
    events = [
        event(1, rank=0, stack="old"),
        event(2, kind="checkpoint.committed", rank=1),
        event(3, rank=1, stack="b"),
        event(4, rank=0, stack="new"),
        event(5, rank="x", stack="of no rank"),
    ]
    assert reported(events) == {0: "new", 1: "b"}
    assert reported(events, rank=1) == {1: "b"}


@pytest.mark.parametrize(("size", "note"), [(64, ""), (70, "The first 64 of 70 ranks report.\n")])
def test_of_a_large_job_the_answer_says_that_not_all_ranks_report(
    size: int, note: str, capsys: pytest.CaptureFixture[str]
) -> None:
    class Running:
        """A job whose first 64 ranks answer at once."""

        asked = False

        def request_stacks(self, job_id: str) -> Any:
            self.asked = True
            return SimpleNamespace(world_size=size)

        def events(self, job_id: str, after: int = 0) -> list[Event]:
            return [event(seq + 1, rank=seq, stack="a") for seq in range(64)] if self.asked else []

    assert len(ask(Running(), "job_1", 60)) == 64  # type: ignore[arg-type]
    assert capsys.readouterr().err == note


def test_equal_stacks_stand_once_and_those_of_few_ranks_come_first() -> None:
    found = {0: "waits", 1: "waits", 2: "reads", 3: "waits"}
    assert merged(found) == [([2], "reads"), ([0, 1, 3], "waits")]


def test_numbers_of_processes_and_threads_make_no_difference() -> None:
    texts = [
        f'Process {pid}: python train.py\nThread {pid} ({state}): "MainThread"\n    step (train.py:{line})'
        for pid, state, line in ((10, "active", 7), (11, "idle", 7), (12, "active+gil", 9))
    ]
    assert merged(dict(enumerate(texts))) == [([2], texts[2]), ([0, 1], texts[0])]


@pytest.mark.parametrize(
    ("ranks", "name"),
    [
        ([3], "rank 3"),
        ([0, 1], "ranks 0-1"),
        ([0, 1, 2, 5, 7, 8], "ranks 0-2, 5, 7-8"),
        ([1, 3], "ranks 1, 3"),
    ],
)
def test_ranks_in_a_row_are_named_by_their_ends(ranks: list[int], name: str) -> None:
    assert name_of(ranks) == name


@given(st.dictionaries(st.integers(0, 40), st.sampled_from(["a", "b", "c"])))
def test_no_rank_is_missing_or_named_twice(found: dict[int, str]) -> None:
    groups = merged(found)
    assert sorted(rank for ranks, _ in groups for rank in ranks) == sorted(found)
    assert all(found[rank] == text for ranks, text in groups for rank in ranks)
