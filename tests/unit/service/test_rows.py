"""A row that was just written says that nothing has happened yet."""

from __future__ import annotations

from dataclasses import MISSING, fields

import pytest

from remora.clusters import DEFAULT_CLUSTER
from remora.states import AttemptState, DrillState, JobState, NodeState
from service.queue.rows import AttemptRow, DrilledJob, DrillRow, JobRow, NodeRow

#: How each begins; whatever else has a default is nothing, none, no time or no text.
BEGINS: dict[type, dict[str, object]] = {
    JobRow: {"state": JobState.QUEUED, "version": 1, "cluster": DEFAULT_CLUSTER},
    AttemptRow: {"state": AttemptState.STARTING, "cluster": DEFAULT_CLUSTER},
    NodeRow: {"state": NodeState.REQUESTED, "cluster": DEFAULT_CLUSTER},
    DrillRow: {"state": DrillState.REQUESTED, "cluster": DEFAULT_CLUSTER},
    DrilledJob: {},
}


@pytest.mark.parametrize("row", BEGINS, ids=lambda row: row.__name__)
def test_a_new_row_knows_of_nothing(row: type) -> None:
    begins = BEGINS[row]
    given = {one.name: one.default for one in fields(row) if one.default is not MISSING}
    assert {name: value for name, value in given.items() if value} == begins
    made = [one.default_factory() for one in fields(row) if one.default_factory is not MISSING]
    assert not any(made)
