"""What an attempt reports is kept until it is stored elsewhere."""

from __future__ import annotations

import threading

from trainers.driver.journal import Journal


def test_records_are_numbered_without_gaps_and_forgotten_once_acknowledged() -> None:
    journal = Journal()
    for step in range(5):
        journal.append(float(step), "event", {"step": step})
    assert [record.seq for record in journal.after(0, 3)] == [1, 2, 3]
    assert [record.seq for record in journal.after(0, 3)] == [1, 2, 3], "nothing was acknowledged yet"
    assert [record.seq for record in journal.after(2, 10)] == [3, 4, 5]
    assert journal.after(0, 1)[0].seq == 3
    assert journal.after(5, 10) == []
    journal.append(9.0, "event", {})
    assert journal.after(5, 10)[0].seq == 6


def test_threads_do_not_disturb_the_numbering() -> None:
    journal = Journal()

    def report() -> None:
        for _ in range(200):
            journal.append(0.0, "event", {})

    threads = [threading.Thread(target=report) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [record.seq for record in journal.after(0, 1000)] == list(range(1, 801))


def test_of_what_says_everything_only_the_newest_waits_to_be_asked_for() -> None:
    journal = Journal()
    for count in range(3):
        journal.append(0.0, "output", {"files": count}, is_whole=True)
        journal.append(0.0, "event", {})
    assert [(one.kind, one.body) for one in journal.after(0, 10)] == [
        ("progress", {}), ("event", {}), ("progress", {}), ("event", {}), ("output", {"files": 2}), ("event", {}),
    ]  # fmt: skip
    journal.append(0.0, "output", {"files": 3}, is_whole=True)
    assert [one.body for one in journal.after(4, 10) if one.kind == "output"] == [
        {"files": 2},
        {"files": 3},
    ], "what a worker was given stays as it is"
