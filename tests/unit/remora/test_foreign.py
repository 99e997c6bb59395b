"""Jobs of Azure ML and Kubeflow become specifications, and everything that they lose on the way is named."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from remora.errors import SpecError, SpecProblem
from remora.job_commands.command_texts import argument_list, needs_shell
from remora.job_formats import Pipeline, Translation, the_jobs, translate
from remora.spec.pipeline_steps import check_steps
from remora.spec.spec import JobSpec

JOBS = Path(__file__).with_name("foreign_jobs")
FOLDER = Path("/jobs/here")


def one_job(translation: Translation | Pipeline | None) -> Translation:
    assert isinstance(translation, Translation)
    return translation


def reported(translation: Translation) -> str:
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
    assert reported(translation) == (JOBS / job).with_suffix(".expected").read_text()


def test_a_specification_of_our_own_is_left_alone() -> None:
    assert translate({"command": "python train.py", "workers": 2}, FOLDER) is None


@pytest.mark.parametrize("kind", ["spark", "automl", "parallel", "import"])
def test_other_types_of_azure_ml_jobs_are_refused_by_name(kind: str) -> None:
    with pytest.raises(SpecError, match=rf"type: Azure ML's {kind} jobs are not taken; \w"):
        translate({"type": kind}, FOLDER)


@pytest.mark.parametrize(
    ("schema", "kind"),
    [
        ("sparkJob", "spark"),
        ("autoMLJob", "automl"),
    ],
)
def test_the_schema_alone_says_the_type(schema: str, kind: str) -> None:
    raw = {"$schema": f"https://azuremlschemas.azureedge.net/latest/{schema}.schema.json"}
    with pytest.raises(SpecError, match=f"{kind} jobs are not taken"):
        translate(raw, FOLDER)


COMPONENT = """\
$schema: https://azuremlschemas.azureedge.net/latest/commandComponent.schema.json
type: command
name: train_cifar
version: 1
inputs:
  data: {type: uri_folder}
  lr: {type: number, default: 0.1, min: 0}
  seed: {type: integer, optional: true}
  decay: {type: number, optional: true}
outputs:
  model:
command: >-
  python train.py --data ${{inputs.data}} --lr ${{inputs.lr}} $[[--seed ${{inputs.seed}}]]
  $[[--decay ${{inputs.decay}}]]
  --out ${{outputs.model}}
"""


def test_a_component_is_a_job_whose_inputs_are_given() -> None:
    raw = yaml.safe_load(COMPONENT)
    bare = translate(raw, FOLDER)
    assert bare is not None
    assert [str(one) for one in bare.problems] == ["inputs.data: it has no value; give --input data=VALUE"]
    given = translate(raw, FOLDER, {"data": "/mnt/cifar", "seed": "3"})
    assert given is not None
    assert (given.source, given.problems) == ("an Azure ML command component", ())
    words = "python train.py --data /mnt/cifar --lr 0.1 --seed 3 --out ${{outputs.model}}"
    assert given.spec["command"] == words.split()
    assert JobSpec.from_mapping(given.spec).name == "train_cifar"


def test_an_output_needs_no_word_on_it() -> None:
    raw = {"type": "command", "command": "a ${{outputs.final}}", "outputs": {"final": None}}
    translation = translate(raw, FOLDER)
    assert translation is not None
    assert translation.problems == ()
    assert translation.spec["outputs"]["final"] == {}
    assert set(JobSpec.from_mapping({"command": "a", "outputs": {"final": None}}).outputs) == {"final"}


def test_an_input_without_a_value_is_given_or_named() -> None:
    raw = {"type": "command", "command": "a ${{inputs.b}}", "inputs": {"b": None}}
    bare, given = translate(raw, FOLDER), translate(raw, FOLDER, {"b": "1"})
    assert bare is not None
    assert given is not None
    assert [str(one) for one in bare.problems] == ["inputs.b: it has no value; give --input b=VALUE"]
    assert given.spec["command"] == ["a", "1"]


JOB = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": "cifar"}}
SERVICE = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "board"}}


def test_the_job_is_found_among_the_documents_of_a_file() -> None:
    assert the_jobs([]) == (None, ())
    assert the_jobs([JOB]) == (JOB, ())
    job, left = the_jobs([SERVICE, JOB, {"apiVersion": "v1", "kind": "ConfigMap"}])
    assert job == JOB
    assert [one.field for one in left] == ["Service board", "ConfigMap"]
    assert the_jobs([SERVICE, SERVICE])[0] == SERVICE
    assert the_jobs([JOB, SERVICE, JOB])[0] == [JOB, JOB]
    for others in ([JOB, {"command": "a"}], [{"command": "a"}, {"command": "b"}], [JOB, "text"]):
        with pytest.raises(SpecError, match="holds 2 documents; write each into a file of its own"):
            the_jobs(others)


@pytest.mark.parametrize("kind", ["XGBoostJob", "PaddleJob", "TrainingRuntime", "Deployment"])
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
    before=st.sampled_from(
        ["", "# don't\n", 'X="$(date +%s)"; ', ": ${HOME} \\' a#'b'; ", "cat <<< '' > /dev/null; "]
    ),
    ending=st.sampled_from(["", " && true", "; true", " # isn't"]),
)
@example(value="a; $(b) 'c", template="{}", before="# don't\n", ending="")
@example(value="a; $(b) 'c", template='"{}"', before=": ${HOME} \\' a#'b'; ", ending=" # isn't")
@settings(max_examples=20, deadline=None)
def test_a_value_arrives_as_it_is_whatever_quotes_stand_around_it(
    value: str, template: str, before: str, ending: str
) -> None:
    words = command_of(f"{before}printf %s " + template.format("${{inputs.value}}") + ending, value=value)
    printed = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    (expected,) = shlex.split(template.format("HERE")) or [""]
    assert printed == expected.replace("HERE", value)


@pytest.mark.parametrize(
    "command",
    [
        'x "$(echo ${{inputs.value}})"',
        "x `echo ${{inputs.value}}`",
        "cat <<END\n${{inputs.value}}\nEND",
        "x # ${{inputs.value}}",
        "x ${Y:-${{inputs.value}}}",
        "x $(( ${{inputs.value}} ))",
        "x $'${{inputs.value}}'",
        'x "$${{inputs.value}}"',
        "x \\${{inputs.value}}",
        '"$(case a in a) echo ${{inputs.value}};; esac)"',
    ],
)
def test_a_value_stands_in_a_place_without_quotes_only_when_it_needs_none(command: str) -> None:
    raw = {"type": "command", "command": command, "inputs": {"value": "a; touch b"}}
    translation = translate(raw, FOLDER)
    assert translation is not None
    (problem,) = translation.problems
    assert "has a value that needs quotes" in problem.message
    assert command_of(command, value="/mnt/x") == argument_list(
        command.replace("${{inputs.value}}", "/mnt/x")
    )


@pytest.mark.parametrize(
    "raw",
    [
        {"type": "command", "command": "a", "environment_variables": {"HF_TOKEN": "hf_secret"}},
        {
            "apiVersion": "trainer.kubeflow.org/v1alpha1",
            "kind": "TrainJob",
            "spec": {
                "trainer": {
                    "command": ["a", "$(HF_TOKEN)"],
                    "env": [{"name": "HF_TOKEN", "value": "hf_secret"}],
                }
            },
        },
    ],
)
def test_the_value_of_a_variable_is_not_shown(raw: dict[str, Any]) -> None:
    translation = translate(raw, FOLDER)
    assert translation is not None
    assert translation.spec["environment"]["variables"]["HF_TOKEN"] == "hf_secret"
    reported_remarks = [remark.text for remark in translation.mapped]
    assert "environment.variables.HF_TOKEN: ..." in reported_remarks
    assert not any("secret" in text for text in reported_remarks)


def test_every_output_is_a_folder_and_a_file_is_the_only_one_in_its_folder() -> None:
    raw = {
        "type": "command",
        "command": "a > ${{outputs.report}}",
        "outputs": {"report": {"type": "uri_file"}},
    }
    translation = one_job(translate(raw, FOLDER))
    assert translation.problems == ()
    assert translation.spec["command"] == ["bash", "-c", 'a > "${{outputs.report}}/report"']
    assert translation.spec["outputs"]["report"] == {}
    assert command_of("a ${{outputs.default}}") == ["a", "${{outputs.default}}"]


@pytest.mark.parametrize("path", ["file:./data", "file:data", "file:///jobs/here/data", "./data"])
def test_a_path_may_be_written_as_a_url(path: str) -> None:
    assert command_of("a ${{inputs.data}}", data={"path": path}) == ["a", "/jobs/here/data"]


BIG = 10**5000


@pytest.mark.parametrize(
    "body",
    [
        {"limits": {"timeout": BIG}},
        {"resources": {"instance_count": BIG}},
        {"distribution": {"type": "tensorflow", "parameter_server_count": BIG}},
        {"inputs": {BIG: {"path": "x"}}},
        {BIG: 1},
        {"outputs": {"x": {"type": "mlflow_model", "name": "m"}, "x.model.z": {}}},
        {"environment_variables": {"a": "1", "a.b": "2"}},
    ],
)
def test_odd_names_and_numbers_are_no_reason_to_break_off(body: dict[Any, Any]) -> None:
    translation = translate({"type": "command", "command": "a", **body}, FOLDER)
    assert translation is not None
    assert reported(translation)


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
    *("jobs", "trial", "search_space", "component", "component", "values", "settings", "sampling_algorithm"),
    *("mpiReplicaSpecs", "Launcher", "jaxReplicaSpecs", "slotsPerWorker", "replicas", "mpiImplementation"),
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
    {"apiVersion": "kubeflow.org/v1", "kind": "JAXJob"},
    {"apiVersion": "kubeflow.org/v2beta1", "kind": "MPIJob"},
    {"type": "sweep"},
    {"type": "pipeline"},
)


@given(head=st.sampled_from(HEADS), body=st.dictionaries(st.sampled_from(KEYS), SECTIONS, max_size=8))
@settings(max_examples=100, deadline=None)
def test_whatever_a_file_holds_it_is_translated_or_refused_in_sentences(head: Any, body: Any) -> None:
    problems: tuple[SpecProblem, ...] = ()
    try:
        translation = translate({**body, **head}, FOLDER)
        assert translation is not None
        if not (problems := translation.problems):
            if isinstance(translation, Pipeline):
                check_steps(translation.steps)
            else:
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
