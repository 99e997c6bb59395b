"""Several jobs that are submitted together: their order, their ids, and everything that is wrong with them at once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remora.errors import SpecError
from remora.spec.pipeline_steps import (
    MAX_STEPS,
    PipelineStep,
    StepOutput,
    check_steps,
    digest_of,
    in_order,
    key_of,
)
from remora.spec.spec import JobSpec

PREP = PipelineStep(name="prep", spec={"command": "python prep.py", "outputs": {"data": {}}})
TRAIN = PipelineStep(
    name="train",
    spec={"command": "python train.py ${{inputs.data}}", "after": ["job_01ARZ3NDEKTSV4RRFFQ69G5FAV"]},
    reads={"data": StepOutput("prep", "data"), "all": StepOutput("prep", None)},
)


def test_ids_of_jobs_take_the_place_of_names() -> None:
    job = "job_01BX5ZZKBKACTAV9WEVGEMMVRZ"
    spec = TRAIN.spec_with({"prep": job})
    assert spec["inputs"] == {"data": {"job": job, "output": "data"}, "all": {"job": job}}
    assert spec["after"] == ["job_01ARZ3NDEKTSV4RRFFQ69G5FAV", job]
    assert TRAIN.spec["after"] == ["job_01ARZ3NDEKTSV4RRFFQ69G5FAV"]
    assert JobSpec.from_mapping(spec).inputs["data"].job == job


@given(st.permutations(range(6)), st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=8))
def test_each_step_is_behind_those_that_it_needs(order: list[int], pairs: list[tuple[int, int]]) -> None:
    reads: dict[int, dict[str, StepOutput]] = {at: {} for at in range(6)}
    for one, other in pairs:
        if one > other:
            reads[one][f"x{other}"] = StepOutput(f"s{other}", "out")
    steps = in_order(PipelineStep(name=f"s{at}", spec={}, reads=reads[at]) for at in order)
    places = {step.name: place for place, step in enumerate(steps)}
    assert len(places) == 6
    assert all(places[name] < places[step.name] for step in steps for name in step.needs)


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        ([PREP, PREP], "jobs.prep: two steps have this name"),
        ([TRAIN], "jobs.train: it reads from prep, and there is no such step"),
        (
            [PipelineStep(name="a", spec={}, reads={"x": StepOutput("a", "y")})],
            "these steps wait for each other: a -> a",
        ),
        (
            [PipelineStep(name=f"s{at}", spec={}) for at in range(MAX_STEPS + 1)],
            "101 steps, expected at most 100",
        ),
        (
            [PipelineStep(name="prep", spec={"array": {"grid": {"a": [1]}}}), TRAIN],
            "jobs.train: it reads from prep, which is an array of jobs",
        ),
    ],
)
def test_steps_that_cannot_be_submitted_are_refused(steps: list[PipelineStep], said: str) -> None:
    with pytest.raises(SpecError) as refused:
        in_order(steps)
    assert str(refused.value.problems[0]).startswith(said)


def test_the_problems_of_all_steps_are_reported_at_once() -> None:
    wrong = [
        PipelineStep(name="a", spec={"command": "x", "workers": 0}),
        PREP,
        PipelineStep(name="b", spec={"command": "x ${{inputs.y}}", "priority": 101}),
        PipelineStep(name="c", spec={"command": "x", "schedule": "0 3 * * *"}),
        PipelineStep(name="d", spec={"command": "", "array": {"list": [{"a": 1}]}}),
    ]
    with pytest.raises(SpecError) as refused:
        check_steps(wrong)
    assert {problem.field for problem in refused.value.problems} >= {
        "jobs.a.workers",
        "jobs.b.priority",
        "jobs.c.schedule",
        "jobs.d.command",
    }
    assert [spec.name for spec in check_steps([PREP, TRAIN])] == ["prep", "train"]


def test_a_key_belongs_to_one_step_of_one_submission() -> None:
    assert key_of("k", "prep") == key_of("k", "prep")
    assert len({key_of("k", "prep"), key_of("k", "train"), key_of("l", "prep")}) == 3
    one, other = (JobSpec.from_mapping({"command": text}) for text in ("a", "b"))
    assert digest_of({"s": one}) == digest_of({"s": JobSpec.from_mapping({"command": "a"})})
    assert len({digest_of({"s": one}), digest_of({"s": other}), digest_of({"t": one})}) == 3
