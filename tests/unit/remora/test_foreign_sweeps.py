"""A sweep of Azure ML becomes an array: its grid, or values that are drawn from its search space with a seed."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import pytest

from remora.errors import SpecError
from remora.job_formats import Pipeline, Translation, translate
from remora.spec.array_elements import elements_of
from remora.spec.spec import JobSpec

FOLDER = Path("/jobs/here")
CHOICES = {
    "lr": {"type": "choice", "values": [0.1, 0.01]},
    "norm": {"type": "choice", "values": [True, "layer norm"]},
}
OBJECTIVE = {"goal": "minimize", "primary_metric": "loss"}


def sweep(space: Any, folder: Path = FOLDER, **fields: Any) -> Translation:
    trial = {
        "command": "python train.py " + " ".join(f"--{name} ${{{{search_space.{name}}}}}" for name in space),
        "code": "src",
    }
    raw = {"type": "sweep", "trial": trial, "search_space": space, "objective": OBJECTIVE, **fields}
    found = translate(raw, folder)
    assert isinstance(found, Translation)
    return found


def problems(space: Any, **fields: Any) -> list[str]:
    return [str(one) for one in sweep(space, **fields).problems]


def lost(translation: Translation) -> dict[str, str]:
    return {one.field: one.text for one in translation.unhonoured}


def test_a_grid_of_choices_is_the_grid_of_an_array() -> None:
    found = sweep(
        CHOICES,
        sampling_algorithm="grid",
        limits={"max_concurrent_trials": 2, "trial_timeout": 60, "timeout": 900},
        display_name="find",
    )
    assert found.problems == ()
    assert found.spec["array"] == {
        "grid": {"lr": [0.1, 0.01], "norm": ["True", "layer norm"]},
        "most_at_once": 2,
    }
    assert found.spec["limits"] == {"run_time": 60}
    assert lost(found).keys() == {"objective.primary_metric", "limits.timeout"}
    jobs = elements_of(JobSpec.from_mapping({**found.spec, "code": None}))
    assert [job.spec.command[2:] for job in jobs][1] == ["--lr", "0.1", "--norm", "layer norm"]
    assert [job.spec.name for job in jobs] == ["find-0", "find-1", "find-2", "find-3"]


def test_trials_that_reach_all_choices_are_a_grid_and_fewer_are_drawn() -> None:
    assert "grid" in sweep(CHOICES, sampling_algorithm="random", limits={"max_total_trials": 4}).spec["array"]
    drawn = sweep(CHOICES, sampling_algorithm="random", limits={"max_total_trials": 3}).spec["array"]["list"]
    assert len({tuple(one.values()) for one in drawn}) == 3


def test_drawn_values_depend_on_the_seed_alone() -> None:
    space = {"lr": {"type": "loguniform", "min_value": -7, "max_value": -2}}
    limits = {"max_total_trials": 9}
    one, same = (
        sweep(space, sampling_algorithm={"type": "random", "seed": 5}, limits=limits) for _ in range(2)
    )
    other = sweep(space, sampling_algorithm={"type": "random", "seed": 6}, limits=limits)
    assert one.spec["array"] == same.spec["array"] != other.spec["array"]


@pytest.mark.parametrize(
    ("about", "least", "most", "mean"),
    [
        ({"type": "uniform", "min_value": 2, "max_value": 4}, 2, 4, 3),
        ({"type": "quniform", "min_value": 0, "max_value": 10, "q": 5}, 0, 10, 5),
        ({"type": "randint", "upper": 1000}, 0, 999, 500),
        ({"type": "loguniform", "min_value": 0, "max_value": 1}, 1, 2.7183, 1.718),
        ({"type": "normal", "mu": 10, "sigma": 1}, 4, 16, 10),
        ({"type": "lognormal", "mu": 0, "sigma": 0.1}, 0.4, 2, 1.005),
    ],
)
def test_values_are_drawn_from_their_distribution(
    about: dict[str, Any], least: float, most: float, mean: float
) -> None:
    # With a second name the values of the first may be equal.
    other = {"type": "uniform", "min_value": 0, "max_value": 1}
    found = sweep({"x": about, "y": other}, sampling_algorithm="random", limits={"max_total_trials": 1000})
    values = [one["x"] for one in found.spec["array"]["list"]]
    assert len(values) == 1000
    assert least <= min(values) <= max(values) <= most
    assert abs(statistics.mean(values) - mean) < 0.1 * mean
    if "q" in about:
        assert set(values) == {0, 5, 10}


def test_what_decides_by_results_is_named() -> None:
    found = sweep(
        CHOICES,
        sampling_algorithm="bayesian",
        early_termination={
            "type": "truncation_selection",
            "truncation_percentage": 20,
            "exclude_finished_jobs": True,
        },
        limits={"max_total_trials": 2},
    )
    assert found.problems == ()
    assert "values are drawn at random beforehand" in lost(found)["sampling_algorithm"]
    assert "ended are compared with" in lost(found)["early_termination.exclude_finished_jobs"]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (
            {"type": "bandit", "slack_factor": 0.1, "evaluation_interval": 2, "delay_evaluation": 5},
            {"policy": "bandit", "slack_factor": 0.1, "every": 2, "delay": 5},
        ),
        (
            {"type": "bandit", "slack_amount": 0.2, "slack_factor": 0},
            {"policy": "bandit", "slack_amount": 0.2, "every": 1, "delay": 0},
        ),
        ({"type": "median_stopping"}, {"policy": "median", "every": 1, "delay": 0}),
        (
            {"type": "truncation_selection", "truncation_percentage": 20},
            {"policy": "truncation", "percent": 20, "every": 1, "delay": 0},
        ),
    ],
)
def test_early_termination_is_a_policy_of_the_array(given: dict[str, Any], expected: dict[str, Any]) -> None:
    found = sweep(CHOICES, sampling_algorithm="grid", early_termination=given)
    assert found.problems == ()
    assert found.spec["array"]["stop_early"] == {"metric": "loss", "mode": "min", **expected}
    rule = JobSpec.from_mapping(found.spec).array
    assert rule is not None
    assert rule.stop_early is not None
    assert "early_termination" not in lost(found)
    maximized = {"goal": "maximize", "primary_metric": "acc"}
    found = sweep(CHOICES, sampling_algorithm="grid", early_termination=given, objective=maximized)
    assert found.spec["array"]["stop_early"] == {"metric": "acc", "mode": "max", **expected}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"type": "hyperband"},
            "'hyperband' given, expected bandit or median_stopping or truncation_selection",
        ),
        ({"type": "bandit"}, "either a slack_factor or a slack_amount"),
        ({"type": "bandit", "slack_factor": 1, "slack_amount": 1}, "either a slack_factor or a slack_amount"),
        ({"type": "bandit", "slack_factor": -1}, "expected a number above 0"),
        ({"type": "bandit", "slack_factor": "x" * 9}, "expected a number above 0"),
        ({"type": "truncation_selection", "truncation_percentage": 100}, "a whole number from 1 to 99"),
        ({"type": "median_stopping", "evaluation_interval": 0}, "expected a whole number from 1"),
        ("bandit", "early_termination"),
    ],
)
def test_early_termination_that_cannot_be_followed_is_refused(given: Any, said: str) -> None:
    found = problems(CHOICES, sampling_algorithm="grid", early_termination=given)
    assert said in "\n".join(found)


@pytest.mark.parametrize(
    ("space", "fields", "said"),
    [
        ({}, {}, "search_space: missing; a sweep has values to try"),
        (
            {"x": {"type": "uniform", "min_value": 0, "max_value": 1}},
            {},
            "limits.max_total_trials: missing; write how many trials there are, 1000 at most",
        ),
        (
            {"x": {"type": "uniform", "min_value": 0, "max_value": 1}},
            {"limits": {"max_total_trials": 1001}},
            "limits.max_total_trials: 1001; write how many trials there are, 1000 at most",
        ),
        (
            {"x": {"type": "uniform", "min_value": 0, "max_value": 1}},
            {"sampling_algorithm": "grid"},
            "sampling_algorithm: a grid needs a choice of values for every name of search_space",
        ),
        (
            {"x": {"type": "choice", "values": list(range(1001))}},
            {"sampling_algorithm": "grid"},
            "search_space: 1001 combinations, expected at most 1000; write fewer values",
        ),
        (
            {"x": {"type": "choice", "values": [{"a": 1}]}},
            {},
            "search_space.x.values: {'a': 1} given, expected texts, numbers or booleans",
        ),
        ({"x": {"type": "magic"}}, {}, "search_space.x.type: 'magic' given, expected one of choice, randint"),
        ({"x": {"type": "uniform", "min_value": "a"}}, {}, "search_space.x.min_value: 'a' given, expected a"),
        ({"x": {"type": "choice"}}, {}, "search_space.x.values: nothing given, expected a list of values"),
        (CHOICES, {"sampling_algorithm": "luck"}, "sampling_algorithm: 'luck' given, expected grid"),
    ],
)
def test_a_search_that_is_no_array_is_refused(space: Any, fields: dict[str, Any], said: str) -> None:
    assert problems(space, **fields)[0].startswith(said)


def test_a_sweep_without_a_trial_is_refused() -> None:
    with pytest.raises(SpecError, match="trial: missing; a sweep has the command that it tries"):
        sweep(CHOICES, trial=None)


COMPONENT = """\
name: train
inputs: {lr: {type: number, default: 1}, data: {type: uri_folder}, depth: {type: integer, default: 2}}
outputs: {model: {type: uri_folder}}
code: ./code
command: python train.py --lr ${{inputs.lr}} --depth ${{inputs.depth}} ${{inputs.data}} ${{outputs.model}}
"""


def test_a_component_is_tried_with_the_values_of_its_inputs(tmp_path: Path) -> None:
    (tmp_path / "train.yml").write_text(COMPONENT)
    space = {"lr": CHOICES["lr"]}
    found = sweep(space, tmp_path, trial="train.yml", inputs={"data": {"path": "/mnt/d"}})
    assert found.problems == ()
    assert found.spec["command"] == (
        ["python", "train.py", "--lr", "${{array.lr}}", "--depth", "2", "/mnt/d", "${{outputs.model}}"]
    )
    step = {
        "type": "sweep",
        "trial": "./train.yml",
        "search_space": space,
        "inputs": {"data": {"path": "/mnt/d"}},
    }
    pipeline = translate({"type": "pipeline", "jobs": {"try": step}}, tmp_path)
    assert isinstance(pipeline, Pipeline)
    assert pipeline.problems == ()
    assert pipeline.steps[0].spec["array"] == {"grid": {"lr": [0.1, 0.01]}}
    after = {"command": "cat ${{inputs.m}}", "inputs": {"m": "${{parent.jobs.try.outputs.model}}"}}
    reading = translate({"type": "pipeline", "jobs": {"try": step, "use": after}}, tmp_path)
    assert reading is not None
    assert [str(one) for one in reading.problems] == [
        "jobs.use: it reads from try, which is an array of jobs, and not one of them; submit it when you have chosen,"
        " with an input of that job"
    ]
