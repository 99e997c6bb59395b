"""The end of an attempt lies beside its claim before anything reports it."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainers.driver.account import Account
from trainers.driver.progress import Progress
from trainers.launch import RayLauncher
from trainers.plan import Record
from trainers.storage import Storage, StorageError
from trainers.stored_ends import MOST_BYTES, StoredEnds, records_in

END = {"end_reason": "completed", "message": "", "exit_code": 0}


def account() -> Account:
    """Of an attempt that has done everything that it can report."""
    made = Account(1000, lambda: 5.0)
    made.event("attempt.driver_started", "The driver of this attempt runs.")
    made.put("metric", {"step": 1, "world_size": 1, "values": {}})
    made.line(0, "stdout", "hello")
    made.event("checkpoint.requested", "A checkpoint is asked for.")
    return made


def read(launcher: RayLauncher, storage: Path) -> Sequence[Record]:
    while (found := launcher.stored_end("att_1", job_id="job_1", storage_url=str(storage), after=0)) is None:
        for thread in threading.enumerate():
            if thread.name == "storage-of-attempts":
                thread.join(10.0)
    return found


def test_what_was_not_stored_yet_comes_back_in_order_with_the_end_behind_it(tmp_path: Path) -> None:
    ends, attempt = StoredEnds(Storage(tmp_path), "job_1"), account()
    assert ends.write("att_1", attempt.last_records(END))
    found = ends.read("att_1", 0)
    assert [(one.kind, one.body.get("kind")) for one in found] == [
        ("event", "attempt.driver_started"),
        ("event", "checkpoint.requested"),
        ("progress", None),
        ("ended", None),
    ]
    assert [one.seq for one in found] == sorted({one.seq for one in found})
    assert found[-1].body == END
    assert found[-2].body == {"world_size": 0, "workers": {}}


def test_of_what_was_stored_only_the_rest_and_the_end_come_back(tmp_path: Path) -> None:
    ends, attempt = StoredEnds(Storage(tmp_path), "job_1"), account()
    ends.write("att_1", attempt.last_records(END))
    attempt.ended(END)
    handed = attempt.records(0, 100)
    for stored in handed[:-1]:
        found = ends.read("att_1", stored.seq)
        assert found[-1].kind == "ended"
        assert found[0].seq > stored.seq


def test_totals_that_nothing_has_fetched_are_in_it(tmp_path: Path) -> None:
    ends, attempt = StoredEnds(Storage(tmp_path), "job_1"), account()
    attempt.stalled_s = 3.0
    attempt.totals(Progress(step=7))
    ends.write("att_1", attempt.last_records(END))
    assert {"step": 7, "stalled_s": 3.0}.items() <= ends.read("att_1", 0)[-3].body.items()


def test_an_attempt_that_has_not_ended_has_none(tmp_path: Path) -> None:
    assert StoredEnds(Storage(tmp_path), "job_1").read("att_1", 0) == []


def test_an_end_that_is_too_long_is_not_stored(tmp_path: Path) -> None:
    ends = StoredEnds(Storage(tmp_path), "job_1")
    assert not ends.write("att_1", [Record(seq=0, at=1.0, kind="ended", body={"message": "x" * MOST_BYTES})])
    assert ends.read("att_1", 0) == []


ROWS: tuple[Any, ...] = (
    {},
    [],
    [[1, 2.0, "ended"]],
    [[1, 2.0, "ended", {}, 0]],
    [[-1, 2.0, "ended", {}]],
    [["1", 2.0, "ended", {}]],
    [[1, 10**400, "ended", {}]],
    [[1, float("nan"), "ended", {}]],
    [[1, 2.0, "ended", []]],
    [[1, 2.0, "progress", {}]],
    [[1, 2.0, "ended", {}], None],
)


@pytest.mark.parametrize("rows", ROWS, ids=lambda rows: str(rows)[:30])
def test_a_file_of_strangers_ends_nothing(tmp_path: Path, rows: Any) -> None:
    folder = tmp_path / "jobs" / "job_1" / "claims"
    folder.mkdir(parents=True)
    (folder / "att_1.end").write_text(json.dumps(rows))
    assert StoredEnds(Storage(tmp_path), "job_1").read("att_1", 0) == []


@pytest.mark.parametrize("content", [b"", b"\xff", b"[" * 100_000, b"9" * 10_000, b"x" * (MOST_BYTES + 1)])
def test_nor_does_what_is_no_json(tmp_path: Path, content: bytes) -> None:
    folder = tmp_path / "jobs" / "job_1" / "claims"
    folder.mkdir(parents=True)
    (folder / "att_1.end").write_bytes(content)
    assert StoredEnds(Storage(tmp_path), "job_1").read("att_1", 0) == []


@given(seqs=st.lists(st.integers(0, 50), min_size=1, max_size=20), after=st.integers(0, 60))
def test_records_come_once_and_after_what_is_stored(seqs: list[int], after: int) -> None:
    rows = [[seq, 1.0, "event", {}] for seq in sorted({seq for seq in seqs if seq})]
    rows += [[0, 1.0, "progress", {}], [0, 1.0, "ended", {}]]
    found = records_in(json.dumps(rows).encode(), after)
    numbers = [one.seq for one in found]
    assert numbers == sorted(set(numbers))
    assert min(numbers) > after
    assert [one.kind for one in found[-2:]] == ["progress", "ended"]


def test_the_service_reads_it_without_waiting_for_a_slow_storage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    StoredEnds(Storage(tmp_path), "job_1").write("att_1", account().last_records(END))
    answers, reads = threading.Event(), Storage.read_bytes

    def slow(self: Storage, *arguments: Any) -> bytes:
        assert answers.wait(10.0)
        return reads(self, *arguments)

    monkeypatch.setattr(Storage, "read_bytes", slow)
    launcher = RayLauncher()
    for _ in range(2):
        assert launcher.stored_end("att_1", job_id="job_1", storage_url=str(tmp_path), after=0) is None
    answers.set()
    assert read(launcher, tmp_path)[-1].body == END


@pytest.mark.parametrize("error", [StorageError("it does not answer"), RuntimeError("no client")], ids=repr)
def test_a_storage_that_fails_is_asked_again_for_a_minute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    now = [100.0]
    monkeypatch.setattr("trainers.launch.time.monotonic", lambda: now[0])
    failures: list[str] = []

    def fails(self: Storage, name: str, *_: Any) -> bytes:
        failures.append(name)
        now[0] += 25.0
        raise error

    monkeypatch.setattr(Storage, "read_bytes", fails)
    assert read(RayLauncher(), tmp_path) == []
    assert len(failures) == 3, "the third try ends 75 s after the first began"


def test_a_storage_that_never_answers_is_given_up_after_a_minute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, answers = [100.0], threading.Event()
    monkeypatch.setattr("trainers.launch.time.monotonic", lambda: now[0])
    monkeypatch.setattr(Storage, "read_bytes", lambda *_: answers.wait(10.0))
    launcher = RayLauncher()
    ask = partial(launcher.stored_end, "att_1", job_id="job_1", storage_url=str(tmp_path), after=0)
    assert ask() is None
    now[0] += 59.0
    assert ask() is None
    now[0] += 2.0
    assert ask() == []
    answers.set()


def test_however_many_drivers_are_lost_at_once_few_threads_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers, reads = threading.Event(), Storage.read_bytes

    def slow(self: Storage, *arguments: Any) -> bytes:
        assert answers.wait(10.0)
        return reads(self, *arguments)

    monkeypatch.setattr(Storage, "read_bytes", slow)
    launcher, left = RayLauncher(), {f"att_{number}" for number in range(200)}

    def ask(attempt_id: str) -> Sequence[Record] | None:
        return launcher.stored_end(attempt_id, job_id="job_1", storage_url=str(tmp_path), after=0)

    assert [ask(one) for one in left] == [None] * 200
    reading = [one for one in threading.enumerate() if one.name == "storage-of-attempts"]
    assert len(reading) == 64
    answers.set()
    while left:
        for thread in threading.enumerate():
            if thread.name == "storage-of-attempts":
                thread.join(10.0)
        left = {one for one in left if ask(one) is None}
