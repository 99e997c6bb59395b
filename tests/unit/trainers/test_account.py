"""What an attempt reports: once, within the limit of its log, and nothing after its last word."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest

from tests.steps import grows_linearly, steps_of
from trainers.driver.account import AWAY_S, HOLD_BYTES, MOST_WAITING, Account
from trainers.driver.journal import rows_of
from trainers.driver.pending import MOST_LINE_BYTES, MOST_METRIC_BYTES, PendingLines, PendingMetrics
from trainers.driver.progress import Progress


def bodies(account: Account, kind: str) -> list[dict[str, Any]]:
    return [record.body for record in account.records(0, 1000) if record.kind == kind]


def test_records_carry_the_time_at_which_they_happened_and_are_forgotten_once_stored() -> None:
    account = Account(1000, now=lambda: 42.0)
    account.event("worker_group.grow", "There is capacity.", deadline_at=None)
    account.progress(state="running", world_size=2)
    first, second = account.records(0, 10)
    assert (first.seq, first.at, first.kind) == (1, 42.0, "event")
    assert first.body == {
        "kind": "worker_group.grow",
        "message": "There is capacity.",
        "data": {"deadline_at": None},
    }
    assert second.body == {"state": "running", "world_size": 2}
    assert account.records(1, 10) == [second]
    assert account.records(0, 10) == [second]


def test_a_log_is_full_at_its_limit_and_says_so_once() -> None:
    account = Account(10)
    account.line(1, "stdout", "12345678")
    assert not account.log_is_full
    account.line(1, "stdout", "9")
    assert account.log_is_full
    account.line(0, "stdout", "too late")
    account.line(0, "stderr", "too late")
    account.line(0, "remora", "words of our own are always kept")
    account.ended({"end_reason": "completed", "message": "", "exit_code": 0})
    assert [(line["rank"], line["stream"], line["text"]) for line in bodies(account, "log")] == [
        (1, "stdout", "12345678"),
        (1, "stdout", "9"),
        (1, "remora", "the log of this attempt reached 10 bytes; later lines are dropped"),
        (0, "remora", "words of our own are always kept"),
        (0, "remora", "2 lines were dropped: the limit of this attempt's log was reached"),
    ]


def test_bytes_count_and_not_characters_and_halves_of_pairs_do_no_harm() -> None:
    account = Account(10)
    account.line(0, "stdout", "ääää\ud800")
    assert account.log_is_full


def test_counters_are_reported_when_they_change() -> None:
    account = Account(1000)
    reported = []
    for progress in (
        Progress(),
        Progress(step=3, total_steps=10),
        Progress(step=3, total_steps=10),
        Progress(step=3, total_steps=10, repeated_steps=1, lost_s=1.23456),
    ):
        account.totals(progress)
        reported.append([record.body for record in account.records(sum(map(len, reported)), 10)])
    assert reported == [
        [{"repeated_steps": 0, "lost_s": 0.0}],
        [{"step": 3, "total_steps": 10}],
        [],
        [{"repeated_steps": 1, "lost_s": 1.235}],
    ]


def test_counters_that_are_not_fetched_are_one_record() -> None:
    account = Account(1000)
    for step in range(1, 100):
        account.totals(Progress(step=step, repeated_steps=step // 2))
    assert bodies(account, "progress") == [{"step": 99, "repeated_steps": 49, "lost_s": 0.0}]


def test_a_text_is_cut_at_the_line_with_which_the_log_is_full() -> None:
    account = Account(10)
    account.line(0, "stdout", "1\n2\näää\n4\n5")
    account.line(0, "stdout", "6\n7")
    account.ended({"end_reason": "completed", "message": "", "exit_code": 0})
    assert [line["text"] for line in bodies(account, "log")] == [
        "1\n2\näää",
        "the log of this attempt reached 10 bytes; later lines are dropped",
        "4 lines were dropped: the limit of this attempt's log was reached",
    ]


def filled(mib: int, *, line: str = "1234567") -> tuple[Account, int, int]:
    """An account that took that number of MiB of short lines, what it held at most, and how many lines that were."""
    text = "\n".join([line] * (65_536 // (len(line.encode()) + 1)))
    tracemalloc.start()
    account = Account(1 << 40)
    texts = 16 * mib
    for _ in range(texts):
        # A text of its own each time, as it comes over the wire.
        account.line(0, "stdout", (text + " ")[:-1])
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return account, most, texts * (text.count("\n") + 1)


def test_lines_are_held_in_about_their_bytes() -> None:
    """15 MB of short lines took 844 MiB."""
    _, small, _ = filled(1)
    account, large, _ = filled(10)
    assert small < 3 << 20
    assert large < 12 << 20
    assert account.free_log_bytes(1) == 0


def test_other_alphabets_are_held_in_the_bytes_of_their_encoding() -> None:
    _, most, _ = filled(10, line="\N{GRINNING FACE} 学習")
    assert most < 12 << 20


def drained(account: Account) -> tuple[list[str], int]:
    """All lines, and how many answers that took."""
    lines: list[str] = []
    answers = after = 0
    while records := account.records(after, 10_000):
        answers += 1
        after = records[-1].seq
        assert sum(rows_of(record) for record in records) < 12_000
        lines += [
            one for record in records if record.kind == "log" for one in record.body["text"].split("\n")
        ]
    return lines, answers


def test_all_lines_come_out_in_as_many_answers_as_there_are_lines_for() -> None:
    account, _, printed = filled(1)
    lines, answers = drained(account)
    assert (len(lines), set(lines)) == (printed, {"1234567"})
    account, _, printed = filled(10)
    lines, more = drained(account)
    assert len(lines) == printed
    assert more <= 11 * answers


def test_fetching_lines_is_linear_in_their_number() -> None:
    def fetch(texts: int) -> int:
        account = Account(1 << 40)
        for number in range(texts):
            account.line(number % 7, "stdout", f"step {number}")
        return steps_of(lambda: drained(account))

    assert grows_linearly(fetch, 1000, times=10)


def test_of_lines_that_are_not_fetched_the_newest_are_stored_and_the_others_counted() -> None:
    account, most, printed = filled(40)
    account.ended({"end_reason": "completed", "message": "", "exit_code": 0})
    assert most < MOST_LINE_BYTES + (3 << 20)
    lines, _ = drained(account)
    count, words = lines[0].split(" ", 1)
    assert words == "lines were left out here: they were not fetched in time"
    assert int(count) + len(lines) - 1 == printed
    assert len(lines) > printed / 4


def test_workers_hold_lines_back_only_while_lines_are_fetched() -> None:
    now = [0.0]
    account = Account(1 << 40, monotonic=lambda: now[0])
    assert account.free_log_bytes(8) == HOLD_BYTES // 8
    account.line(0, "stdout", "the first")
    account.records(0, 1)
    while account.free_log_bytes(8):
        account.line(0, "stdout", "x" * 65_536)
    # A client asks every quarter of a second, and stores nothing.
    for _ in range(1000):
        now[0] += 0.25
        account.records(0, 1)
        assert account.free_log_bytes(8) == 0
    now[0] += AWAY_S + 1.0
    assert account.free_log_bytes(8) > 0, "training goes on without anybody who stores its lines"
    drained(account)
    assert account.free_log_bytes(8) == HOLD_BYTES // 8


def test_what_training_reports_does_not_wait_behind_lines() -> None:
    account, _, _ = filled(4)
    account.event("node.lost", "It is gone.")
    account.measure({"step": 1, "world_size": 1, "values": {"loss": 0.5}})
    assert [record.kind for record in account.records(0, 10_000)][:3] == ["event", "metric", "log"]


def test_events_that_are_not_fetched_are_stored_up_to_a_limit_and_then_counted() -> None:
    account = Account(1000)
    for number in range(MOST_WAITING + 50):
        account.event("checkpoint.abandoned", "The checkpoint was abandoned.", step=number)
    account.put("checkpoint", {"step": 7})
    account.ended({"end_reason": "completed", "message": "", "exit_code": 0})
    records = []
    while new := account.records(records[-1].seq if records else 0, 10_000):
        records += new
    assert [record.seq for record in records] == list(range(1, len(records) + 1))
    kinds = [record.kind for record in records]
    assert kinds.count("event") == MOST_WAITING
    assert kinds[-1] == "ended"
    assert kinds.count("checkpoint") == 1
    (line,) = [record.body["text"] for record in records if record.kind == "log"]
    assert line == "50 events were left out: they were not fetched in time"


def measured(reports: int, names: int = 1) -> Account:
    account = Account(1000)
    values = {f"name {number}": 0.5 for number in range(names)}
    for step in range(1, reports + 1):
        account.measure({"step": step, "world_size": 1, "values": dict(values)})
    account.ended({"end_reason": "completed", "message": "", "exit_code": 0})
    return account


def reported_steps(account: Account) -> list[int]:
    steps: list[int] = []
    after = 0
    while records := account.records(after, 10_000):
        after = records[-1].seq
        steps += [record.body["step"] for record in records if record.kind == "metric"]
    return steps


def test_metrics_that_are_not_fetched_are_stored_within_a_bound_from_the_first_to_the_last() -> None:
    tracemalloc.start()
    account = measured(100_000)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 3 * MOST_METRIC_BYTES
    steps = reported_steps(account)
    assert steps == sorted(steps)
    assert steps[0] < 1000
    assert steps[-1] == 100_000
    assert 2000 < len(steps) < 50_000


def kept(reports: int, names: int) -> list[int]:
    """Steps that are stored of a job that a client asks all the time."""
    pending = PendingMetrics()
    values = {f"name {number}": 0.5 for number in range(names)}
    steps: list[int] = []
    for step in range(1, reports + 1):
        pending.add(0.0, {"step": step, "world_size": 1, "values": values})
        steps += [body["step"] for _, body in pending.take()]
    pending.finish()
    return steps + [body["step"] for _, body in pending.take()]


def test_a_script_that_reports_without_end_leaves_ever_fewer_points(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each report became a row."""
    monkeypatch.setattr("trainers.driver.pending.POINTS", 1000)
    assert kept(900, 1) == list(range(1, 901)), "all of a short one"
    counts = [len(kept(reports, 1)) for reports in (1000, 10_000, 100_000)]
    assert counts[1] < 5000
    assert counts[2] < 2 * counts[1]
    assert kept(100_003, 1)[-1] == 100_003, "the last one is there"


def test_large_points_count_as_several(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainers.driver.pending.POINTS", 1000)
    assert len(kept(10_000, 100)) < len(kept(10_000, 1)) / 5


@pytest.mark.parametrize(("names", "letters"), [(100, 1000), (1, 100_000)])
def test_points_that_are_not_fetched_are_bounded_in_bytes_and_the_newest_is_there(
    names: int, letters: int
) -> None:
    pending, values = PendingMetrics(), {f"{number:0{letters}}": 0.5 for number in range(names)}
    for step in range(1, 501):
        pending.add(0.0, {"step": step, "world_size": 1, "values": values})
    steps = [body["step"] for _, body in pending.take()]
    most = MOST_METRIC_BYTES // sum(map(len, values))
    assert min(most, 500) / 10 < len(steps) <= min(most, 500)
    assert (steps, steps[-1]) == (sorted(steps), 500)
    pending.add(0.0, {"step": 501, "world_size": 1, "values": values})
    assert [body["step"] for _, body in pending.take()] == [501], "what was taken counts no more"


def test_how_many_workers_there_are_is_reported_with_where_they_are() -> None:
    account = Account(1000)
    account.size({"10.0.0.1": 2, "10.0.0.2": 1}, state="running")
    account.ended({"end_reason": "completed", "message": "", "exit_code": 0})
    assert bodies(account, "progress") == [
        {"state": "running", "world_size": 3, "workers": {"10.0.0.1": 2, "10.0.0.2": 1}},
        {"world_size": 0, "workers": {}},
    ]


def test_the_last_word_is_the_last_record() -> None:
    account = Account(1000)
    account.ended({"end_reason": "cancelled", "message": "", "exit_code": None})
    account.line(0, "stdout", "a straggler")
    account.event("node.lost", "too late")
    account.totals(Progress(step=1))
    assert [record.kind for record in account.records(0, 10)] == ["progress", "ended"]


def test_what_was_left_out_is_reported_in_its_place_and_at_the_time_of_the_next_line() -> None:
    waiting, kib = PendingLines(), 64 << 10
    most = MOST_LINE_BYTES // kib
    for number in range(most + 40):
        waiting.add(float(number), 0, "stdout", f"{number}" + "x" * kib, kib + 9)
    assert waiting.counted_bytes <= MOST_LINE_BYTES
    reported = [text for _ in range(most + 2) for text in waiting.take()]
    numbers = [int(at) for at, *_ in reported[1:]]
    assert numbers == list(range(numbers[0], most + 40)), "the newest ones are all there"
    left_out = f"{numbers[0]} lines were left out here: they were not fetched in time"
    assert reported[0] == (reported[1][0], 0, "remora", left_out)
    assert (waiting.take(), waiting.counted_bytes) == ([], 0)
