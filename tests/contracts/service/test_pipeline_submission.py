"""`remora submit pipeline.yml` against a real service: once, interrupted by SIGKILL and repeated, and refused."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvicorn
import yaml

import remora
from remora.cli.exits import ExitCode
from remora.states import JobState
from remora.views import Job
from service.api.app import create_app
from service.settings import Settings
from tests.command_line import Cli

PIPELINE = """\
type: pipeline
display_name: digits
jobs:
  prep:
    command: python prep.py --to ${{outputs.table}}
    code: ./prep
    outputs: {table: }
  train:
    command: python train.py ${{inputs.table}} ${{outputs.model}}
    code: ./train
    inputs: {table: "${{parent.jobs.prep.outputs.table}}"}
    outputs: {model: }
  score:
    command: python score.py ${{inputs.table}} ${{inputs.model}}
    code: ./train
    inputs:
      table: ${{parent.jobs.prep.outputs.table}}
      model: ${{parent.jobs.train.outputs.model}}
"""
#: Ends its own process before the third job is sent.
KILLED = """\
import os, signal, sys
import remora.client.pipeline_flow as flow
from remora.cli.main import run

key_of, asked = flow.key_of, []

def key_or_end(*words):
    asked.append(words)
    if len(asked) == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return key_of(*words)

flow.key_of = key_or_end
run(["submit", sys.argv[1]])
"""


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Address of a service that the command line finds by itself."""
    listening = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    server = uvicorn.Server(uvicorn.Config(create_app(Settings(home=tmp_path / "home")), log_config=None))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    monkeypatch.setenv("REMORA_SERVER", url)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    yield url
    server.should_exit = True
    thread.join()
    listening.close()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    for folder, script in (("prep", "prep"), ("train", "train"), ("train", "score")):
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / f"{script}.py").write_text(f"print({script!r})")
    (tmp_path / "pipeline.yml").write_text(PIPELINE)
    return tmp_path / "pipeline.yml"


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    return Cli(capsys)


def jobs() -> dict[str, Job]:
    """The jobs that the service has, by their names; each name once."""
    with remora.Client() as client:
        found = client.jobs()
    named = {job.name: job for job in found}
    assert len(named) == len(found)
    return named


def test_each_step_is_a_job_that_waits_for_what_it_reads(service: str, file: Path, cli: Cli) -> None:
    assert cli("submit", str(file), "--priority", "60", "--label", "run=7") == ExitCode.OK
    found = jobs()
    prep, train, score = (found[name] for name in ("prep", "train", "score"))
    lines = [line.split() for line in cli.out.splitlines()]
    assert lines == [
        ["STEP", "JOB", "AFTER"],
        ["prep", prep.id, "-"],
        ["train", train.id, "prep"],
        ["score", score.id, "prep,", "train"],
    ]
    assert "jobs.train.inputs.table" in cli.err
    assert [one["job"] for one in score.spec["after"]] == [prep.id, train.id]
    assert train.spec["inputs"]["table"] == {
        "store": None,
        "path": None,
        "mode": "download",
        "job": prep.id,
        "output": "table",
    }
    assert {job.priority for job in found.values()} == {60}
    assert score.labels == {"pipeline": "digits", "run": "7"}
    assert train.spec["code"] == score.spec["code"] != prep.spec["code"]


def test_an_interrupted_submission_goes_on_where_it_was(service: str, file: Path, cli: Cli) -> None:
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, str(file)], check=False, capture_output=True, env={**os.environ}
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    before = jobs()
    assert set(before) == {"prep", "train"}

    assert cli("submit", str(file), "--quiet") == ExitCode.OK
    after = jobs()
    assert {name: job.id for name, job in before.items()}.items() < {
        name: job.id for name, job in after.items()
    }.items()
    assert cli.out.split() == [after[name].id for name in ("prep", "train", "score")]

    # A submission that is complete is over: the same file again is three more jobs.
    assert cli("submit", str(file), "--quiet") == ExitCode.OK
    assert not {job.id for job in after.values()} & set(cli.out.split())
    with remora.Client() as client:
        assert len(client.jobs()) == 6


def test_with_other_code_it_is_another_submission(service: str, file: Path, cli: Cli) -> None:
    subprocess.run([sys.executable, "-c", KILLED, str(file)], check=False, capture_output=True)
    (file.parent / "prep" / "prep.py").write_text("print('changed')")
    assert cli("submit", str(file), "--quiet") == ExitCode.OK
    with remora.Client() as client:
        assert sorted(job.name for job in client.jobs()) == ["prep", "prep", "score", "train", "train"]


def test_a_key_of_ones_own_makes_each_job_once(service: str, file: Path, cli: Cli) -> None:
    first, again = (
        (cli("submit", str(file), "--quiet", "--idempotency-key", "nightly-3"), cli.out) for _ in range(2)
    )
    assert first == again
    assert len(jobs()) == 3


def test_nothing_is_submitted_when_one_step_is_refused(service: str, file: Path, cli: Cli) -> None:
    wrong = PIPELINE.replace("./train\n    inputs: {table", "azureml:code:1\n    inputs: {table").replace(
        "display_name: digits", "display_name: digits\ncolour: red"
    )
    file.write_text(wrong.replace("--to ${{outputs.table}}", "--to ${{outputs.tables}}"))
    assert cli("submit", str(file)) == ExitCode.USAGE
    assert "jobs.prep.command: ${{outputs.tables}} is not among the job's outputs" in cli.err
    assert "jobs.train.code: azureml:code:1 is no folder on this machine" in cli.err
    file.write_text(PIPELINE)
    (file.parent / "empty").mkdir()
    file.write_text(PIPELINE.replace("python prep.py", "python -m gone").replace("./train", "./empty"))
    assert cli("submit", str(file), "--requirements", "needs.txt") == ExitCode.USAGE
    for step in ("prep", "train", "score"):
        assert f"jobs.{step}." in cli.err
    file.write_text(PIPELINE)
    assert cli("submit", str(file), "--workers", "9:2") == ExitCode.USAGE
    for step in ("prep", "train", "score"):
        assert f"jobs.{step}.workers: " in cli.err
    for option in (["--name", "x"], ["--follow"], ["--no-code"]):
        assert cli("submit", str(file), *option) == ExitCode.USAGE
        assert f"{option[0]} is for one job, and this file has 3" in cli.err
    assert jobs() == {}


def test_what_the_service_refuses_later_cancels_the_steps_before(service: str, file: Path, cli: Cli) -> None:
    # Only the service knows which stores there are.
    file.write_text(
        PIPELINE.replace(
            "      model: $", "      weights: {path: azureml://datastores/gone/paths/w}\n      model: $"
        )
    )
    assert cli("submit", str(file)) != ExitCode.OK
    assert "remora: 2 of 3 steps were submitted, and are cancelled again" in cli.err
    assert "gone" in cli.err
    assert {name: job.state for name, job in jobs().items()} == {
        "prep": JobState.CANCELLED,
        "train": JobState.CANCELLED,
    }
    file.write_text(PIPELINE)
    assert cli("submit", str(file), "--quiet") == ExitCode.OK
    with remora.Client() as client:
        assert sum(job.state is JobState.QUEUED for job in client.jobs()) == 3


def test_a_conversion_shows_every_step_with_the_names_of_the_others(file: Path, cli: Cli) -> None:
    assert cli("convert", str(file)) == ExitCode.OK
    prep, train, score = yaml.safe_load_all(cli.out)
    assert (prep["name"], train["after"], score["after"]) == ("prep", ["prep"], ["prep", "train"])
    assert score["inputs"] == {
        "table": {"job": "prep", "output": "table"},
        "model": {"job": "train", "output": "model"},
    }
    assert cli("convert", str(file), "--json") == ExitCode.OK
    assert '"name": "score"' in cli.out


def test_a_dry_run_tries_every_step_and_stores_nothing(service: str, file: Path, cli: Cli) -> None:
    assert cli("submit", str(file), "--dry-run", "--priority", "60") == ExitCode.OK
    prep, train, score = yaml.safe_load_all(cli.out)
    assert [one["job"] for one in score["after"]] == ["prep", "train"]
    assert (train["inputs"]["table"]["job"], train["inputs"]["table"]["output"]) == ("prep", "table")
    assert {one["priority"] for one in (prep, train, score)} == {60}
    assert "Nothing was submitted. They would be 3 jobs." in cli.err

    wrong = PIPELINE.replace(
        "      model: $", "      weights: {path: azureml://datastores/gone/paths/w}\n      model: $"
    )
    file.write_text(wrong)
    assert cli("submit", str(file), "--dry-run", "--cpus", "4000", "--json") == ExitCode.USAGE
    found = cli.json["steps"]
    assert {name: [one["field"] for one in step["problems"]] for name, step in found.items()} == {
        "prep": [],
        "train": [],
        "score": ["inputs.weights.store"],
    }
    assert all("4000 CPU" in step["never"] for step in found.values())
    assert cli("submit", str(file), "--dry-run") == ExitCode.USAGE
    assert "jobs.score.inputs.weights.store: " in cli.err
    assert "Nothing was submitted" not in cli.err
    assert jobs() == {}
