"""What a supervisor sends of its command's messages and lines, and which lines wait."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.steps import grows_linearly, steps_of
from trainers.driver.log_shares import Printers
from trainers.supervisor.outbox import PACES_PER_S, ReportFilter, WaitingLines
from trainers.worker_identity import WorkerIdentity

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


def test_a_chunk_has_at_most_a_line_more_than_the_driver_accepts() -> None:
    waiting = WaitingLines()
    waiting.add("stdout", "\n".join(["x" * 9] * 100))
    (message,) = waiting.take(95)
    assert 95 <= len(message["text"]) + 1 <= 105


def test_taking_chunks_is_linear() -> None:
    def take(texts: int) -> int:
        waiting = WaitingLines()
        for number in range(texts):
            waiting.add("stdout", f"step {number}\nloss 0.5")

        def all_of_it() -> None:
            while waiting.take(100):
                pass

        return steps_of(all_of_it)

    assert grows_linearly(take, 100, times=10)


def test_accepted_bytes_are_shared_by_workers_that_print() -> None:
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


IDENTITY = WorkerIdentity(
    job_id="job_1", attempt_id="att_1", attempt=1, generation=1, rank=0, world_size=2, local_rank=0,
    local_world_size=1, node_rank=0, num_nodes=2, master_addr="127.0.0.1", master_port=29500,
)  # fmt: skip


def passed(
    kind: str, identity: WorkerIdentity, *, each_s: float, seconds: float, report_filter: ReportFilter
) -> int:
    messages = range(int(seconds / each_s))
    return sum(report_filter.is_needed({"type": kind}, identity, number * each_s) for number in messages)


def test_the_first_report_of_every_rank_and_all_of_rank_0() -> None:
    other = replace(IDENTITY, rank=1)
    assert passed("report", IDENTITY, each_s=0.01, seconds=1.0, report_filter=ReportFilter()) == 100
    report_filter = ReportFilter()
    assert passed("report", other, each_s=0.01, seconds=1.0, report_filter=report_filter) == 1
    assert passed("report", IDENTITY, each_s=0.01, seconds=1.0, report_filter=report_filter) == 100, (
        "it is rank 0 now"
    )


@pytest.mark.parametrize("workers", [1, 8, PACES_PER_S, 1024, 8192])
def test_paces_of_all_workers_are_no_more_than_so_many_in_a_second(workers: int) -> None:
    """They report once a second each: 8,192 messages a second."""
    identity = replace(IDENTITY, world_size=workers, rank=workers - 1)
    seconds = 1000.0
    each = passed("pace", identity, each_s=1.0, seconds=seconds, report_filter=ReportFilter())
    assert each == pytest.approx(min(seconds, seconds * PACES_PER_S / workers), abs=1)


def test_a_new_worker_group_hears_the_pace_of_everybody_at_once() -> None:
    report_filter, large = ReportFilter(), replace(IDENTITY, world_size=8192)
    assert report_filter.is_needed({"type": "pace"}, large, 0.0)
    assert not report_filter.is_needed({"type": "pace"}, large, 1.0)
    assert report_filter.is_needed({"type": "pace"}, replace(large, generation=2), 2.0)


def test_everything_else_is_needed() -> None:
    report_filter = ReportFilter()
    for kind in ("hello", "held", "saving", "parted", "joined", "abandoned", "stalled"):
        assert report_filter.is_needed({"type": kind}, replace(IDENTITY, rank=1), 0.0)
        assert report_filter.is_needed({"type": kind}, replace(IDENTITY, rank=1), 0.0)
