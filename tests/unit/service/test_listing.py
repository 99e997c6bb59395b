"""Storages are read a few at a time, again after growing pauses, and only for attempts that count."""

from __future__ import annotations

import threading
from collections import Counter
from itertools import pairwise

import pytest

from service.loops.listing import Listing
from service.queue.driver_records import CheckpointListRecord
from trainers.storage import StorageError

NOTHING = CheckpointListRecord(checkpoints=[])


def test_a_storage_that_fails_is_asked_again_after_pauses_that_grow_to_five_minutes() -> None:
    now, asked_at = 0.0, []

    def read(job_id: str, url: str) -> CheckpointListRecord:
        asked_at.append(now)
        raise StorageError("away")

    listing = Listing(lambda: now, read)
    while now < 2000.0:
        assert listing.ask("att_1", "job_1", "/storage") is None
        listing.wait(30.0)
        # Half a second is far less than the shortest pause.
        now += 0.5
    pauses = [after - before for before, after in pairwise(asked_at)]
    assert pauses[:4] == pytest.approx([1.0, 2.0, 4.0, 8.0], abs=1.5)
    assert pauses[-2:] == pytest.approx([300.0, 300.0], abs=1.5)


def test_four_storages_are_read_at_the_same_time_and_the_others_wait() -> None:
    goes_on = threading.Event()
    begun: list[str] = []

    def read(job_id: str, url: str) -> CheckpointListRecord:
        begun.append(job_id)
        assert goes_on.wait(30.0)
        return NOTHING

    listing = Listing(lambda: 0.0, read)
    jobs = [f"job_{number}" for number in range(10)]
    for _ in range(3):
        assert [listing.ask(f"att_{job}", job, "/storage") for job in jobs] == [None] * 10
    assert sum(one.under_way is not None for one in listing._readings.values()) == 4
    goes_on.set()
    answered: set[str] = set()
    for _ in range(10):
        listing.wait(30.0)
        answered |= {job for job in jobs if listing.ask(f"att_{job}", job, "/storage") is not None}
        if len(answered) == 10:
            break
    assert answered == set(jobs)
    assert set(Counter(begun)) == set(jobs)


def test_attempts_that_no_loop_asks_for_are_forgotten_and_others_are_not() -> None:
    listing = Listing(lambda: 0.0, lambda *_: NOTHING)
    for number in range(3):
        listing.ask(f"att_{number}", "job", "/storage")
    listing.wait(30.0)
    listing.forget_others(["att_1"])
    assert listing.ask("att_1", "job", "/storage") == NOTHING
    assert listing.ask("att_2", "job", "/storage") is None, "it is read again"
