"""Jobs of Azure ML and Kubeflow become specifications, and everything that they lose on the way is named."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from remora.errors import SpecError, SpecProblem
from remora.foreign import Translation, translate
from remora.foreign.shell_words import argument_list, needs_shell
from remora.spec import JobSpec

JOBS = Path(__file__).with_name("foreign_jobs")
FOLDER = Path("/jobs/here")


def told(translation: Translation) -> str:
    """A translation as text, one line for everything that it says."""
    return "".join(
        (
            yaml.safe_dump(translation.spec, sort_keys=False, width=100),
            *(f"mapped      {one.field} -> {one.text}\n" for one in translation.mapped),
            *(f"unhonoured  {one.field}: {one.text}\n" for one in translation.unhonoured),
            *(f"problem     {one}\n" for one in translation.problems),
        )
    )


@pytest.mark.parametrize("job", sorted(path.name for path in JOBS.glob("*.y*ml")))
def test_published_forms_of_jobs_become_what_stands_beside_them(job: str) -> None:
    translation = translate(yaml.safe_load((JOBS / job).read_text()), FOLDER)
    assert translation is not None
    assert told(translation) == (JOBS / job).with_suffix(".expected").read_text()


def test_a_specification_of_our_own_is_left_alone() -> None:
    assert translate({"command": "python train.py", "workers": 2}, FOLDER) is None


@pytest.mark.parametrize("kind", ["sweep", "pipeline", "spark", "automl", "parallel", "import"])
def test_other_types_of_azure_ml_jobs_are_refused_by_name(kind: str) -> None:
    with pytest.raises(SpecError, match=rf"type: Azure ML's {kind} jobs are not taken; \w"):
        translate({"type": kind}, FOLDER)


@pytest.mark.parametrize(
    ("schema", "kind"),
    [
        ("pipelineJob", "pipeline"),
        ("sweepJob", "sweep"),
        ("commandComponent", "component"),
        ("autoMLJob", "automl"),
    ],
)
def test_the_schema_alone_says_the_type(schema: str, kind: str) -> None:
    raw = {"$schema": f"https://azuremlschemas.azureedge.net/latest/{schema}.schema.json"}
    with pytest.raises(SpecError, match=f"{kind} jobs are not taken"):
        translate(raw, FOLDER)


@pytest.mark.parametrize("kind", ["TFJob", "MPIJob", "TrainingRuntime", "Deployment"])
def test_other_kinds_of_manifests_are_refused_by_name(kind: str) -> None:
    with pytest.raises(SpecError, match=f"kind {kind} is not taken"):
        translate({"apiVersion": "kubeflow.org/v1", "kind": kind}, FOLDER)


def command_of(command: str, **inputs: Any) -> list[str]:
    translation = translate({"type": "command", "command": command, "inputs": inputs}, FOLDER)
    assert translation is not None
    assert translation.problems == ()
    words: list[str] = translation.spec["command"]
    return words


def test_a_command_gets_a_shell_only_when_it_needs_one() -> None:
    assert command_of("python train.py --name 'two words'") == ["python", "train.py", "--name", "two words"]
    assert command_of('python -c "import os; os.getcwd()"') == ["python", "-c", "import os; os.getcwd()"]
    for command in (
        "cd src && python a.py",
        "A=1 python a.py",
        "python a.py > log",
        "python a.py $HOME",
        "cd x",
        "a\nb",
    ):
        assert command_of(command) == ["bash", "-c", command]


@given(
    value=st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0\r"), max_size=30),
    template=st.sampled_from(["{}", '"{}"', "'{}'", "x{}y", '"a {} b"', "'it'\"{}\"", '"\\"{}"']),
    ending=st.sampled_from(["", " && true", "; true"]),
)
@settings(max_examples=20, deadline=None)
def test_a_value_arrives_as_it_is_whatever_quotes_stand_around_it(
    value: str, template: str, ending: str
) -> None:
    words = command_of("printf %s " + template.format("${{inputs.value}}") + ending, value=value)
    printed = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    (expected,) = shlex.split(template.format("HERE")) or [""]
    assert printed == expected.replace("HERE", value)


def test_what_an_expression_names_must_be_there() -> None:
    translation = translate(
        {"type": "command", "command": "a ${{inputs.b}} ${{parent.c}}", "inputs": {}}, FOLDER
    )
    assert translation is not None
    assert [str(problem) for problem in translation.problems] == [
        "command: ${{inputs.b}} is not among the job's inputs",
        "command: ${{parent.c}} is neither an input nor an output of the job",
    ]


def test_a_given_input_stands_above_the_file() -> None:
    raw = yaml.safe_load((JOBS / "cifar-distributed.yml").read_text())
    translation = translate(raw, FOLDER, {"cifar": "/mnt/cifar"})
    assert translation is not None
    assert translation.problems == ()
    assert "/mnt/cifar" in translation.spec["command"]
    assert JobSpec.from_mapping(translation.spec).workers.max == 8
    mistyped = translate(raw, FOLDER, {"cipher": "x", "cifar": "y"})
    assert mistyped is not None
    assert [str(one) for one in mistyped.problems] == [
        "inputs: there is no input 'cipher' that --input could give"
    ]


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12) | st.dates(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8) | st.integers(), inner, max_size=3)
    ),
    max_leaves=6,
)
KEYS = (
    *(
        "command",
        "code",
        "inputs",
        "outputs",
        "environment",
        "environment_variables",
        "compute",
        "distribution",
    ),
    *(
        "resources",
        "limits",
        "services",
        "tags",
        "identity",
        "queue_settings",
        "name",
        "display_name",
        "metadata",
    ),
    *(
        "experiment_name",
        "spec",
        "trainer",
        "pytorchReplicaSpecs",
        "Worker",
        "template",
        "containers",
        "env",
        "args",
    ),
    *(
        "runtimeRef",
        "resourcesPerNode",
        "limits",
        "numNodes",
        "elasticPolicy",
        "runPolicy",
        "type",
        "path",
        "requests",
    ),
)
SECTIONS = st.recursive(
    ANYTHING,
    lambda inner: st.dictionaries(st.sampled_from(KEYS), inner, max_size=5) | st.lists(inner, max_size=2),
    max_leaves=12,
)
HEADS = (
    {"type": "command"},
    {"$schema": "https://azuremlschemas.azureedge.net/latest/commandJob.schema.json"},
    {"apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainJob"},
    {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob"},
)


@given(head=st.sampled_from(HEADS), body=st.dictionaries(st.sampled_from(KEYS), SECTIONS, max_size=8))
@settings(max_examples=100, deadline=None)
def test_whatever_a_file_holds_it_is_translated_or_refused_in_sentences(head: Any, body: Any) -> None:
    problems: tuple[SpecProblem, ...] = ()
    try:
        translation = translate({**body, **head}, FOLDER)
        assert translation is not None
        if not (problems := translation.problems):
            JobSpec.from_mapping(translation.spec)
    except SpecError as refused:
        problems = refused.problems
    assert all(problem.message for problem in problems)


@given(st.text(max_size=40))
def test_any_text_is_a_command_or_refused(text: str) -> None:
    try:
        words = argument_list(text)
    except ValueError:
        return
    assert words
    assert needs_shell(text) == (words[:2] == ["bash", "-c"])
