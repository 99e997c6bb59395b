"""Lines on their way to the driver: in order, in pieces that fit, none lost and none twice."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.steps import grows_linearly, steps_of
from trainers.driver.printers import Printers
from trainers.supervisor.waiting_lines import WaitingLines

LINES = st.lists(st.text(st.characters(exclude_characters="\n"), max_size=9), min_size=1, max_size=9)
PRINTED = st.lists(st.tuples(st.sampled_from(["stdout", "stderr"]), LINES), max_size=9)


def lines_in(messages: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(one["stream"], line) for one in messages for line in one["text"].split("\n")]


@given(printed=PRINTED, limits=st.lists(st.integers(1, 40), min_size=1), refused=st.sets(st.integers(0, 50)))
def test_all_lines_come_once_and_in_order(
    printed: list[tuple[str, list[str]]], limits: list[int], refused: set[int]
) -> None:
    waiting = WaitingLines()
    for stream, lines in printed:
        waiting.add(stream, "\n".join(lines))
    size = sum(len(line.encode(errors="replace")) + 1 for _, lines in printed for line in lines)
    assert waiting.size_bytes == size
    heard: list[tuple[str, str]] = []
    rounds = 0
    while messages := waiting.take(limits[rounds % len(limits)]):
        if rounds in refused:
            waiting.put_back(messages)
        else:
            heard += lines_in(messages)
        rounds += 1
    assert heard == [(stream, line) for stream, lines in printed for line in lines]
    assert waiting.size_bytes == 0


def test_a_piece_has_at_most_a_line_more_than_there_is_room_for() -> None:
    waiting = WaitingLines()
    waiting.add("stdout", "\n".join(["x" * 9] * 100))
    (message,) = waiting.take(95)
    assert 95 <= len(message["text"]) + 1 <= 105


def test_taking_pieces_is_linear() -> None:
    def take(texts: int) -> int:
        waiting = WaitingLines()
        for number in range(texts):
            waiting.add("stdout", f"step {number}\nloss 0.5")

        def all_of_it() -> None:
            while waiting.take(100):
                pass

        return steps_of(all_of_it)

    assert grows_linearly(take, 100, times=10)


def test_room_is_shared_by_workers_that_print() -> None:
    printers = Printers()
    assert printers.count(0.0) == 1
    for slot in range(8):
        printers.note(slot, 10.0 + slot / 10)
        printers.note(slot, 10.0 + slot / 10)
    assert printers.count(10.8) == 8
    assert printers.count(11.5) == 8, "a moment ago"
    assert printers.count(13.0) == 1
    printers.note(3, 500.0)
    assert printers.count(500.5) == 1
