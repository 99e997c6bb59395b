"""How records and events become a table of where the time of a recovery went."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from benchmarks.recovery_parts import (
    OF_SUBMISSION,
    PAUSED,
    growth_parts,
    loss_parts,
    medians,
    paused_ms,
    submission_parts,
)
from benchmarks.recovery_table import BEGIN, END, lines, with_table


@dataclass(frozen=True)
class Stored:
    at: float
    kind: str
    body: dict[str, Any] = field(default_factory=dict)


def metric(at: float, world_size: int) -> Stored:
    return Stored(at, "metric", {"step": 1, "world_size": world_size, "values": {}})


def event(at: float, kind: str, **data: Any) -> Stored:
    return Stored(at, "event", {"kind": kind, "message": "", "data": data})


def regrouped(at: float, cause: str, size: int, **spoken: float) -> Stored:
    parts = {
        "park_s": 0.04,
        "prepare_s": 0.01,
        "join_s": 0.15,
        "connect_s": 0.02,
        "form_s": 0.05,
        "move_s": 0.03,
    }
    return event(
        at, "worker_group.regrouped", cause=cause, world_size=size, pause_s=0.2, parts={**parts, **spoken}
    )


def test_the_parts_of_a_loss_add_up_to_the_time_until_the_next_step() -> None:
    records = [
        regrouped(50.0, "loss", 2),
        metric(99.9, 3),
        metric(100.1, 3),
        regrouped(100.5, "loss", 2, noticed_s=0.1),
        metric(100.52, 2),
        metric(100.6, 2),
    ]
    parts = loss_parts(records, killed_at=100.0)
    assert parts == {
        "closed socket seen": 200.0, "parked, driver heard": 100.0, "all parked, lost node known": 40.0,
        "each has answered": 10.0, "new ranks delivered": 50.0, "rendezvous": 20.0, "process group formed": 50.0,
        "state moved": 30.0, "next step": 20.0,
    }  # fmt: skip
    assert sum(parts.values()) == pytest.approx(520.0)


def test_growth_is_measured_from_the_ready_node_to_the_first_step_with_it() -> None:
    records = [
        event(50.0, "worker.ready", actor_s=9.0, command_s=9.0, load_s=9.0),
        event(103.0, "worker.ready", actor_s=0.4, command_s=0.1, load_s=0.5),
        regrouped(103.3, "grow", 3),
        metric(103.25, 2),
        metric(103.35, 3),
    ]
    parts = growth_parts(records, added_at=99.0, ready_at=101.0)
    assert list(parts.values())[:5] == [1000.0, 400.0, 100.0, 500.0, 100.0]
    assert sum(parts.values()) == pytest.approx(2350.0)
    assert paused_ms(parts) == 250.0, "the others train until they are parked"


def test_a_submission_is_cut_by_the_events_of_its_job() -> None:
    kinds = [
        "job.queued",
        "attempt.created",
        "attempt.driver_started",
        "worker_group.started",
        "training.began",
    ]

    @dataclass(frozen=True)
    class Event:
        at: float
        kind: str

    events = [Event(100.0 + place, kind) for place, kind in enumerate(kinds, start=1)]
    parts = submission_parts(events, began_at=100.0, seen_at=105.5)
    assert list(parts.values()) == [1000.0] * 5 + [500.0]


def test_what_did_not_happen_is_no_figure() -> None:
    with pytest.raises(LookupError, match=r"no event worker_group\.regrouped after 100"):
        loss_parts([regrouped(50.0, "loss", 2)], killed_at=100.0)


def test_the_whole_is_the_median_of_wholes() -> None:
    tries = [{"a": 1.0, "b": 9.0}, {"a": 2.0, "b": 2.0}, {"a": 3.0, "b": 3.0}]
    assert medians(tries) == {"a": 2.0, "b": 3.0, "total": 6.0}


DOCUMENT: dict[str, Any] = {
    "recovery_ms": {
        "loss": {"closed socket seen": 20.4, "next step": 30.0, "total": 50.0},
        "growth": {"step agreed on": 5.0, "all parked": 7.0, "total": 12.0},
        "submission": {"driver began": 1500.0, "total": 1500.0},
    },
    "pause_ms": 7.0,
    "floors_ms": {"closed socket seen": 2.2},
    "goals_ms": {"loss": 500.0, "growth": 300.0, "submission": 2000.0},
    "rounds": {"loss": 3, "growth": 3, "submission": 4},
    "cores": 2,
    "load": 1.5,
}


def test_the_table_has_every_part_with_what_it_takes_alone_and_the_goals() -> None:
    table = list(lines(DOCUMENT))
    assert "| closed socket seen | 20 | 2 | |" in table
    assert "| *in all* | 50 | | 500 |" in table
    assert any(line.endswith("| 7 | | 300 |") and "pause" in line for line in table[-6:])
    assert table[-1] == "| *in all* | 1500 | | 2000 |"


def test_the_table_of_the_page_is_replaced_and_nothing_else_is() -> None:
    page = f"before\n{BEGIN}\nold figures\n{END}\nafter\n"
    made = with_table(page, DOCUMENT)
    assert made.startswith("before\n")
    assert made.endswith("\nafter\n")
    assert "old figures" not in made
    assert with_table(made, DOCUMENT) == made
    with pytest.raises(ValueError, match="has no line"):
        with_table("no place", DOCUMENT)


def test_the_page_has_the_table_of_the_parts_that_are_measured() -> None:
    page = (Path(__file__).parents[3] / "docs" / "benchmarks.md").read_text()
    table = page.partition(BEGIN)[2].partition(END)[0]
    shared = [part for part in PAUSED if part not in ("all parked", "first step")]
    assert [part for part in (*shared, *OF_SUBMISSION.values()) if f"| {part} |" not in table] == []
