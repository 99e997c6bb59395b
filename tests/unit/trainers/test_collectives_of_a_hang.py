"""What ranks say of their collectives, and the sentence that a hang's message has from it."""

from __future__ import annotations

import json
import sys
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remora.script import collectives
from remora.script.collectives import MOST_GROUPS, last_collectives, newest_of
from trainers.driver.collectives import explain
from trainers.last_collectives import LastCollective, read_collectives


def last(
    number: int, *, waits: bool = True, what: str = "all_reduce", group: str = "gloo:0"
) -> LastCollective:
    return LastCollective(group, what, number, waits)


def entry(number: int, **changed: Any) -> dict[str, Any]:
    """One of PyTorch's flight recorder, shortened."""
    return {
        "collective_seq_id": number,
        "is_p2p": False,
        "pg_id": 0,
        "process_group": ["0", "default_pg"],
        "profiling_name": "gloo:all_reduce",
        "retired": True,
        "state": "scheduled",
        "time_created_ns": number * 10,
        **changed,
    }


class TestTheScript:
    def test_the_newest_of_each_group_is_reported_with_the_group_that_was_used_last_first(self) -> None:
        other = {"process_group": ["1", "undefined"], "profiling_name": "nccl:broadcast", "pg_id": 1}
        assert newest_of([entry(1), entry(2, retired=False), entry(1, time_created_ns=99, **other)]) == [
            {"group": "nccl:1", "what": "broadcast", "number": 1, "waits": False},
            {"group": "gloo:0", "what": "all_reduce", "number": 2, "waits": True},
        ]

    def test_a_later_group_of_the_same_name_counts(self) -> None:
        (one,) = newest_of([entry(7), entry(2, pg_id=3, retired=False)])
        assert (one["number"], one["waits"]) == (2, True)

    def test_what_nccl_has_completed_does_not_wait_and_messages_between_two_ranks_are_left_out(self) -> None:
        done = entry(1, profiling_name="nccl:all_reduce", retired=False, state="completed")
        (one,) = newest_of([done, entry(2, is_p2p=True)])
        assert (one["number"], one["waits"]) == (1, False)

    def test_many_groups_are_cut_and_what_is_no_entry_is_left_out(self) -> None:
        many = [entry(1, process_group=[str(n), ""]) for n in range(2 * MOST_GROUPS)]
        assert len(newest_of([None, {}, 7, *many])) == MOST_GROUPS


class Blocked:
    """The recorder of a device that does not answer."""

    def __init__(self) -> None:
        self.asked = 0
        self.answers = threading.Event()

    def __call__(self) -> bytes:
        self.asked += 1
        self.answers.wait()
        return json.dumps({"entries": [entry(3, profiling_name="nccl:all_reduce", pg_id=1)]}).encode()


def test_a_recorder_that_does_not_answer_is_left_alone_and_the_others_are_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    blocked = Blocked()
    both = SimpleNamespace(
        _dump_nccl_trace_json=blocked, _dump_fr_trace_json=lambda: json.dumps({"entries": [entry(7)]})
    )
    monkeypatch.setitem(sys.modules, "torch._C._distributed_c10d", both)
    monkeypatch.setattr(collectives, "DUMP_S", 0.05)
    for _ in range(3):
        assert [one["group"] for one in last_collectives()] == ["gloo:0"]
    assert blocked.asked == 1, "no thread more for each question"
    blocked.answers.set()
    for one in threading.enumerate():
        if one.name == "remora-recorder":
            one.join(10.0)
    monkeypatch.setattr(collectives, "DUMP_S", 10.0)
    assert {one["group"] for one in last_collectives()} == {"gloo:0", "nccl:0"}
    assert blocked.asked == 2


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["group", "what", "number", "waits"]), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(_JSON)
def test_what_a_script_says_is_read_or_left_out(said: Any) -> None:
    found = read_collectives(said)
    assert (found is None) == (not isinstance(said, list))
    explain({0: found, 1: found})


@pytest.mark.parametrize("text", ["", "a b", "\x1b[31m", "x" * 65, "a\n", 7, None])
def test_a_text_that_is_no_name_is_left_out(text: object) -> None:
    said = {"group": "gloo:0", "what": text, "number": 1, "waits": True}
    assert read_collectives([said]) == ()
    assert read_collectives([{**said, "what": "barrier", "group": text}]) == ()


@pytest.mark.parametrize(
    ("found", "sentence"),
    [
        ({0: [last(3, waits=False)], 1: [last(3, waits=False)]}, None),
        (
            {0: [last(128)], 1: [last(128)], 2: [last(128)], 3: [last(127, waits=False)]},
            "rank 3 has not entered all_reduce #128, which ranks 0-2 wait in",
        ),
        (
            {0: [last(5)], 1: [last(4, waits=False)], 2: [last(5)], 3: [last(3)]},
            "ranks 1, 3 have not entered all_reduce #5, which ranks 0, 2 wait in",
        ),
        ({0: [last(1, what="barrier")], 1: []}, "rank 1 has not entered barrier #1, which rank 0 waits in"),
        ({0: [last(1, group="gloo:1")], 1: []}, None),
        ({0: [last(9)], 1: None}, "rank 0 waits in all_reduce #9, and rank 1 has not said"),
        (
            {0: [last(9)], 1: [last(9, what="broadcast")]},
            "rank 0 waits in all_reduce #9 and rank 1 in broadcast #9 of the same process group: all ranks have to"
            " call the same collectives in the same order",
        ),
        (
            {0: [last(9)], 1: [last(9)]},
            "all ranks that have said wait in all_reduce #9: their network may be cut",
        ),
        (
            {
                0: [last(2, group="gloo:1"), last(8)],
                1: [last(2, group="gloo:1"), last(7)],
                2: [last(1, waits=False, group="gloo:1")],
            },
            "rank 2 has not entered all_reduce #2, which ranks 0, 1 wait in",
        ),
        ({0: None, 1: None}, None),
        ({}, None),
    ],
)
def test_the_sentence(found: dict[int, list[LastCollective] | None], sentence: str | None) -> None:
    assert explain({rank: None if one is None else tuple(one) for rank, one in found.items()}) == sentence
