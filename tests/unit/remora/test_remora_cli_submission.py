"""`remora submit` and `remora convert` as their users see them: what is sent, and one line for what is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from remora.cli.exits import ExitCode
from tests.command_line import Cli
from tests.unit.remora.fake_service import FakeService


def test_submit_a_command_with_options(cli: Cli, service: FakeService, tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    (tmp_path / "needs.txt").touch()
    options = f"""--name digits --project vision --workers 1:3 --cpus 2 --gpus 0.5 --memory 1GiB --env A=1 -e B=x=y
        --backend command --priority 9 --checkpoint-interval 90 --checkpoint-keep 2 --retries 0 --run-time 2h
        --pool ib --pool a100 --capacity spot --fabric infiniband --code {tmp_path} -q
        --pip numpy --pip transformers==5.* --requirements needs.txt --python 3.12""".split()

    assert cli("submit", *options, "--", "python", "train.py", "--name", "mine") == ExitCode.OK

    (job,) = service.jobs.values()
    assert cli.out == f"{job.id}\n"
    assert job.spec["code"] in service.bundles
    assert {name: value for name, value in job.spec.items() if name != "code"} == {
        "name": "digits",
        "project": "vision",
        "command": ["python", "train.py", "--name", "mine"],
        "backend": "command",
        "workers": {"min": 1, "max": 3, "multiple_of": 1},
        "workers_per_node": None,
        "resources": {"gpus": 0.5, "cpus": 2.0, "memory": 2**30, "device": "auto", "precision": "full"},
        "environment": {
            "image": None,
            "python": "3.12",
            "pip": ["numpy", "transformers==5.*"],
            "requirements": "needs.txt",
            "setup": None,
            "inherit": None,
            "variables": {"A": "1", "B": "x=y"},
            "secrets": [],
        },
        "inputs": {},
        "outputs": {},
        "placement": {"pools": ["ib", "a100"], "capacity": "spot", "zones": [], "fabric": "infiniband"},
        "elastic": {
            "exactness": "none",
            "global_batch": None,
            "shards": None,
            "nonfinite": "none",
            "verify": None,
        },
        "checkpoint": {"interval": 90.0, "keep": 2, "best": None, "store": None},
        "priority": 9,
        "array": None,
        "schedule": None,
        "labels": {},
        "after": [],
        "entrypoint": None,
        "arguments": {},
        "retry": {"limit": 0, "backoff": 1.0, "on_exit_codes": [], "on_log_patterns": []},
        "limits": {
            "run_time": 7200.0,
            "wait_time": None,
            "step_time": 600.0,
            "budget": None,
            "deadline": None,
        },
    }


def test_a_file_of_requirements_that_is_not_in_the_code_is_named(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    options = ("--code", str(tmp_path), "--requirements", "needs.txt")
    assert cli("submit", *options, "--", "python", "train.py") != ExitCode.OK
    assert "environment.requirements: there is no file 'needs.txt' in the code" in cli.err
    (tmp_path / "uv.lock").touch()
    options = ("--code", str(tmp_path), "--requirements", "uv.lock")
    assert cli("submit", *options, "--", "python", "train.py") != ExitCode.OK
    assert "there is no 'pyproject.toml' in the code, to which 'uv.lock' belongs; add it" in cli.err


def test_submit_a_file_whose_fields_options_override(cli: Cli, service: FakeService, tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(
        "command: python train.py\nworkers: 2\nenvironment: {variables: {A: '1'}}\nretry: {limit: 7}\n"
    )

    assert cli("submit", str(file), "--workers", "4", "-e", "B=2", "--json") == ExitCode.OK

    spec = cli.json["spec"]
    assert spec["workers"] == {"min": 4, "max": 4, "multiple_of": 1}
    assert spec["environment"]["variables"] == {"A": "1", "B": "2"}
    assert (spec["retry"]["limit"], spec["code"]) == (7, None)


def test_without_a_file_the_current_folder_is_the_code(
    cli: Cli, service: FakeService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    assert cli("submit", "--", "python", "train.py") == ExitCode.OK
    assert len(service.bundles) == 1
    assert cli("submit", "--no-code", "--", "true") == ExitCode.OK
    assert [job.spec["code"] for job in service.jobs.values()] == [next(iter(service.bundles)), None]


def test_a_file_of_several_documents_is_searched_for_the_job(
    cli: Cli, service: FakeService, tmp_path: Path
) -> None:
    job = (Path(__file__).parent / "foreign_jobs" / "pytorchjob.yaml").read_text()
    file = tmp_path / "job.yaml"
    file.write_text(f"---\napiVersion: v1\nkind: Service\nmetadata: {{name: board}}\n---\n{job}\n---\n")
    assert cli("submit", str(file), "--no-code") == ExitCode.OK
    assert "Service board" in cli.err
    assert "only the job of the file is taken" in cli.err
    file.write_text("command: python a.py\n---\n")
    assert cli("submit", str(file)) == ExitCode.OK
    file.write_text("command: python a.py\n---\ncommand: python b.py\n")
    assert cli("submit", str(file)) == ExitCode.USAGE
    assert "holds 2 documents; write each into a file of its own" in cli.err


def test_one_quoted_word_is_a_command_line(cli: Cli, service: FakeService) -> None:
    for line, command in (
        ("cd src && python train.py > log", ["bash", "-c", "cd src && python train.py > log"]),
        ("python train.py --config c.yaml", ["python", "train.py", "--config", "c.yaml"]),
    ):
        assert cli("submit", "--no-code", "--", line) == ExitCode.OK
        assert json.loads(service.requests[-1].body)["command"] == command


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["submit"], "name a specification's file"),
        (["submit", "nowhere.yaml"], "cannot read nowhere.yaml: No such file or directory"),
        (["submit", "list.yaml"], "list.yaml holds no mapping"),
        (["submit", "bad.yaml"], "bad.yaml is not YAML"),
        (["submit", "list.yaml", "more"], "a file has its command inside"),
        (["submit", "--worker", "2", "--", "x"], "No such option: --worker"),
        (
            ["submit", "train.py", "--lr", "1"],
            "options of the command itself stand behind --: remora submit -- python",
        ),
        (["submit", "--workers", "2:3:4", "--", "x"], "expected a number such as 2, or a range such as 1:3"),
        (["submit", "--workers", "0", "--", "x"], "workers: 0 given"),
        (["submit", "--env", "A", "--", "x"], "expected NAME=VALUE"),
        (["submit", "--run-time", "long", "--", "x"], "--run-time 'long': expected a duration"),
        (["submit", "--code", "/nowhere", "--", "x"], "the code folder /nowhere does not exist"),
        (["submit", "--backend", "horovod", "--", "x"], "this version has no horovod backend of its own"),
        (["--server", "x", "list"], "No such option"),
        (["convert", "own.yaml"], "own.yaml is no job of Azure ML or Kubeflow"),
        (
            ["convert", "spark.yaml"],
            "type: Azure ML's spark jobs are not taken; Remora trains",
        ),
        (
            ["submit", "spark.yaml"],
            "type: Azure ML's spark jobs are not taken; Remora trains",
        ),
        (["submit", "own.yaml", "--input", "a=b"], "--input is for jobs of Azure ML"),
        (["submit", "--input", "a=b", "--", "x"], "--input is for the file of an Azure ML job"),
        (["list", "--server", "x"], "'x' (the server option) is no address"),
        (["wait", "last", "--timeout", "x"], "--timeout 'x': expected a duration"),
        (["lisst"], "Did you mean 'list'?"),
        (["logs", "last", "--tail", "0"], "greater than or equal to 1"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(
    cli: Cli,
    service: FakeService,
    arguments: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "list.yaml").write_text("- x")
    (tmp_path / "bad.yaml").write_text("[")
    (tmp_path / "own.yaml").write_text("command: x")
    (tmp_path / "spark.yaml").write_text("type: spark")
    (tmp_path / "train.py").touch()

    assert cli(*arguments) == ExitCode.USAGE

    assert said in cli.err
    assert cli.err.count("\n") == 1
    assert cli.out == ""
    assert not service.jobs


def test_a_bad_specification_prints_a_line_for_each_problem(
    cli: Cli, service: FakeService, tmp_path: Path
) -> None:
    (tmp_path / "job.yaml").write_text("comand: x\nworkers: -1\n")
    assert cli("submit", str(tmp_path / "job.yaml")) == ExitCode.USAGE
    assert cli.err.splitlines() == [
        "remora: command: missing; expected a command line, or a list of texts",
        "remora: workers: -1 given, expected a whole number from 1 to 4096, or {min: .., max: .., multiple_of: ..}",
        "remora: comand: unknown key; did you mean command?",
    ]


AZUREML = """
type: command
code: src
command: python train.py --epochs ${{inputs.epochs}}
inputs: {epochs: 5}
environment: azureml:AzureML-pytorch@latest
distribution: {type: pytorch}
resources: {instance_count: 2}
display_name: Digits
"""


def test_an_azure_ml_job_is_submitted_as_it_is_with_notes(
    cli: Cli, service: FakeService, tmp_path: Path
) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src/train.py").touch()
    (tmp_path / "job.yml").write_text(AZUREML)

    assert cli("submit", str(tmp_path / "job.yml"), "--input", "epochs=7", "--gpus", "1") == 0

    (job,) = service.jobs.values()
    assert (job.name, job.spec["workers"], job.spec["resources"]["gpus"]) == (
        "digits",
        {"min": 2, "max": 2, "multiple_of": 1},
        1,
    )
    assert job.spec["command"] == ["python", "train.py", "--epochs", "7"]
    assert job.spec["code"].startswith("sha256:")
    notes = [" ".join(line.split()) for line in cli.err.splitlines()]
    assert notes[0] == "This is an Azure ML command job. What was mapped to what:"
    assert "display_name -> name: digits" in notes
    assert notes[notes.index("Not honoured:") + 1].startswith("environment the image is not taken over")


def test_convert_prints_a_specification_that_submits_the_same(
    cli: Cli, service: FakeService, tmp_path: Path
) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src/train.py").touch()
    (tmp_path / "job.yml").write_text(AZUREML)
    assert cli("convert", str(tmp_path / "job.yml"), "--strict") == ExitCode.USAGE
    assert cli.err.splitlines()[-1] == "remora: 1 of its fields is not honoured"
    (tmp_path / "job.yaml").write_text(cli.out)
    for file in ("job.yml", "job.yaml"):
        assert cli("submit", "-q", str(tmp_path / file)) == 0
        assert cli.err == ""
    first, second = service.jobs.values()
    assert first.spec == second.spec
    assert cli("convert", "--json", str(tmp_path / "job.yml")) == 0
    assert cli.json["source"] == "an Azure ML command job"


def test_jobs_that_come_first_are_found_by_the_beginnings_of_their_ids(
    cli: Cli, service: FakeService, tmp_path: Path
) -> None:
    first, second = service.add_job("a"), service.add_job("b")
    asked = ("--after", first.id, "--after", "last:any", "--no-code", "-q")
    assert cli("submit", *asked, "--", "true") == ExitCode.OK
    *_, job = service.jobs.values()
    assert job.spec["after"] == [{"job": first.id, "when": "success"}, {"job": second.id, "when": "any"}]
    assert cli("show", job.id) == ExitCode.OK
    assert f"success of {first.id}, any of {second.id}" in cli.out
    assert cli("submit", "--after", f"{first.id}:soon", "--no-code", "--", "true") == ExitCode.USAGE
    assert "after.0.when: 'soon' given" in cli.err


def test_a_script_is_run_by_the_python_of_the_job(
    cli: Cli, service: FakeService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    assert cli("submit", "-q", "train.py") == ExitCode.OK
    assert cli("submit", "-q", "--workers", "2", "--", "train.py", "--epochs", "5") == ExitCode.OK
    first, second = service.jobs.values()
    assert first.spec["command"] == ["python", "train.py"]
    assert second.spec["command"] == ["python", "train.py", "--epochs", "5"]


@pytest.mark.parametrize(
    ("command", "missing"),
    [
        ("python train.py", "train.py"),
        ("python3.11 -u -W ignore ./src/train.py --lr 1", "src/train.py"),
        ("torchrun train.py", "train.py"),
        ("python -m train", None),
        ("python -c pass train.py", None),
        ("python /opt/train.py", None),
        ("python ../train.py", None),
        ("python results/made.py", None),
        ("bash -c 'python train.py'", None),
    ],
)
def test_a_script_that_is_not_in_the_code_is_named_before_anything_is_sent(
    command: str, missing: str | None, cli: Cli, service: FakeService, tmp_path: Path
) -> None:
    (tmp_path / "other.py").touch()
    file = tmp_path / "job.yaml"
    file.write_text(f"command: {command}\ncode: .\noutputs: {{made: {{path: results}}}}\n")
    code = cli("submit", "-q", str(file))
    if missing is None:
        assert code == ExitCode.OK, cli.err
        return
    assert code == ExitCode.USAGE
    assert f"command: there is no file '{missing}' in the code" in cli.err
    assert service.jobs == {}


def test_an_image_is_named_and_takes_the_place_of_packages(cli: Cli, service: FakeService) -> None:
    assert (
        cli("submit", "-q", "--image", "docker.io/library/python:3.12", "--no-code", "--", "python", "-V")
        == ExitCode.OK
    )
    (job,) = service.jobs.values()
    assert job.spec["environment"]["image"] == "docker.io/library/python:3.12"
    assert cli("submit", "--image", "localhost/own", "--pip", "numpy", "--", "python", "-V") == ExitCode.USAGE
