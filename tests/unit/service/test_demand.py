"""The planner's view has all that a job asks for, and since when a node has had nothing to do."""

from __future__ import annotations

import pytest

from remora.states import NodeState
from service.queue.demand import demand_of, idle_since
from service.queue.rows import NodeRow
from tests.service_fakes import job_row


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
