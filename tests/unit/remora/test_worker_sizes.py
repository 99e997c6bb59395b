"""How many workers may train when a number of them could be had."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remora import JobSpec, SpecError
from remora.spec.worker_sizes import NoSizePossible, WorkerSizes, sizes_of, spec_of


@pytest.mark.parametrize(
    ("sizes", "had", "size"),
    [
        (WorkerSizes(1, 4), 3, 3),
        (WorkerSizes(1, 4), 9, 4),
        (WorkerSizes(2, 4), 1, 0),
        (WorkerSizes(2, 4, multiple_of=2), 3, 2),
        (WorkerSizes(2, 4, multiple_of=2), 4, 4),
        (WorkerSizes(1, 4, divided=16), 3, 2),
        (WorkerSizes(2, 8, multiple_of=2, divided=6), 8, 6),
    ],
)
def test_the_largest_size_that_fits(sizes: WorkerSizes, had: int, size: int) -> None:
    assert sizes.fit(had) == size


RANGES = {
    "least": st.integers(1, 20),
    "more": st.integers(0, 20),
    "multiple_of": st.integers(1, 6),
    "divided": st.none() | st.integers(1, 60),
}


def possible(size: int, multiple_of: int, divided: int | None) -> bool:
    """A worker group of this size may train, by the definition."""
    return size % multiple_of == 0 and (divided is None or divided % (size // multiple_of) == 0)


@given(**RANGES, had=st.integers(0, 50))
def test_sizes_are_what_is_possible_of_a_range_and_name_its_neighbours_where_nothing_is(
    least: int, more: int, multiple_of: int, divided: int | None, had: int
) -> None:
    mine = [one for one in range(1, 400) if possible(one, multiple_of, divided)]
    inside = [one for one in mine if least <= one <= least + more]
    if not inside:
        near = [*[one for one in mine if one < least][-1:], *[one for one in mine if one > least + more][:1]]
        with pytest.raises(
            NoSizePossible, match=f"the nearest that can (is|are) {' and '.join(map(str, near))}$"
        ):
            WorkerSizes(least, least + more, multiple_of, divided)
        return
    sizes = WorkerSizes(least, least + more, multiple_of, divided)
    assert (sizes.min, sizes.max) == (inside[0], inside[-1])
    assert sizes.fit(had) == max([one for one in inside if one <= had], default=0)
    assert [one for one in range(50) if sizes.allows(one)] == inside
    assert sizes_of(spec_of(sizes), sizes.min, sizes.max) == sizes
    assert WorkerSizes(sizes.min, sizes.max, multiple_of, divided) == sizes


def test_a_specification_says_which_worker_groups_are_possible() -> None:
    spec = JobSpec(command="train", workers={"min": 2, "max": 6, "multiple_of": 2})
    assert spec.worker_sizes == WorkerSizes(2, 6, multiple_of=2)
    deepspeed = {"command": "train", "backend": "deepspeed", "elastic": {"global_batch": 16}}
    assert JobSpec(workers={"min": 1, "max": 3}, **deepspeed).worker_sizes.fit(3) == 2
    some = JobSpec(workers={"min": 3, "max": 15}, **deepspeed)
    assert (some.min_workers, some.max_workers, some.workers.min) == (4, 8, 3)
    assert sizes_of(some.to_mapping(), 3, 15) == some.worker_sizes
    with pytest.raises(SpecError, match="min is 3 and multiple_of is 2"):
        JobSpec(command="train", workers={"min": 3, "max": 4, "multiple_of": 2})


@pytest.mark.parametrize(
    ("workers", "batch", "said"),
    [
        (3, 16, "3 workers cannot divide 16 into equal parts; the nearest that can are 2 and 4"),
        (
            {"min": 6, "max": 9},
            20,
            "no number of workers from 6 to 9 can divide 20 into equal parts; the nearest that can are 5 and 10",
        ),
        (9, 8, "9 workers cannot divide 8 into equal parts; the nearest that can is 8"),
        (
            {"min": 6, "max": 6, "multiple_of": 2},
            16,
            "6 workers cannot divide 16 into equal parts in whole copies of the model, of 2 workers each;"
            " the nearest that can are 4 and 8",
        ),
    ],
)
def test_a_job_that_no_worker_group_can_train_is_refused_with_those_that_could(
    workers: object, batch: int, said: str
) -> None:
    with pytest.raises(SpecError) as refused:
        JobSpec(command="train", workers=workers, backend="deepspeed", elastic={"global_batch": batch})
    assert str(refused.value).endswith(f"workers and elastic.global_batch do not agree: {said}")


def test_only_deepspeed_needs_sizes_that_divide_the_batch() -> None:
    elastic = {"global_batch": 6}
    assert sizes_of({"backend": "deepspeed", "elastic": elastic}, 1, 4).divided == 6
    assert sizes_of({"backend": "ddp", "elastic": elastic}, 1, 4).divided is None
    assert sizes_of({"backend": "deepspeed", "elastic": True}, 1, 4).divided is None
