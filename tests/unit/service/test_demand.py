"""The planner's view has all that a job asks for, and since when a node has had nothing to do."""

from __future__ import annotations

from typing import Any

import pytest

from remora.states import NodeState
from service.queue.demand import demand_of, idle_since, work_left_s
from service.queue.rows import AttemptRow, NodeRow
from tests.service_fakes import job_row

NOW = 1000.0


@pytest.mark.parametrize(
    ("spec", "multiple_of"),
    [
        ({"workers": {"min": 2, "max": 4, "multiple_of": 2}}, 2),
        ({"workers": {"min": 2, "max": 4}}, 1),
        ({"workers": 4}, 1),
        ({}, 1),
    ],
)
def test_how_many_workers_hold_a_model_together(spec: dict[str, object], multiple_of: int) -> None:
    demand = demand_of(job_row(spec=spec, min_workers=2, max_workers=4), None, None, 0.0)
    assert demand.sizes.multiple_of == multiple_of
    assert (demand.min_workers, demand.max_workers) == (2, 4)


@pytest.mark.parametrize(
    ("changes", "started_at", "left_s"),
    [
        ({"step": 25}, None, 300.0),
        ({"step": 25}, NOW - 20.0, 360.0),
        # A clock that was set back takes nothing away.
        ({"step": 25}, NOW + 20.0, 300.0),
        ({"step": 200}, None, 0.0),
        ({"step": 0}, None, None),
        ({"step": None}, None, None),
        ({"step": 25, "total_steps": None}, None, None),
    ],
)
@pytest.mark.parametrize("has_attempt", [True, False])
def test_the_work_that_is_left_takes_as_long_for_a_step_as_what_was_trained_in_all_attempts(
    changes: dict[str, Any], started_at: float | None, left_s: float | None, has_attempt: bool
) -> None:
    job = job_row(**{"total_steps": 100, "trained_s": 100.0, **changes})
    attempt = AttemptRow(id="att_1", job_id=job.id, attempt=1, created_at=0.0, started_at=started_at)
    if has_attempt:
        assert work_left_s(job, attempt, NOW) == left_s
    elif started_at is None:
        assert work_left_s(job, None, NOW) == left_s


@pytest.mark.parametrize("state", NodeState)
@pytest.mark.parametrize("is_in_use", [True, False])
@pytest.mark.parametrize("before", [None, 5.0])
def test_a_node_is_idle_since_it_was_first_seen_without_work_while_it_is_ready_or_drains(
    state: NodeState, is_in_use: bool, before: float | None
) -> None:
    node = NodeRow(id="n", pool="p", created_at=0.0, state=state, idle_since=before)
    may_be_idle = state in (NodeState.READY, NodeState.DRAINING) and not is_in_use
    since = idle_since(node, is_in_use, now=9.0)
    assert since == ((9.0 if before is None else before) if may_be_idle else None)


@pytest.mark.parametrize(
    ("short_since", "started_at", "since"),
    [(NOW - 40.0, 5.0, NOW - 40.0), (None, 5.0, NOW), (None, None, 3.0)],
)
def test_a_running_job_waits_since_its_group_has_been_too_small_and_not_since_it_was_submitted(
    short_since: float | None, started_at: float | None, since: float
) -> None:
    job = job_row(created_at=1.0, waits_from=2.0)
    attempt = AttemptRow(
        id="att_1", job_id=job.id, attempt=1, created_at=3.0, short_since=short_since, started_at=started_at
    )
    assert demand_of(job, None, None, NOW).waiting_since == 2.0
    assert demand_of(job, attempt, None, NOW).waiting_since == since
