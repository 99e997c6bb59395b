"""Spans of attempts: of any life of an attempt, sent at any times, they are one tree in the order of time."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remora.states import AttemptState, EndReason
from service.queue.rows import AttemptRow, JobRow, PhaseRow, WorkPhase
from service.queue.spans import (
    MOST_PHASES,
    AttemptFacts,
    AttemptSpan,
    Wait,
    context_of,
    spans_of,
    traced_until,
    traceparent_of,
    wait_of,
)
from tests.service_fakes import job_row

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SENDER = f"00-{TRACE}-{PARENT}-01"
JOB = job_row(1000.0, traceparent=SENDER, id="job_1")


def facts(*durations: float, job: JobRow = JOB, first_step: int = 3, **fields: object) -> AttemptFacts:
    """An attempt from 1010 on with phases of these durations, the newest of which is open."""
    kinds = [
        WorkPhase.STARTING,
        WorkPhase.PREPARING,
        WorkPhase.RUNNING,
        WorkPhase.TRAINING,
        WorkPhase.CHECKPOINT,
    ]
    rows, at = [], 1010.0
    for number, lasted in enumerate((*durations, 0.0), start=1):
        phase = kinds[min(number - 1, 3 + number % 2)]
        rows.append(PhaseRow(job_id=job.id, attempt=1, number=number, began_at=at, phase=phase))
        at += lasted
    trained_at = rows[first_step].began_at if len(rows) > first_step else None
    attempt = AttemptRow(
        id="att_1",
        job_id=job.id,
        attempt=1,
        created_at=1010.0,
        state=AttemptState.RUNNING,
        phase=rows[-1].phase,
        phase_at=rows[-1].began_at,
        phase_number=len(rows),
        trained_at=trained_at,
    )
    waits = [Wait(1000.0, None), Wait(1001.0, "waiting_for_turn"), Wait(1004.0, "waiting_for_nodes")]
    attempt = replace(attempt, **fields)  # type: ignore[arg-type]
    return AttemptFacts(job=job, attempt=attempt, waits_since=1000.0, waits=waits, phases=rows)


def ended(found: AttemptFacts, at: float, reason: EndReason = EndReason.COMPLETED) -> AttemptFacts:
    over = replace(found.attempt, state=AttemptState.ENDED, ended_at=at, end_reason=reason)
    return replace(found, attempt=over)


def sent(found: AttemptFacts) -> AttemptFacts:
    """What is noted once its spans were sent."""
    attempt = found.attempt
    noted = replace(attempt, traced_at=traced_until(attempt), is_traced=attempt.ended_at is not None)
    return replace(found, attempt=noted)


def by_name(spans: tuple[AttemptSpan, ...]) -> dict[str, AttemptSpan]:
    assert len({one.name for one in spans}) == len(spans)
    return {one.name: one for one in spans}


def test_the_way_to_the_first_step_is_below_the_request() -> None:
    found = by_name(spans_of(facts(2.0, 3.0, 5.0)))
    assert [(one.name, one.began_at, one.ended_at) for one in found.values()] == [
        ("queued", 1000.0, 1010.0),
        ("waiting_for_turn", 1001.0, 1004.0),
        ("waiting_for_nodes", 1004.0, 1010.0),
        ("start", 1010.0, 1020.0),
        ("starting", 1010.0, 1012.0),
        ("preparing", 1012.0, 1015.0),
        ("running", 1015.0, 1020.0),
    ]
    assert {one.trace_id for one in found.values()} == {int(TRACE, 16)}
    assert found["queued"].parent_id == found["start"].parent_id == int(PARENT, 16)
    assert (
        found["waiting_for_turn"].parent_id == found["waiting_for_nodes"].parent_id == found["queued"].span_id
    )
    assert {found[name].parent_id for name in ("starting", "preparing", "running")} == {
        found["start"].span_id
    }
    assert found["start"].moments == (("first_step", 1020.0),)
    assert found["start"].attributes == {
        "remora.job.id": "job_1",
        "remora.attempt.id": "att_1",
        "remora.attempt.number": 1,
        "remora.project": "default",
        "remora.cluster": "default",
        "remora.first_step": True,
    }
    assert found["preparing"].attributes["remora.phase.number"] == 2
    assert all(one.link is None and not one.is_error for one in found.values())


def test_the_ids_stay_what_they_are() -> None:
    """The commands of an attempt that runs know them, and so does a controller of the next release."""
    found = by_name(spans_of(facts(2.0, 3.0, 5.0)))
    assert f"{found['start'].span_id:016x}" == "16b66dfce4f21325"
    assert f"{found['running'].span_id:016x}" == "631236900cb7a011"
    assert f"{context_of(job_row(id='job_1')).trace_id:032x}" == "17c855366b0671b050f1f8134cdaf59d"
    assert traceparent_of(JOB, "att_1") == f"00-{TRACE}-16b66dfce4f21325-01"


def test_nothing_is_made_before_the_first_step_or_the_end() -> None:
    begun = facts(2.0, 3.0)
    assert spans_of(begun) == ()
    found = by_name(spans_of(ended(begun, 1030.0, EndReason.EXIT_CODE)))
    assert found["start"].ended_at == found["running"].ended_at == found["end"].ended_at == 1030.0
    assert found["start"].is_error
    assert found["start"].moments == ()
    assert found["start"].attributes["remora.first_step"] is False
    assert found["end"].attributes["remora.end_reason"] == "exit_code"


@pytest.mark.parametrize("reason", EndReason)
def test_what_was_asked_for_is_no_error(reason: EndReason) -> None:
    asked = {"completed", "cancelled", "stopped_early", "paused", "evicted"}
    found = by_name(spans_of(ended(facts(2.0, 3.0, 5.0), 1030.0, reason)))
    assert found["end"].is_error == (reason.value not in asked)
    assert not found["start"].is_error, "its first step was done"


def test_a_job_without_a_request_has_a_trace_of_its_own() -> None:
    alone = spans_of(facts(2.0, 3.0, 5.0, job=job_row(1000.0, id="job_1")))
    other = spans_of(facts(2.0, 3.0, 5.0, job=job_row(1000.0, id="job_2")))
    assert {one.parent_id for one in alone if one.name in ("queued", "start")} == {None}
    assert len({one.trace_id for one in (*alone, *other)}) == 2


def test_a_job_of_an_array_links_to_the_request() -> None:
    job = replace(JOB, array_id="array_1")
    found = by_name(spans_of(facts(2.0, 3.0, 5.0, job=job)))
    assert found["start"].link == found["queued"].link == (int(TRACE, 16), int(PARENT, 16))
    assert (found["start"].parent_id, found["running"].link) == (None, None)
    assert found["start"].trace_id != int(TRACE, 16)


@pytest.mark.parametrize("array_id", [None, "array_1"])
def test_a_trace_that_is_not_recorded_has_no_spans(array_id: str | None) -> None:
    job = replace(JOB, traceparent=f"00-{TRACE}-{PARENT}-00", array_id=array_id)
    assert spans_of(ended(facts(2.0, 3.0, 5.0, job=job), 1030.0)) == ()
    assert traceparent_of(job, "att_1").endswith("-00")


@pytest.mark.parametrize(
    ("kind", "reason", "name"),
    [
        ("job.waiting", "waiting_for_quota", "waiting_for_quota"),
        ("job.waiting", "a text of a user", None),
        ("job.waiting", None, None),
        ("job.paused", None, "paused"),
        ("job.queued", None, None),
    ],
)
def test_what_a_job_waits_for_is_a_word_that_is_known(kind: str, reason: object, name: str | None) -> None:
    assert wait_of(kind, 5.0, reason) == Wait(5.0, name)
    assert wait_of("job.labelled", 5.0, reason) is None


def test_the_first_thousand_phases_become_spans() -> None:
    found = ended(facts(*[1.0] * (MOST_PHASES + 20)), 9000.0)
    numbers = [one.attributes.get("remora.phase.number") for one in spans_of(found)]
    assert [one for one in numbers if one is not None] == list(range(1, MOST_PHASES + 1))
    cut = replace(found, phases=found.phases[: MOST_PHASES + 1])
    assert spans_of(cut) == spans_of(found), "as the store reads them"


@given(
    durations=st.lists(st.sampled_from([0.0, 0.5, 1.0, 30.0]), min_size=3, max_size=12),
    looks=st.sets(st.integers(3, 12)),
    late_s=st.sampled_from([-40.0, -0.5, 0.0, 3.0]),
)
def test_whenever_spans_are_sent_each_is_sent_once_and_never_before_its_parent(
    durations: list[float], looks: set[int], late_s: float
) -> None:
    whole = facts(*durations)
    assert whole.attempt.phase_at is not None
    whole = ended(whole, max(1010.0, whole.attempt.phase_at + late_s))
    expected = spans_of(whole)
    came: list[AttemptSpan] = []
    noted = whole.attempt
    for count in sorted(one for one in looks if one <= len(durations)):
        then = facts(*durations[:count], traced_at=noted.traced_at, is_traced=False)
        if noted.traced_at is not None:
            then = replace(then, phases=[one for one in then.phases if one.began_at >= noted.traced_at])
        came += spans_of(then)
        noted = replace(noted, traced_at=sent(then).attempt.traced_at)
    last = replace(whole, attempt=noted)
    came += spans_of(last)
    assert sorted(came, key=str) == sorted(expected, key=str)
    assert spans_of(sent(last)) == ()
    known = {int(PARENT, 16)}
    for one in came:
        assert one.parent_id in known, "a parent comes first"
        assert one.ended_at >= one.began_at
        known.add(one.span_id)
    assert len({one.span_id for one in came}) == len(came)
