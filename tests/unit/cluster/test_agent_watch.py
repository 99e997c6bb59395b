"""What the agent does about what it hears, look by look."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from cluster.node.agent.scheduled_events import Document, ScheduledEvent
from cluster.node.agent.watch import (
    ANSWER_S,
    SICK_DRAIN_S,
    SOFT_END_S,
    Acknowledge,
    Action,
    DrainNode,
    EndSoftly,
    Look,
    Report,
    State,
    acknowledged,
    drained,
    says,
    step,
)
from cluster.scheduling.formatting import clock

NOW = 1000.0
PREEMPT = ScheduledEvent(id="e1", type="Preempt", resources=("w0",), not_before=NOW + 20.0)
DRAIN = DrainNode(deadline_at=NOW + 20.0, reason="Preempt by the cloud")


class Watcher:
    """The machine w0, whose looks follow each other."""

    def __init__(self) -> None:
        self.state = State()
        self.reported: list[str] = []

    def look(self, *events: ScheduledEvent, after_s: float = 0.0, **fields: Any) -> list[Action]:
        document = fields.pop("document", Document(incarnation=1, events=events))
        self.state, actions = step(self.state, "w0", Look(now=NOW + after_s, document=document, **fields))
        self.reported += [action.message for action in actions if isinstance(action, Report)]
        return [action for action in actions if not isinstance(action, Report)]

    def accept(self, actions: Sequence[Action]) -> None:
        """The head drains, the cloud takes its answer."""
        for action in actions:
            if isinstance(action, DrainNode):
                self.state = drained(self.state, action.deadline_at)
            if isinstance(action, Acknowledge):
                self.state = acknowledged(self.state, action.event_id)


def test_a_preemption_is_drained_and_acknowledged_once_nothing_is_left_on_the_node() -> None:
    watcher = Watcher()
    assert watcher.look() == []
    first = watcher.look(PREEMPT)
    assert first == [DRAIN]
    assert says(watcher.state) is None, "the drain says it"
    assert watcher.reported == [
        f"Preempt by the cloud; its work has to leave this machine within 20 s, by {clock(NOW + 20.0)}"
    ]
    watcher.accept(first)
    assert watcher.look(PREEMPT, after_s=1, is_empty=False) == []
    assert watcher.look(PREEMPT, after_s=2, is_empty=None) == []
    last = watcher.look(PREEMPT, after_s=3, is_empty=True)
    assert last == [Acknowledge(event_id="e1")]
    assert watcher.look(PREEMPT, after_s=4, is_empty=True) == last, "until the cloud has taken it"
    watcher.accept(last)
    assert watcher.look(PREEMPT, after_s=5, is_empty=True) == []


@pytest.mark.parametrize("is_empty", [False, None])
@pytest.mark.parametrize("not_before", [NOW + 120.0, NOW + 20.0, None])
def test_work_that_stays_is_never_given_away_by_an_answer(
    is_empty: bool | None, not_before: float | None
) -> None:
    # The deadline that is counted on is 30 s, 20 s or 5 s away; the cloud may wait for longer.
    watcher = Watcher()
    event = replace(PREEMPT, not_before=not_before)
    watcher.accept(watcher.look(event))
    for after_s in (1, 5, 20, 30, 60, 119, 600):
        assert not [
            action
            for action in watcher.look(event, after_s=after_s, is_empty=is_empty)
            if isinstance(action, Acknowledge)
        ]
    assert watcher.look(event, after_s=601, is_empty=True) == [Acknowledge(event_id="e1")]


def test_an_event_that_names_several_machines_is_acknowledged_by_none_of_them() -> None:
    """One answer lets the cloud take all of them, and the others may still have work."""
    watcher = Watcher()
    several = replace(PREEMPT, resources=("w0", "w1"))
    watcher.accept(watcher.look(several))
    assert watcher.look(several, after_s=1, is_empty=True) == []
    same_twice = replace(PREEMPT, resources=("w0", "W0"))
    assert watcher.look(same_twice, after_s=2, is_empty=True) == [Acknowledge(event_id="e1")]


def test_an_empty_node_that_was_not_drained_is_not_safe() -> None:
    watcher = Watcher()
    assert watcher.look(PREEMPT, is_empty=True) == [DRAIN], "work may still be sent there"


def test_a_head_that_does_not_answer_is_asked_until_the_workers_must_be_ended() -> None:
    watcher = Watcher()
    assert watcher.look(PREEMPT) == [DRAIN]
    assert watcher.look(PREEMPT, after_s=10) == [DRAIN]
    soft = watcher.look(PREEMPT, after_s=20 - SOFT_END_S)
    assert soft == [DRAIN, EndSoftly(reason="Preempt by the cloud; the head did not answer")]
    assert watcher.look(PREEMPT, after_s=17) == [DRAIN], "once is enough"
    assert watcher.look(PREEMPT, after_s=20) == [DRAIN], "what it writes may still be written"


@pytest.mark.parametrize(
    "near",
    [{"is_started": True, "not_before": None}, {"not_before": None}, {"not_before": NOW - 60}, {"not_before": NOW + 3}],
    ids=["begun", "without a time", "past", "near"],
)  # fmt: skip
def test_a_head_has_time_to_answer_however_near_the_deadline_is(near: dict[str, Any]) -> None:
    event = replace(PREEMPT, **near)
    watcher = Watcher()
    (first,) = watcher.look(event)
    assert isinstance(first, DrainNode)
    assert watcher.look(event, after_s=1) == [first]
    soft = EndSoftly(reason="Preempt by the cloud; the head did not answer")
    assert watcher.look(event, after_s=ANSWER_S) == [first, soft]


def test_a_head_that_answers_in_time_ends_what_runs_by_itself() -> None:
    begun = replace(PREEMPT, not_before=None, is_started=True)
    watcher = Watcher()
    watcher.accept(watcher.look(begun))
    assert [watcher.look(begun, after_s=after_s) for after_s in (1, ANSWER_S, 5, 60)] == [[]] * 4


def test_each_notice_gives_the_head_its_time() -> None:
    begun = replace(PREEMPT, id="e2", not_before=None, is_started=True)
    watcher = Watcher()
    watcher.look(PREEMPT)
    assert watcher.look(after_s=5) == [], "it was cancelled before the head had answered"
    (asked,) = watcher.look(begun, after_s=60)
    assert isinstance(asked, DrainNode)


def test_a_machine_that_stands_still_keeps_its_workers_though_the_head_does_not_answer() -> None:
    freeze = ScheduledEvent(id="e4", type="Freeze", resources=("w0",), is_started=True, duration_s=30.0)
    watcher = Watcher()
    first = watcher.look(freeze)
    assert [watcher.look(freeze, after_s=after_s) for after_s in (1, 5, 60)] == [first] * 3
    (_, soft) = watcher.look(freeze, replace(PREEMPT, not_before=NOW + 90), after_s=89)
    assert soft == EndSoftly(reason="Preempt by the cloud; the head did not answer")


def test_a_metadata_service_that_is_away_takes_no_notice_back() -> None:
    watcher = Watcher()
    watcher.look(PREEMPT)
    assert watcher.look(document=None, after_s=5) == [DRAIN]
    watcher.accept([DRAIN])
    assert watcher.look(document=None, after_s=6, is_empty=True) == [Acknowledge(event_id="e1")]


def test_an_event_that_begins_early_moves_the_drain() -> None:
    terminate = ScheduledEvent(id="e1", type="Terminate", resources=("w0",), not_before=NOW + 300.0)
    begun = ScheduledEvent(id="e1", type="Terminate", resources=("w0",), is_started=True)
    watcher = Watcher()
    watcher.accept(watcher.look(terminate))
    (sooner,) = watcher.look(begun, after_s=50)
    assert isinstance(sooner, DrainNode)
    assert sooner.deadline_at == NOW + 55.0
    watcher.accept([sooner])
    assert watcher.look(begun, after_s=52, is_empty=True) == [], "what has begun needs no answer"


def test_the_nearest_of_several_deadlines_counts() -> None:
    redeploy = ScheduledEvent(id="e2", type="Redeploy", resources=("w0",), not_before=NOW + 600.0)
    watcher = Watcher()
    (first,) = watcher.look(redeploy)
    watcher.accept([first])
    assert watcher.look(redeploy, PREEMPT) == [DRAIN]


def test_a_clock_that_runs_unevenly_does_not_drain_again_and_again() -> None:
    watcher = Watcher()
    watcher.accept(watcher.look(PREEMPT, skew_s=4.0))
    assert watcher.look(PREEMPT, after_s=1, skew_s=4.6, is_empty=False) == []


def test_events_of_other_machines_and_pauses_and_unknown_words_drain_no_node() -> None:
    watcher = Watcher()
    other = ScheduledEvent(id="e3", type="Preempt", resources=("w1",), not_before=NOW + 20.0)
    freeze = ScheduledEvent(id="e4", type="Freeze", resources=("w0",), duration_s=2.0)
    unknown = ScheduledEvent(id="e5", type="Teleport", resources=("w0",))
    assert watcher.look(other, freeze, unknown) == []
    assert watcher.look(other, freeze, unknown, after_s=1) == []
    assert watcher.reported == [
        "Freeze by the cloud; this machine pauses for 2 s, and its work stays",
        "the cloud announces 'Teleport', which is not known here",
    ]
    assert says(watcher.state) == "; ".join(watcher.reported), "for operators, as long as it is announced"
    watcher.look(after_s=2)
    assert says(watcher.state) is None
    assert watcher.reported[2:] == [f"the cloud's event {one} is done or cancelled" for one in ("e4", "e5")]


def test_a_machine_that_stands_still_for_too_long_is_left_and_is_answered_for_when_it_is_empty() -> None:
    watcher = Watcher()
    freeze = ScheduledEvent(id="e4", type="Freeze", resources=("w0",), not_before=NOW + 900.0)
    first = watcher.look(freeze)
    reason = "Freeze for an unknown time by the cloud"
    assert first == [DrainNode(deadline_at=NOW + 900.0, reason=reason)]
    assert watcher.reported == [
        f"{reason}; its work has to leave this machine within 900 s, by {clock(NOW + 900.0)}"
    ]
    watcher.accept(first)
    assert watcher.look(freeze, after_s=60, is_empty=False) == []
    assert watcher.look(freeze, after_s=61, is_empty=True) == [Acknowledge(event_id="e4")]


def test_a_cancelled_preemption_asks_for_nothing_more() -> None:
    watcher = Watcher()
    watcher.look(PREEMPT)
    assert watcher.look(after_s=1) == []
    assert watcher.look(after_s=30) == []


def test_a_sick_machine_lets_its_work_leave_with_time() -> None:
    watcher = Watcher()
    first = watcher.look(problems=["XID 79 on 0000:3b:00: GPU has fallen off the bus"])
    reason = "this machine is sick: XID 79 on 0000:3b:00: GPU has fallen off the bus"
    assert first == [DrainNode(deadline_at=NOW + SICK_DRAIN_S, reason=reason)]
    watcher.accept(first)
    assert watcher.look(after_s=1, problems=["something else"]) == []
    assert watcher.look(PREEMPT, after_s=2) == [DRAIN], "and a notice still counts"
    assert watcher.reported[0] == reason
