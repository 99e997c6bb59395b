"""Plans of attempts, with the sizes of their worker groups written as a specification writes them."""

from __future__ import annotations

from typing import Any

from remora.spec.worker_sizes import WorkerSizes
from trainers.plan import AttemptPlan


def plan_of(**fields: Any) -> AttemptPlan:
    """A plan of these fields; `min_workers`, `max_workers`, `multiple_of` and `divided` become its `sizes`."""
    least, most = fields.pop("min_workers"), fields.pop("max_workers")
    sizes = WorkerSizes(least, most, fields.pop("multiple_of", 1), fields.pop("divided", None))
    return AttemptPlan(sizes=sizes, **fields)
