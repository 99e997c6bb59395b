"""The planner's view of a job has all that the job asks for."""

from __future__ import annotations

import pytest

from service.queue.demand import demand_of
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
