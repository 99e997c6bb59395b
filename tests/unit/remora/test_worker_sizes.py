"""How many workers may train when so many could be had."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remora import JobSpec, SpecError
from remora.worker_sizes import WorkerSizes


@pytest.mark.parametrize(
    ("sizes", "had", "size"),
    [
        (WorkerSizes(1, 4), 3, 3),
        (WorkerSizes(1, 4), 9, 4),
        (WorkerSizes(2, 4), 1, 0),
        (WorkerSizes(2, 4, multiple_of=2), 3, 2),
        (WorkerSizes(2, 4, multiple_of=2), 4, 4),
        (WorkerSizes(1, 4, dealt=16), 3, 2),
        (WorkerSizes(2, 8, multiple_of=2, dealt=6), 8, 6),
        (WorkerSizes(3, 3, dealt=16), 3, 0),
    ],
)
def test_the_largest_size_that_fits(sizes: WorkerSizes, had: int, size: int) -> None:
    assert sizes.fit(had) == size


@given(
    st.integers(1, 20),
    st.integers(0, 20),
    st.integers(1, 6),
    st.none() | st.integers(1, 60),
    st.integers(0, 50),
)
def test_a_size_is_allowed_and_there_is_no_larger_one(
    least: int, more: int, multiple_of: int, dealt: int | None, had: int
) -> None:
    sizes = WorkerSizes(least, least + more, multiple_of, dealt)
    size = sizes.fit(had)
    assert size == 0 or (size <= had and sizes.allows(size))
    assert not any(sizes.allows(other) for other in range(size + 1, had + 1))


def test_a_specification_says_how_workers_hold_the_model_together() -> None:
    spec = JobSpec(command="train", workers={"min": 2, "max": 6, "multiple_of": 2})
    assert spec.worker_sizes == WorkerSizes(2, 6, multiple_of=2)
    deepspeed = {"backend": "deepspeed", "elastic": {"global_batch": 16}}
    assert JobSpec(command="train", workers={"min": 1, "max": 3}, **deepspeed).worker_sizes.fit(3) == 2
    with pytest.raises(SpecError, match="global_batch is 16, which no number of workers from 3 to 3"):
        JobSpec(command="train", workers=3, **deepspeed)
    with pytest.raises(SpecError, match="min is 3 and multiple_of is 2"):
        JobSpec(command="train", workers={"min": 3, "max": 4, "multiple_of": 2})
