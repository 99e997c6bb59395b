"""What Scheduled Events say, and what they mean for a node."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.local.environment import ray_environment
from cluster.node.agent.scheduled_events import (
    LEAST_WINDOW_S,
    LONGEST_PAUSE_S,
    PREEMPT_NOTICE_S,
    Advice,
    Document,
    DrainNotice,
    MalformedDocument,
    Pause,
    ScheduledEvent,
    concerns,
    meaning,
    parse,
)

#: Tue, 09 Aug 2022 17:07:32 GMT.
NOT_BEFORE = 1660064852.0
NOW = NOT_BEFORE - 25.0

#: As Azure's documentation has it.
ENTRY: dict[str, Any] = {
    "EventId": "C7061BAC-AFDC-4513-B24B-AA5F13A16123",
    "EventStatus": "Scheduled",
    "EventType": "Preempt",
    "ResourceType": "VirtualMachine",
    "Resources": ["w0"],
    "NotBefore": "Tue, 09 Aug 2022 17:07:32 GMT",
    "Description": "",
    "EventSource": "Platform",
    "DurationInSeconds": -1,
}


def event(**fields: Any) -> ScheduledEvent:
    (found,) = parse({"DocumentIncarnation": 2, "Events": [{**ENTRY, **fields}]}).events
    return found


def test_an_entry_is_read_as_azure_writes_it() -> None:
    assert event() == ScheduledEvent(
        id=ENTRY["EventId"], type="Preempt", resources=("w0",), not_before=NOT_BEFORE, source="Platform"
    )
    assert event(DurationInSeconds=9).duration_s == 9.0
    assert event(EventType="preempt").type == "Preempt"
    assert parse({"DocumentIncarnation": 1, "Events": []}) == Document(incarnation=1)


@pytest.mark.parametrize(
    ("body", "what"),
    [
        (None, "no JSON object"),
        ([], "no JSON object"),
        ({}, "no list of Events"),
        ({"Events": {}, "DocumentIncarnation": 1}, "no list of Events"),
        ({"Events": []}, "no DocumentIncarnation"),
        ({"Events": [], "DocumentIncarnation": "1"}, "no DocumentIncarnation"),
    ],
)
def test_what_is_no_document_is_malformed(body: object, what: str) -> None:
    with pytest.raises(MalformedDocument, match=what):
        parse(body)


def test_entries_that_cannot_be_understood_do_not_hide_the_others() -> None:
    broken = ["w0", {}, {"EventId": 7, "EventType": "Preempt"}, {"EventId": "a", "EventType": None}]
    assert parse({"DocumentIncarnation": 2, "Events": [*broken, ENTRY]}).events == (event(),)


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda one: st.lists(one)
    | st.dictionaries(st.sampled_from([*ENTRY, "Events", "DocumentIncarnation"]), one)))  # fmt: skip
def test_no_answer_whatever_breaks_the_reader(body: object) -> None:
    for entries in (
        body,
        [body],
        [{**ENTRY, "NotBefore": body, "Resources": body, "DurationInSeconds": body}],
    ):
        try:
            document = parse({"DocumentIncarnation": 1, "Events": entries})
        except MalformedDocument:
            continue
        for one in document.events:
            meaning(one, NOW)


def test_only_machines_that_it_names_are_concerned_whatever_their_case() -> None:
    assert concerns(event(Resources=["W0", "w1"]), "w0")
    assert not concerns(event(Resources=["w10"]), "w1")
    assert not concerns(event(Resources=None), "w0")


@pytest.mark.parametrize("kind", ["Preempt", "Terminate", "Reboot", "Redeploy"])
def test_what_ends_the_machine_drains_it_until_its_true_deadline(kind: str) -> None:
    assert meaning(event(EventType=kind), NOW) == DrainNotice(
        deadline_at=NOT_BEFORE, reason=f"{kind} by the cloud"
    )


def test_a_user_s_event_and_its_description_are_reported() -> None:
    said = meaning(event(EventType="Redeploy", EventSource="User", Description="az vm redeploy"), NOW)
    assert said == DrainNotice(
        deadline_at=NOT_BEFORE, reason="Redeploy of its owner's by the cloud: az vm redeploy"
    )


def test_a_short_pause_is_borne_and_none_at_all_is_nothing() -> None:
    for duration_s in (2, 6):
        pause = meaning(event(EventType="Freeze", DurationInSeconds=duration_s), NOW)
        assert pause == Pause(reason="Freeze by the cloud", duration_s=duration_s)
    assert meaning(event(EventType="Freeze", DurationInSeconds=0), NOW) is None


@pytest.mark.parametrize(
    ("reported", "how_long"),
    [
        (7, "7 s"),
        (30, "30 s"),
        (-1, "an unknown time"),
        (None, "an unknown time"),
        (10**400, "an unknown time"),
    ],
    ids=["above the limit", "long", "as Azure says that it is unknown", "missing", "enormous"],
)
def test_a_pause_that_is_long_or_of_unknown_length_is_left_as_a_reboot_is(
    reported: object, how_long: str
) -> None:
    said = meaning(event(EventType="Freeze", DurationInSeconds=reported, Description="host repair"), NOW)
    reason = f"Freeze for {how_long} by the cloud: host repair"
    assert said == DrainNotice(deadline_at=NOT_BEFORE, reason=reason, ends_processes=False)


def test_a_pause_that_is_borne_is_shorter_than_the_head_waits_for_a_silent_node(tmp_path: Path) -> None:
    settings = ray_environment(tmp_path)
    checks = int(settings["RAY_health_check_failure_threshold"])
    period_s, timeout_s = (
        int(settings[f"RAY_health_check_{one}_ms"]) / 1000 for one in ("period", "timeout")
    )
    # At the soonest the first check comes as the pause begins.
    lost_after_s = checks * timeout_s + (checks - 1) * period_s
    assert lost_after_s / 2 < LONGEST_PAUSE_S <= lost_after_s - timeout_s


@pytest.mark.parametrize(
    "reported",
    [10**400, -(10**400), 1e300, math.inf, math.nan, -1, True, "9", None, [9]],
    ids=lambda one: repr(one)[:9],
)
def test_a_duration_that_cannot_be_meant_is_unknown(reported: object) -> None:
    assert event(DurationInSeconds=reported).duration_s is None


def test_words_that_are_not_known_are_reported_and_nothing_is_done() -> None:
    advice = meaning(event(EventType="SpotRebalanceRecommendation"), NOW)
    assert isinstance(advice, Advice)
    assert "recommends to leave" in advice.reason
    unknown = meaning(event(EventType="Teleport"), NOW)
    assert isinstance(unknown, Advice)
    assert "'Teleport', which is not known" in unknown.reason


class TestTheDeadline:
    def of(self, now: float, skew_s: float = 0.0, **fields: Any) -> float:
        means = meaning(event(**fields), now, skew_s)
        assert isinstance(means, DrainNotice)
        return means.deadline_at - now

    def test_is_counted_by_this_machine_s_clock(self) -> None:
        # This machine's clock is 60 s behind: by it the event comes in 85 s, in truth in 25.
        assert self.of(NOW - 60.0, 60.0) == 25.0
        # And one that is ahead does not make it late.
        assert self.of(NOW + 60.0, -60.0) == 25.0

    def test_of_a_preemption_is_never_longer_than_its_notice(self) -> None:
        assert self.of(NOW - 3600.0) == PREEMPT_NOTICE_S
        assert self.of(NOW - 600.0, EventType="Terminate") == 625.0

    @pytest.mark.parametrize(
        "fields",
        [
            {"EventStatus": "Started", "NotBefore": ""},
            {"NotBefore": ""},
            {"NotBefore": "soon"},
            {"NotBefore": 7},
        ],
    )
    def test_that_is_not_announced_is_near(self, fields: dict[str, Any]) -> None:
        assert self.of(NOW, **fields) == LEAST_WINDOW_S

    def test_that_has_passed_leaves_a_window(self) -> None:
        assert self.of(NOT_BEFORE + 100.0) == LEAST_WINDOW_S
