"""Arrays: which jobs one specification describes, and how owners submit and watch them."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from remora.cli.exits import ExitCode
from remora.errors import SpecError
from remora.spec.array_elements import elements_of
from remora.spec.arrays import MAX_ELEMENTS
from remora.spec.spec import JobSpec
from tests.command_line import Cli
from tests.unit.remora.fake_service import FakeService


def commands(**fields: Any) -> list[list[str]]:
    return [one.spec.command for one in elements_of(JobSpec.from_mapping(fields))]


def test_a_grid_is_every_combination_and_its_last_name_changes_first() -> None:
    spec = JobSpec.from_mapping(
        {
            "command": "train --lr ${{array.lr}} --seed ${{array.seed}} ${{array.index}}",
            "array": {"grid": {"lr": [0.1, 1e-5], "seed": [1, 2]}},
        }
    )
    assert [one.spec.command for one in elements_of(spec)] == [
        ["train", "--lr", "0.1", "--seed", "1", "0"],
        ["train", "--lr", "0.1", "--seed", "2", "1"],
        ["train", "--lr", "1e-05", "--seed", "1", "2"],
        ["train", "--lr", "1e-05", "--seed", "2", "3"],
    ]
    assert [one.spec.name for one in elements_of(spec)] == ["train-0", "train-1", "train-2", "train-3"]
    assert JobSpec.from_mapping(json.loads(json.dumps(spec.to_mapping()))) == spec


def test_a_list_is_exactly_its_elements() -> None:
    made = commands(
        command="x ${{array.a}} ${{array.b}}", array={"list": [{"a": 1, "b": True}, {"a": 2, "b": "c d"}]}
    )
    assert made == [["x", "1", "true"], ["x", "2", "c d"]]


@pytest.mark.parametrize("value", ["a b", "$(touch x)", "it's", 'say "hi"', "`id`", "*", "a;b", "\\"])
def test_a_value_is_one_word_for_a_shell_whatever_it_is(value: str) -> None:
    places = ("${{array.v}}", "'${{array.v}}'", '"${{array.v}}"')
    for place in places:
        ((_, _, text),) = commands(command=f"true && printf %s {place}", array={"list": [{"v": value}]})
        done = subprocess.run(["bash", "-c", text], capture_output=True, text=True, check=True)
        assert done.stdout == value, place


def test_in_arguments_a_number_stays_a_number() -> None:
    spec = JobSpec.from_mapping(
        {
            "entrypoint": "train:main",
            "arguments": {"lr": "${{array.lr}}", "tags": ["run-${{array.lr}}", {"deep": "${{array.on}}"}]},
            "labels": {"lr": "${{array.lr}}"},
            "environment": {"variables": {"LR": "${{array.lr}}"}},
            "array": {"grid": {"lr": [0.1], "on": [False]}},
        }
    )
    (one,) = elements_of(spec)
    assert one.spec.arguments == {"lr": 0.1, "tags": ["run-0.1", {"deep": False}]}
    assert (one.spec.labels, one.spec.environment.variables) == ({"lr": "0.1"}, {"LR": "0.1"})


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"array": {}}, "array: write either grid or list"),
        ({"array": {"grid": {"a": [1]}, "list": [{"a": 1}]}}, "array: write either grid or list"),
        ({"array": {"grid": {"a": 3}}}, "array.grid: a is no list of values"),
        ({"array": {"grid": {"a": []}}}, "array.grid: a is no list of values"),
        ({"array": {"grid": {"a-b": [1]}}}, "array.grid: 'a-b' is no name of a parameter"),
        ({"array": {"grid": {"index": [1]}}}, "and another name than index"),
        ({"array": {"grid": {"a": [[1]]}}}, "array.grid: '[1]' is no value of a"),
        ({"array": {"grid": {"a": [None]}}}, "array.grid: 'None' is no value of a"),
        ({"array": {"grid": {"a": ["${{job.id}}"]}}}, "has an expression or a null character in it"),
        ({"array": {"list": [{"a": 1}, {"b": 1}]}}, "array.list: all elements have the same names"),
        ({"array": {"list": [1]}}, "array.list: each element is a mapping"),
        ({"array": {"grid": {"a": [1] * 40, "b": [1] * 40}}}, "array: 1600 jobs, expected at most 1000"),
        ({"array": {"grid": {"a": [1]}, "most_at_once": 0}}, "array.most_at_once: 0 given"),
        ({"array": 3}, "array: 3 given, expected {grid"),
        (
            {"command": "x ${{array.b}}", "array": {"grid": {"a": [1]}}},
            "${{array.b}} is not among the values",
        ),
        (
            {"labels": {"l": "${{array.b}}"}, "array": {"grid": {"a": [1]}}},
            "${{array.b}} is not among the values",
        ),
        (
            {"environment": {"variables": {"B": "${{array.b}}"}}, "array": {"grid": {"a": [1]}}},
            "${{array.b}} is not among the values",
        ),
        ({"command": "x ${{array.b}}"}, "${{array.b}} is not among the values of the job's array"),
    ],
)
def test_one_mistake_is_one_sentence(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError) as caught:
        JobSpec.from_mapping({"command": "x"} | fields)
    assert said in str(caught.value)
    assert len(caught.value.problems) == 1


def test_a_label_of_one_job_is_a_text_in_which_nothing_is_filled() -> None:
    one = JobSpec.from_mapping({"command": "x", "labels": {"l": "${{array.b}}"}})
    assert one.labels == {"l": "${{array.b}}"}


def test_a_value_that_an_element_cannot_have_is_named_with_its_number() -> None:
    spec = JobSpec.from_mapping(
        {"command": "x", "labels": {"l": "${{array.a}}"}, "array": {"grid": {"a": ["x", "y" * 201]}}}
    )
    with pytest.raises(
        SpecError, match="labels: in element 1: the value of the label l is no line of at most 200"
    ):
        elements_of(spec)


def test_all_jobs_together_are_bounded() -> None:
    variables = {"environment": {"variables": {"A": "x" * 100_000}}}
    spec = JobSpec.from_mapping(
        {"command": "x", **variables, "array": {"grid": {"a": [*range(MAX_ELEMENTS)]}}}
    )
    with pytest.raises(SpecError, match="1000 such jobs have more than 4 MiB"):
        elements_of(spec)


SWEEP = """
command: python train.py --lr ${{array.lr}}
array: {grid: {lr: [0.1, 0.01]}, most_at_once: 1}
"""


def test_the_command_line_submits_and_shows_an_array(cli: Cli, service: FakeService, tmp_path: Path) -> None:
    file = tmp_path / "sweep.yaml"
    file.write_text(SWEEP)
    assert cli("submit", str(file)) == ExitCode.OK
    (array,) = service.arrays.values()
    assert cli.out == f"{array.id}  train  2 queued\n"
    assert f"remora arrays show {array.id}" in cli.err
    assert cli("arrays") == ExitCode.OK
    assert array.id in cli.out
    assert cli("arrays", "show", "last") == ExitCode.OK
    assert "lr=0.1" in cli.out
    assert "lr=0.01" in cli.out
    assert cli("arrays", "cancel", array.id) == ExitCode.OK
    assert service.count("POST", f"/v1/arrays/{array.id}/cancel") == 1
    assert cli("arrays", "show", "array_x", "--json") == ExitCode.NOT_FOUND
    assert cli("submit", str(file), "--follow") == ExitCode.USAGE
