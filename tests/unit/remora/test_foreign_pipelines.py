"""A pipeline of Azure ML becomes jobs: what each reads, what each waits for, and what is refused by name."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from remora.errors import SpecError
from remora.job_formats import Pipeline, translate
from remora.spec.pipeline_steps import StepOutput, check_steps

PREP = """\
$schema: https://azuremlschemas.azureedge.net/latest/commandComponent.schema.json
type: command
name: prep
version: 2
inputs:
  raw: {type: uri_folder}
  rows: {type: integer, default: 100}
  seed: {type: integer, optional: true}
outputs:
  table: {type: uri_folder}
code: ./prep_code
environment: {image: python, conda_file: conda.yml}
command: >-
  python prep.py --raw ${{inputs.raw}} --rows ${{inputs.rows}} $[[--seed ${{inputs.seed}}]] --to ${{outputs.table}}
"""
PIPELINE = """\
$schema: https://azuremlschemas.azureedge.net/latest/pipelineJob.schema.json
type: pipeline
display_name: Forecast
experiment_name: weather
tags: {owner: ml}
settings: {default_compute: azureml:cpu, continue_on_step_failure: false}
inputs:
  source: {type: uri_folder, path: ./data}
  epochs: 3
outputs:
  model: {type: mlflow_model, name: forecaster}
jobs:
  train:
    command: python train.py ${{inputs.table}}/a.csv --epochs ${{inputs.epochs}} --to ${{outputs.best}}
    code: ./train_code
    distribution: {type: pytorch, process_count_per_instance: 2}
    resources: {instance_count: 2}
    inputs:
      table: ${{parent.jobs.prep.outputs.table}}
      epochs: ${{parent.inputs.epochs}}
    outputs:
      best: ${{parent.outputs.model}}
  prep:
    type: command
    component: ./components/prep.yml
    inputs:
      raw: ${{parent.inputs.source}}
      rows: 7
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "components").mkdir()
    (tmp_path / "components" / "prep.yml").write_text(PREP)
    (tmp_path / "components" / "conda.yml").write_text("dependencies: [python=3.11, {pip: [numpy]}]")
    return tmp_path


def pipeline_of(raw: Any, folder: Path, **given: str) -> Pipeline:
    found = translate(yaml.safe_load(raw) if isinstance(raw, str) else raw, folder, given)
    assert isinstance(found, Pipeline)
    return found


def problems_of(raw: Any, folder: Path, **given: str) -> list[str]:
    return [str(one) for one in pipeline_of(raw, folder, **given).problems]


def test_steps_become_jobs_that_wait_for_what_they_read(folder: Path) -> None:
    found = pipeline_of(PIPELINE, folder)
    assert (found.source, found.problems) == ("an Azure ML pipeline", ())
    prep, train = found.steps
    assert (prep.name, train.name, train.needs) == ("prep", "train", ("prep",))
    assert train.reads == {"table": StepOutput("prep", "table")}
    assert prep.spec["command"] == (
        f"python prep.py --raw {folder}/data --rows 7 --to ${{{{outputs.table}}}}".split()
    )
    assert prep.spec["code"] == "components/prep_code"
    assert prep.spec["environment"]["pip"] == ["numpy"]
    assert train.spec["command"] == (
        ["python", "train.py", "${{inputs.table}}/a.csv", "--epochs", "3", "--to", "${{outputs.best}}"]
    )
    assert train.spec["outputs"]["best"] == {"model": "forecaster"}
    assert (train.spec["workers"], train.spec["backend"]) == (4, "ddp")
    for step in found.steps:
        assert step.spec["project"] == "weather"
        assert step.spec["labels"] == {"pipeline": "forecast", "owner": "ml"}
    assert [spec.name for spec in check_steps(found.steps)] == ["prep", "train"]


def test_every_field_is_named_with_its_step(folder: Path) -> None:
    found = pipeline_of(PIPELINE.replace("rows: 7", "rows: 7\n      colour: red"), folder)
    lost = {one.field: one.text for one in found.unhonoured}
    assert "steps that do not need a failed one go on" in lost["settings.continue_on_step_failure"]
    assert "settings.default_compute" in lost
    assert "workers run" not in lost.get("jobs.prep.environment.image", "")
    assert lost["jobs.prep.inputs.colour"] == "the component has no such input; nothing was done with it"
    taken = {one.field: one.text for one in found.mapped}
    assert taken["display_name"] == "labels.pipeline: forecast"
    assert (
        taken["jobs.train.inputs.table"] == "inputs.table: the output table of the job of prep, and after it"
    )


def test_values_are_given_to_the_pipeline_and_to_its_steps(folder: Path) -> None:
    prep, train = pipeline_of(
        PIPELINE, folder, **{"source": "/mnt/raw", "epochs": "9", "prep.seed": "4"}
    ).steps
    assert prep.spec["command"][2:8] == ["--raw", "/mnt/raw", "--rows", "7", "--seed", "4"]
    assert "9" in train.spec["command"]
    assert problems_of(PIPELINE, folder, **{"prep.raw": "/mnt", "train.table": "/mnt"}) == []
    assert problems_of(PIPELINE, folder, typo="1", **{"prep.typo": "2"}) == [
        "inputs: there is no input 'typo' that --input could give",
        "inputs: there is no input 'prep.typo' that --input could give",
    ]


def test_a_file_that_one_step_writes_is_the_file_that_another_one_reads(folder: Path) -> None:
    raw = {
        "type": "pipeline",
        "jobs": {
            "write": {"command": "echo a > ${{outputs.note}}", "outputs": {"note": {"type": "uri_file"}}},
            "read": {
                "command": "cat ${{inputs.Text}}",
                "inputs": {"Text": {"type": "uri_file", "path": "${{parent.jobs.write.outputs.note}}"}},
            },
        },
    }
    write, read = pipeline_of(raw, folder).steps
    assert write.spec["command"] == ["bash", "-c", 'echo a > "${{outputs.note}}/note"']
    assert read.spec["command"] == ["cat", "${{inputs.text}}/note"]
    assert read.reads == {"text": StepOutput("write", "note")}


def test_the_artifacts_of_a_step_have_its_folder_of_outputs(folder: Path) -> None:
    raw = {
        "type": "pipeline",
        "jobs": {
            "write": {"command": "echo a > ./outputs/b.txt", "outputs": {"artifacts": None}},
            "read": {
                "command": "cat ${{inputs.all}}/outputs/b.txt",
                "inputs": {"all": "${{parent.jobs.write.outputs.artifacts}}"},
            },
        },
    }
    write, read = pipeline_of(raw, folder).steps
    assert write.spec["outputs"] == {"outputs": {"path": "outputs"}}
    assert read.reads == {"all": StepOutput("write", None)}


NESTED = """\
type: pipeline
inputs: {share: 0.5}
outputs: {result: }
jobs:
  inner:
    type: pipeline
    component: ./parts/inner.yml
    inputs: {ratio: "${{parent.inputs.share}}"}
    outputs: {made: "${{parent.outputs.result}}"}
  last:
    command: cat ${{inputs.made}}/x
    inputs: {made: "${{parent.jobs.inner.outputs.made}}"}
"""
INNER = """\
type: pipeline
inputs: {ratio: {type: number}, note: {type: string, optional: true}}
outputs: {made: {type: uri_folder}}
jobs:
  cut:
    command: python cut.py ${{inputs.ratio}} $[[--note ${{inputs.note}}]] ${{outputs.parts}}
    code: .
    inputs: {ratio: "${{parent.inputs.ratio}}"}
    outputs: {parts: }
  join:
    component: {command: "python join.py ${{inputs.parts}} ${{outputs.all}}", inputs: {parts: {type: uri_folder}},
                outputs: {all: {type: uri_folder}}, code: ./join}
    inputs: {parts: "${{parent.jobs.cut.outputs.parts}}"}
    outputs: {all: "${{parent.outputs.made}}"}
"""


def test_a_pipeline_inside_of_a_pipeline_is_its_steps(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "inner.yml").write_text(INNER)
    found = pipeline_of(NESTED, tmp_path)
    assert found.problems == ()
    cut, join, last = found.steps
    assert [one.name for one in found.steps] == ["inner.cut", "inner.join", "last"]
    assert (cut.spec["code"], join.spec["code"]) == ("parts", "parts/join")
    assert cut.spec["command"] == ["python", "cut.py", "0.5", "${{outputs.parts}}"]
    assert join.reads == {"parts": StepOutput("inner.cut", "parts")}
    assert last.reads == {"made": StepOutput("inner.join", "all")}
    assert len(check_steps(found.steps)) == 3


def test_a_pipeline_that_holds_itself_is_refused(tmp_path: Path) -> None:
    raw = {"type": "pipeline", "jobs": {"a": {"type": "pipeline", "component": "self.yml"}}}
    (tmp_path / "self.yml").write_text(yaml.safe_dump(raw))
    (problem,) = problems_of(raw, tmp_path)
    assert problem == "jobs: more than 8 pipelines in each other; submit it in several parts"


def test_a_job_of_a_component_is_its_pipeline(folder: Path) -> None:
    component = yaml.safe_load(PIPELINE)
    component["inputs"]["source"] = {"type": "uri_folder"}
    (folder / "whole.yml").write_text(yaml.safe_dump(component))
    raw = {"type": "pipeline", "component": "whole.yml", "display_name": "again"}
    assert problems_of(raw, folder) == ["inputs.source: it has no value; give --input source=VALUE"]
    found = pipeline_of(raw, folder, source="azureml://datastores/raw/paths/2026/")
    assert found.problems == ()
    assert found.steps[0].spec["inputs"] == {"raw": {"store": "raw", "path": "2026"}}
    assert found.steps[0].spec["labels"] == {"pipeline": "again"}


def test_a_registered_component_is_found_by_its_name_beside_the_file(folder: Path) -> None:
    (folder / "any.yml").write_text(PREP)
    (folder / "broken.yml").write_text("a: [")
    named = PIPELINE.replace("./components/prep.yml", "azureml:prep:2")
    (folder / "conda.yml").write_text("dependencies: []")
    assert problems_of(named, folder) == []
    for other in (
        "azureml:prep:3",
        "azureml:other@latest",
        "azureml://registries/r/components/prep/versions/2",
    ):
        (problem,) = problems_of(PIPELINE.replace("./components/prep.yml", other), folder)
        assert problem.startswith(f"jobs.prep.component: {other} is registered in a workspace or a registry")


@pytest.mark.parametrize(
    ("step", "said"),
    [
        ({"type": "automl"}, "type: steps of the type automl are not taken; choose a model"),
        (
            {"type": "parallel", "task": {}},
            "type: steps of the type parallel are not taken; submit the script",
        ),
        ({"component": "gone.yml"}, "component: cannot read "),
        ({"component": 3}, "component: 3 given, expected the path of a component's file"),
        (
            {"command": "a ${{inputs.b}}", "inputs": {"b": "${{parent.jobs.c.outputs.d}}"}},
            "inputs.b: ${{parent.jobs.c.outputs.d}}: there is no step 'c'",
        ),
        (
            {"command": "a ${{inputs.b}}", "inputs": {"b": "${{parent.inputs.c}}"}},
            "inputs.b: ${{parent.inputs.c}} is not among the pipeline's inputs",
        ),
        (
            {"command": "a", "outputs": {"b": "${{parent.outputs.c}}"}},
            "outputs.b: ${{parent.outputs.c}} is not among the pipeline's outputs",
        ),
        (
            {"command": "a ${{inputs.b}}", "inputs": {"b": {"path": "azureml:data:1"}}},
            "inputs.b.path: azureml:data:1: what a workspace or a registry holds cannot be opened here;"
            " give --input x.b=PATH",
        ),
        ("text", "'text' given, expected a step"),
    ],
)
def test_what_cannot_be_is_refused_by_name(step: Any, said: str, tmp_path: Path) -> None:
    problems = problems_of({"type": "pipeline", "jobs": {"x": step}}, tmp_path)
    assert problems[0].removeprefix("jobs.x.").removeprefix("jobs.x: ").startswith(said)


def test_what_reads_from_a_refused_step_adds_no_problem(tmp_path: Path) -> None:
    jobs = {
        "a": {"type": "automl"},
        "b": {"command": "cat ${{inputs.x}}", "inputs": {"x": "${{parent.jobs.a.outputs.best_model}}"}},
    }
    assert len(problems_of({"type": "pipeline", "jobs": jobs}, tmp_path)) == 1


def test_steps_in_a_circle_are_refused(tmp_path: Path) -> None:
    jobs = {
        one: {"command": "a", "inputs": {"x": f"${{{{parent.jobs.{other}.outputs.y}}}}"}}
        for one, other in (("a", "b"), ("b", "a"))
    }
    (problem,) = problems_of({"type": "pipeline", "jobs": jobs}, tmp_path)
    assert problem.startswith("jobs: steps wait for each other: ")


@pytest.mark.parametrize("raw", [{"type": "pipeline"}, {"type": "pipeline", "jobs": []}])
def test_a_pipeline_has_steps(raw: Any, tmp_path: Path) -> None:
    assert "expected the steps of the pipeline by their names" in problems_of(raw, tmp_path)[0]


def test_two_hundred_steps_are_too_many(tmp_path: Path) -> None:
    jobs = {f"s{at}": {"command": "a"} for at in range(200)}
    assert problems_of({"type": "pipeline", "jobs": jobs}, tmp_path) == [
        "jobs: more than 100 steps; submit it in several parts"
    ]


REFERENCES = st.sampled_from(
    [
        *("${{parent.inputs.i}}", "${{parent.outputs.o}}", "${{parent.jobs.a.outputs.o}}", "${{parent.x}}"),
        *("x ${{parent.inputs.i}} y", "${{inputs.i}}", "text", "${{parent.jobs.b.outputs.default}}"),
    ]
)
VALUES = st.recursive(
    REFERENCES | st.none() | st.integers() | st.booleans(),
    lambda inner: (
        st.dictionaries(st.sampled_from(["i", "o", "path", "type", "mode", "default"]), inner, max_size=3)
        | st.lists(inner, max_size=2)
    ),
    max_leaves=5,
)
STEPS = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(["command", "sweep", "pipeline", "automl"]) | VALUES,
        "command": st.just("run ${{inputs.i}} ${{outputs.o}}") | VALUES,
        "component": st.just({"command": "run ${{inputs.i}}", "inputs": {"i": {"type": "string"}}}) | VALUES,
        "trial": st.just({"command": "run ${{search_space.i}}"}) | VALUES,
        "search_space": st.just({"i": {"type": "choice", "values": [1, 2]}}) | VALUES,
        "inputs": VALUES,
        "outputs": VALUES,
        "code": VALUES,
        "environment": VALUES,
        "resources": VALUES,
    },
)


@given(
    inputs=VALUES, outputs=VALUES, jobs=st.dictionaries(st.sampled_from("abc"), STEPS | VALUES, max_size=3)
)
@settings(max_examples=100, deadline=None)
def test_whatever_a_pipeline_holds_it_is_translated_or_refused_in_sentences(
    inputs: Any, outputs: Any, jobs: Any
) -> None:
    raw = {"type": "pipeline", "inputs": inputs, "outputs": outputs, "jobs": jobs}
    found = translate(raw, Path("/jobs/here"))
    assert isinstance(found, Pipeline)
    assert all(problem.message for problem in found.problems)
    if not found.problems:
        with contextlib.suppress(SpecError):
            assert len(check_steps(found.steps)) == len(jobs)
