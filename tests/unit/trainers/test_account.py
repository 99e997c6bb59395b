"""What an attempt tells: once, within the limit of its log, and nothing after its last word."""

from __future__ import annotations

from typing import Any

from trainers.driver.account import Account
from trainers.driver.progress import Progress


def bodies(account: Account, kind: str) -> list[dict[str, Any]]:
    return [record.body for record in account.records(0, 1000) if record.kind == kind]


def test_records_carry_the_time_at_which_they_happened_and_are_forgotten_once_stored() -> None:
    account = Account(1000, now=lambda: 42.0)
    account.event("worker_group.grow", "There is room.", deadline_at=None)
    account.progress(state="running", world_size=2)
    first, second = account.records(0, 10)
    assert (first.seq, first.at, first.kind) == (1, 42.0, "event")
    assert first.body == {
        "kind": "worker_group.grow",
        "message": "There is room.",
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


def test_counters_are_told_when_they_change() -> None:
    account = Account(1000)
    account.totals(Progress())
    account.totals(Progress(step=3, total_steps=10))
    account.totals(Progress(step=3, total_steps=10))
    account.totals(Progress(step=3, total_steps=10, repeated_steps=1, lost_s=1.23456))
    assert bodies(account, "progress") == [
        {"repeated_steps": 0, "lost_s": 0.0},
        {"step": 3, "total_steps": 10},
        {"repeated_steps": 1, "lost_s": 1.235},
    ]


def test_how_many_workers_there_are_is_told_with_where_they_are() -> None:
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
