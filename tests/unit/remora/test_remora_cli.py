"""The command line as its users see it: output, one-line errors, exit codes."""

from __future__ import annotations

import csv
import json
import os
import pty
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

import remora
from remora import JobState, NodeState
from remora.cli.exits import HELP, ExitCode
from remora.cli.main import run
from remora.cli.output import clock
from remora.views import Attempt, Checkpoint, Drill, Job, MetricPoint, Node, NodeEvent, Pool, PoolWait
from tests.unit.remora.fake_service import FakeService, problem, tar_of

ROOT = Path(remora.__file__).parent.parent


COMMANDS = (
    *("up", "down", "submit", "convert", "list", "show", "logs", "events", "metrics", "cancel", "wait"),
    *(
        "nodes",
        "pools",
        "drill",
        "checkpoints",
        "download",
        "outputs",
        "models",
        "plan",
        "policy",
        "trace",
        "version",
    ),
)


class Cli:
    """Runs commands in this process and keeps what they print."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys = capsys
        self.out = self.err = ""

    def __call__(self, *arguments: str) -> int:
        self.capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            run(arguments)
        self.out, self.err = self.capsys.readouterr()
        assert "Traceback" not in self.err
        return int(ended.value.code or 0)

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    return Cli(capsys)


def test_submit_a_command_with_options(cli: Cli, service: FakeService, tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    options = f"""--name digits --project vision --workers 1:3 --cpus 2 --gpus 0.5 --memory 1GiB --env A=1 -e B=x=y
        --backend command --priority 9 --checkpoint-interval 90 --checkpoint-keep 2 --retries 0 --run-time 2h
        --pool ib --pool a100 --capacity spot --fabric infiniband --code {tmp_path} -q""".split()

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
        "resources": {"gpus": 0.5, "cpus": 2.0, "memory": 2**30, "device": "auto", "precision": "full"},
        "environment": {"variables": {"A": "1", "B": "x=y"}},
        "outputs": {},
        "placement": {"pools": ["ib", "a100"], "capacity": "spot", "zones": [], "fabric": "infiniband"},
        "elastic": {"exactness": "none", "global_batch": None, "shards": None},
        "checkpoint": {"interval": 90.0, "keep": 2, "best": None, "store": None},
        "priority": 9,
        "retry": {"limit": 0, "backoff": 1.0},
        "limits": {
            "run_time": 7200.0,
            "wait_time": None,
            "step_time": 600.0,
            "budget": None,
            "deadline": None,
        },
    }


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


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["submit"], "Missing argument"),
        (["submit", "nowhere.yaml"], "cannot read nowhere.yaml: No such file or directory"),
        (["submit", "list.yaml"], "list.yaml holds no mapping"),
        (["submit", "bad.yaml"], "bad.yaml is not YAML"),
        (["submit", "list.yaml", "more"], "a file has its command inside"),
        (["submit", "train.py"], "write: remora submit -- python train.py"),
        (["submit", "--worker", "2", "--", "x"], "No such option: --worker"),
        (["submit", "--workers", "2:3:4", "--", "x"], "expected a number such as 2, or a range such as 1:3"),
        (["submit", "--workers", "0", "--", "x"], "workers: 0 given"),
        (["submit", "--env", "A", "--", "x"], "expected NAME=VALUE"),
        (["submit", "--run-time", "long", "--", "x"], "--run-time 'long': expected a duration"),
        (["submit", "--code", "/nowhere", "--", "x"], "the code folder /nowhere does not exist"),
        (["submit", "--backend", "horovod", "--", "x"], "this version has no horovod backend of its own"),
        (["--server", "x", "list"], "No such option"),
        (["convert", "own.yaml"], "own.yaml is no job of Azure ML or Kubeflow"),
        (["convert", "sweep.yaml"], "type: Azure ML's sweep jobs are not taken; a sweep submits"),
        (["submit", "sweep.yaml"], "type: Azure ML's sweep jobs are not taken; a sweep submits"),
        (["submit", "own.yaml", "--input", "a=b"], "--input is for Azure ML command jobs"),
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
    (tmp_path / "sweep.yaml").write_text("type: sweep")
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
    assert notes[notes.index("Not honoured:") + 1].startswith("environment there are no images")


def test_convert_prints_a_specification_that_submits_the_same(
    cli: Cli, service: FakeService, tmp_path: Path
) -> None:
    (tmp_path / "src").mkdir()
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


def test_nobody_there_is_exit_code_5(cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("remora.cli.session.SHORT_S", 0)
    monkeypatch.delenv("REMORA_SERVER", raising=False)
    monkeypatch.setenv("REMORA_HOME", str(tmp_path))
    (tmp_path / "api.url").write_text("http://127.0.0.1:9")
    assert cli("list") == ExitCode.UNREACHABLE
    assert cli.err.count("\n") == 1
    assert "start it with: remora up" in cli.err


def test_an_unknown_job_is_exit_code_3(cli: Cli, service: FakeService) -> None:
    for command in ("show", "logs", "events", "metrics", "cancel", "wait", "checkpoints", "download"):
        assert cli(command, "job_nobody") == ExitCode.NOT_FOUND
        assert cli.err == "remora: there is no job 'job_nobody'; remora list shows the jobs\n"


def test_an_empty_name_is_refused_and_nobody_is_taken_for_it(cli: Cli, service: FakeService) -> None:
    job = service.add_job("only")
    for command in ("show", "logs", "events", "metrics", "cancel", "wait", "checkpoints", "download"):
        assert cli(command, "") == ExitCode.USAGE
        assert cli.err == "remora: the id of the job is empty: name it, or `last` for the newest one\n"
    assert cli("drill", "--pool", "", "--silent") == ExitCode.USAGE
    assert cli.err == "remora: the name of the pool is empty: name it\n"
    assert not [seen for seen in service.requests if seen.method == "POST"]
    assert service.jobs[job.id].cancel_requested_at is None


def test_an_error_of_the_service_is_exit_code_1(cli: Cli, service: FakeService) -> None:
    service.faults = [problem(500, "internal", "It broke\nin two lines.", hint="Tell us.")]
    assert cli("nodes") == ExitCode.ERROR
    assert cli.err == "remora: It broke in two lines; Tell us.\n"


def test_list_in_a_pipe_is_plain_columns(cli: Cli, service: FakeService) -> None:
    assert cli("list") == ExitCode.OK
    assert (cli.out, cli.err.count("\n")) == ("", 1)
    service.add_job("one", step=7, total_steps=9, world_size=3)
    service.add_job("two\x1b[31m", JobState.FAILED, message="exit code 3")

    assert cli("list") == ExitCode.OK

    head, second, first = cli.out.splitlines()
    assert head.split() == ["ID", "NAME", "STATE", "STEP", "WORKERS", "AGE", "MESSAGE"]
    assert first.split()[1:5] == ["one", "running", "7/9", "3"]
    assert second.endswith("exit code 3")
    assert "\x1b" not in cli.out
    assert cli("list", "--json", "--state", "failed") == ExitCode.OK
    assert [job["name"] for job in cli.json] == ["two\x1b[31m"]


def test_show(cli: Cli, service: FakeService) -> None:
    job = service.add_job(step=3, checkpoint_step=2)
    attempt = Attempt(
        id="att_1",
        job_id=job.id,
        attempt=1,
        state="ended",
        end_reason="exit_code",
        exit_code=3,
        created_at=1,
        ended_at=9,
    )  # type: ignore[arg-type]
    service.attempts = [attempt]
    assert cli("show", "last") == ExitCode.OK
    assert "command         python train.py" in cli.out
    assert "checkpoint      step 2" in cli.out
    assert cli.out.splitlines()[-1].split() == ["1", "ended", "exit_code", "3", "beginning", "8s"]
    assert cli("show", "last", "--json") == ExitCode.OK
    assert cli.json["id"] == job.id


def test_logs_events_and_nodes(cli: Cli, service: FakeService) -> None:
    job = service.add_job(state=JobState.SUCCEEDED)
    for at in range(4):
        service.add_log(job, f"line {at}", rank=at % 2)
    service.add_event(job, "job.queued", "Waits for its turn.")
    service.nodes = [Node(id="node_1", pool="local", state="ready", resources={"CPU": 1.0}, created_at=1.0)]  # type: ignore[arg-type]

    assert cli("logs", "last", "--tail", "2") == ExitCode.OK
    assert cli.out == "[0] line 2\n[1] line 3\n"
    assert cli("logs", "last", "-f", "--rank", "1") == ExitCode.OK
    assert "line 1\n" in cli.out
    assert cli("logs", "last", "-f", "--json") == ExitCode.OK
    assert [json.loads(line)["text"] for line in cli.out.splitlines()] == [f"line {at}" for at in range(4)]
    assert cli("events", "last", "-f") == ExitCode.OK
    assert cli.out.endswith("job.queued                Waits for its turn.\n")
    assert cli("nodes") == ExitCode.OK
    assert cli.out.splitlines()[1].split()[:4] == ["node_1", "local", "ready", "CPU=1"]
    assert cli("nodes", "--json") == ExitCode.OK
    assert cli.json[0]["id"] == "node_1"


def test_what_happened_to_a_node_and_what_is_planned_for_it(cli: Cli, service: FakeService) -> None:
    service.node_events = [
        NodeEvent(seq=1, node_id="node_1", at=1.0, kind="node.ready", message="It may be given work.")
    ]
    working = Node(id="node_1", pool="local", state=NodeState.READY, created_at=1.0)
    service.nodes = [working]
    assert cli("nodes", "node_1") == ExitCode.OK
    assert cli.out.endswith("node.ready                It may be given work.\n")
    service.nodes = [working.model_copy(update={"reason": "it is unused", "reason_since": 5.0})]
    assert cli("nodes", "node_1") == ExitCode.OK
    said = f"it is unused (since {clock(5.0)})"
    assert cli.out.splitlines()[-1].split(maxsplit=2)[1:] == ["now", said]
    assert cli("nodes") == ExitCode.OK
    assert cli.out.splitlines()[1].endswith("  it is unused")
    assert cli("nodes", "node_1", "--json") == ExitCode.OK
    assert cli.json[0]["kind"] == "node.ready"
    assert cli("nodes", "../jobs") == ExitCode.NOT_FOUND


def test_pools_tell_their_nodes_their_limits_and_what_holds_them_up(cli: Cli, service: FakeService) -> None:
    assert cli("pools") == ExitCode.OK
    assert cli.err == "There are no pools.\n"
    waits = [PoolWait(reason="spot is sold out", since=5.0), PoolWait(reason="1 node goes later", since=9.0)]
    nodes = {NodeState.READY: 2, NodeState.DRAINING: 1}
    service.pools = [
        Pool(name="cpu", min_nodes=1, max_nodes=4, warm_nodes=1, nodes=nodes, waits=waits),
        Pool(name="gpu", max_nodes=2),
    ]
    assert cli("pools") == ExitCode.OK
    table = [re.split(r" {2,}", line) for line in cli.out.splitlines()]
    assert table == [
        ["POOL", "NODES", "LIMITS", "SINCE", "WHAT HOLDS IT UP"],
        ["cpu", "2 ready, 1 draining", "1 to 4, 1 warm", clock(5.0), "spot is sold out"],
        ["", clock(9.0), "1 node goes later"],
        ["gpu", "none", "0 to 2"],
    ]
    assert cli("pools", "--json") == ExitCode.OK
    assert cli.json[0]["waits"][0] == {"reason": "spot is sold out", "since": 5.0}


def test_a_running_job_tells_why_it_has_not_more_workers(cli: Cli, service: FakeService) -> None:
    service.add_job(state=JobState.RUNNING, why_short="pool 'p' may have 1 node")
    assert cli("show", "last") == ExitCode.OK
    assert "why not more    pool 'p' may have 1 node\n" in cli.out


DRILL: dict[str, Any] = {"id": "drill_1", "node_ids": ["node_1"], "notice_s": 30.0, "requested_at": 1.0}
COST: dict[str, Any] = {
    "job_id": "job_1",
    "name": "digits",
    "workers_before": 3,
    "workers_least": 2,
    "workers": 3,
    "repeated_steps": 4,
    "next_step_s": 0.25,
    "pause_s": 6.0,
    "full_after_s": 20.0,
}


def drill(state: str, **fields: Any) -> Drill:
    return Drill.model_validate({**DRILL, "state": state, **fields})


def test_a_drill_is_watched_to_its_end_and_its_cost_printed(
    cli: Cli, service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("remora.cli.drill.LOOK_S", 0.0)
    service.drills = [
        drill("requested"),
        drill("struck", struck_at=2.0),
        drill("struck", struck_at=2.0, taken_at=32.0),
        drill("ended", struck_at=2.0, taken_at=32.0, ended_at=52.0, jobs=[COST]),
    ]
    assert cli("drill", "--node", "node_1") == ExitCode.OK
    header, row = cli.out.splitlines()
    assert header.split("  ")[0] == "JOB"
    assert " ".join(row.split()) == "job_1 digits 4 after 0.2 s 6.0 s 3 -> 2 -> 3 after 20.0 s"
    assert cli.err.splitlines() == [
        "Waiting for the controller to take node_1 ...",
        "node_1 will be gone 30 s after the notice ...",
        "node_1 gone; waiting until every job has its workers back ...",
    ]
    assert json.loads(service.requests[0].body) == {"notice_s": 30.0}


def test_a_silent_drill_of_a_pool_and_what_it_may_answer(
    cli: Cli, service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("remora.cli.drill.LOOK_S", 0.0)
    service.drills = [
        drill("struck", notice_s=None, struck_at=2.0),
        drill("struck", notice_s=None, struck_at=2.0, taken_at=2.0),
        drill("ended", notice_s=None, ended_at=52.0),
    ]
    assert cli("drill", "--pool", "gpu", "--silent") == ExitCode.OK
    assert cli.err.splitlines() == [
        "Taking node_1 ...",
        "node_1 gone; waiting until every job has its workers back ...",
        "No job lost a worker.",
    ]

    service.drills = [drill("ended", ended_at=52.0)]
    assert cli("drill", "--pool", "a/b", "--silent", "--json") == ExitCode.OK
    assert (cli.json["id"], cli.json["jobs"]) == ("drill_1", [])
    assert service.requests[-1].path in ("/v1/pools/a/b/drill", "/v1/pools/a%2Fb/drill")
    assert json.loads(service.requests[-1].body) == {"silent": True}

    service.drills = [drill("requested")]
    assert cli("drill", "--node", "node_1", "--detach") == ExitCode.OK
    assert cli.out == "drill_1\n"

    service.drills = [drill("refused", ended_at=2.0, message="the node is not alive")]
    assert cli("drill", "--node", "node_1") == ExitCode.ERROR
    assert (cli.out, cli.err) == ("", "remora: the node is not alive\n")

    service.drills = [drill("ended", ended_at=52.0)]
    assert cli("drill", "--node", "node_1") == ExitCode.OK
    assert cli.err == "No job lost a worker.\n"


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("--node", "a", "--pool", "b"),
        ("--node", "a", "--silent", "--notice", "5s"),
        ("--pool", "b", "--notice", "x"),
    ],
)
def test_a_drill_of_nothing_or_in_two_ways_is_refused(cli: Cli, words: tuple[str, ...]) -> None:
    assert cli("drill", *words) == ExitCode.USAGE
    assert cli.err.count("\n") == 1


def test_metrics_as_table_json_and_csv(cli: Cli, service: FakeService, tmp_path: Path) -> None:
    service.add_job()
    values: list[dict[str, float | None]] = [{"loss": 0.5}, {"loss": None, "accuracy": 0.25}]
    service.metrics = [
        MetricPoint(step=step, at=1.5, attempt=1, world_size=2, values=found)
        for step, found in enumerate(values)
    ]
    assert cli("metrics", "last") == ExitCode.OK
    assert [line.split() for line in cli.out.splitlines()] == [
        ["STEP", "WORKERS", "LOSS", "ACCURACY"],
        ["0", "2", "0.5"],
        ["1", "2", "0.25"],
    ]
    assert cli("metrics", "last", "--json") == ExitCode.OK
    assert [point["values"] for point in cli.json] == values
    assert cli("metrics", "last", "-o", str(tmp_path / "m.csv")) == ExitCode.OK
    rows = list(csv.DictReader((tmp_path / "m.csv").open()))
    assert rows[1] == {
        "step": "1",
        "at": "1.5",
        "attempt": "1",
        "world_size": "2",
        "loss": "",
        "accuracy": "0.25",
    }
    assert cli("metrics", "last", "-o", "-") == ExitCode.OK
    assert cli.out.startswith("step,at,attempt,world_size,loss,accuracy")
    assert cli("metrics", "last", "-o", str(tmp_path / "no" / "m.csv")) == ExitCode.ERROR
    assert cli.err.count("\n") == 1


def test_cancel(cli: Cli, service: FakeService) -> None:
    job = service.add_job()
    assert cli("cancel", job.id) == ExitCode.OK
    assert "cancelled" in cli.out
    assert cli("cancel", job.id) == ExitCode.ERROR
    assert cli.err == "remora: the job has ended; Nothing is left to do.\n"


@pytest.mark.parametrize(
    ("state", "code"),
    [
        (JobState.SUCCEEDED, 0),
        (JobState.FAILED, ExitCode.JOB_FAILED),
        (JobState.CANCELLED, ExitCode.JOB_CANCELLED),
    ],
)
def test_the_exit_code_of_wait_says_how_the_job_ended(
    cli: Cli, service: FakeService, state: JobState, code: int
) -> None:
    service.add_job(state=state, message="so it is")
    assert cli("wait", "last") == code
    assert cli.out.endswith(f"digits: {state}, so it is\n")
    assert cli("wait", "last", "--json") == code
    assert cli.json["state"] == state


def test_wait_that_gives_up_is_exit_code_6(cli: Cli, service: FakeService) -> None:
    service.add_job()
    assert cli("wait", "last", "--timeout", "0.1") == ExitCode.TIMEOUT
    assert "goes on" in cli.err


def test_checkpoints_and_download(cli: Cli, service: FakeService, tmp_path: Path) -> None:
    service.add_job()
    service.archive = tar_of({"model.pt": b"weights"})
    service.checkpoints = [
        Checkpoint(
            step=5,
            attempt=1,
            world_size=2,
            committed_at=1.0,
            size_bytes=7,
            location="/x/5",
            files={"model.pt": 7},
        )
    ]
    assert cli("checkpoints", "last") == ExitCode.OK
    assert cli.out.splitlines()[1].endswith("/x/5")
    assert cli("download", "last", "-o", str(tmp_path / "out")) == ExitCode.OK
    assert cli.out == f"step 5, 1 files, 7 B: {tmp_path / 'out'}\n"
    assert (tmp_path / "out/model.pt").read_bytes() == b"weights"
    assert cli("download", "last", "--step", "6") == ExitCode.NOT_FOUND


def test_outputs_and_models(cli: Cli, service: FakeService, tmp_path: Path) -> None:
    service.add_job()
    assert cli("outputs", "last") == 0
    assert cli.err == "The job has no outputs yet.\n"
    service.outputs = {"model/w.pt": b"weights"}
    service.versions = 2
    assert cli("outputs", "last") == 0
    assert [line.split()[0] for line in cli.out.splitlines()] == ["NAME", "model/w.pt"]
    assert cli("outputs", "last", "--download", str(tmp_path / "out")) == 0
    assert (tmp_path / "out/model/w.pt").read_bytes() == b"weights"
    assert cli("models") == 0
    assert [line.split()[:2] for line in cli.out.splitlines()] == [["NAME", "VERSION"], ["digits", "2"]]
    assert cli("models", "versions", "digits", "--json") == 0
    assert [one["version"] for one in cli.json] == [2, 1]
    assert cli("models", "download", "digits:1", str(tmp_path / "model")) == 0
    assert cli.out.startswith("digits:1, 1 files")
    assert cli("models", "download", "digits:new", str(tmp_path / "x")) == ExitCode.USAGE
    assert "expected NAME or NAME:VERSION" in cli.err
    assert cli("models", "download", "digits:3", str(tmp_path / "x")) == ExitCode.NOT_FOUND


def test_follow_in_a_pipe_tells_events_and_steps(
    cli: Cli, service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("remora.cli.progress.LOOK_S", 0)
    monkeypatch.setattr("remora.cli.progress.TELL_S", 0)
    _play(service)
    assert cli("submit", "--no-code", "-f", "--", "true") == ExitCode.JOB_FAILED
    told = [line.split("  ", 1)[-1].strip() for line in cli.out.splitlines()]
    assert told[1:] == [
        "attempt.started           It happened.",
        "step 1/4, loss 0.5, 2 workers",
        "step 2/4, loss not finite, 1 worker",
        "job.failed                It happened.",
        "step 4/4, loss 0.125, 0 workers",
        cli.out.splitlines()[-1].split("  ")[-1],
    ]
    _play(service)
    assert cli("submit", "--no-code", "-f", "--json", "--", "true") == ExitCode.JOB_FAILED
    lines = [json.loads(line) for line in cli.out.splitlines()]
    assert [line.get("kind", line.get("state")) for line in lines] == [
        "attempt.started",
        "job.failed",
        "failed",
    ]


def _play(service: FakeService) -> None:
    """Let the next job live a short life, one scene at each look at it."""

    def scene(
        kind: str | None, step: int, loss: float | None, workers: int, state: JobState
    ) -> Callable[[Job], None]:
        def happen(job: Job) -> None:
            if kind:
                service.add_event(job, kind)
            point = MetricPoint(step=step, at=1, attempt=1, world_size=workers, values={"loss": loss})
            service.metrics.append(point)
            service.change(job, state=state, step=step, total_steps=4, world_size=workers)

        return happen

    service.metrics = []
    service.scenes = [
        scene("attempt.started", 1, 0.5, 2, JobState.RUNNING),
        scene(None, 2, None, 1, JobState.RUNNING),
        scene("job.failed", 4, 0.125, 0, JobState.FAILED),
    ]


def test_a_terminal_shows_a_bar_and_a_table(service: FakeService) -> None:
    _play(service)
    code, shown = _on_terminal("submit", "--no-code", "-f", "--name", "seen", "--", "true")
    assert code == ExitCode.JOB_FAILED
    assert "attempt.started" in shown
    assert "step 4/4, loss 0.125, 0 workers" in shown
    assert "━" in shown
    code, shown = _on_terminal("list")
    assert code == 0
    assert "seen" in shown
    assert "─" in shown


def _on_terminal(*arguments: str) -> tuple[int, str]:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        _command(*arguments),
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "COLUMNS": "160", "TERM": "xterm"},
        cwd=ROOT,
    )
    os.close(theirs)
    shown = b""
    try:
        while chunk := os.read(ours, 4096):
            shown += chunk
    except OSError:  # Linux says so at the end of a terminal
        pass
    os.close(ours)
    return process.wait(timeout=20), shown.decode()


def _command(*arguments: str) -> list[str]:
    return [sys.executable, "-c", f"from remora.cli.main import run; run({list(arguments)!r})"]


def _wait_until_it_waits(process: subprocess.Popen[str]) -> None:
    """Python does not see a signal that comes in the instant before a system call until that call returns."""
    pause = threading.Event()
    while psutil.Process(process.pid).status() != psutil.STATUS_SLEEPING:
        pause.wait(0.01)


def test_ctrl_c_detaches_and_says_how_to_come_back(service: FakeService) -> None:
    job = service.add_job()
    service.add_log(job, "first line")
    process = subprocess.Popen(
        _command("logs", "-f", job.id), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "[0] first line\n"
    _wait_until_it_waits(process)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=20)
    assert process.returncode == ExitCode.DETACHED
    assert said == (
        f"\nDetached; the job {job.id} goes on. Come back: remora logs -f {job.id}  End it: remora cancel {job.id}\n"
    )


def test_a_reader_that_has_enough_is_no_error_message(service: FakeService) -> None:
    job = service.add_job(state=JobState.SUCCEEDED)
    for _ in range(3000):
        service.add_log(job, "x" * 100)
    process = subprocess.Popen(
        _command("logs", job.id), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait(timeout=20) == ExitCode.ERROR


def test_up_and_down_become_the_service(monkeypatch: pytest.MonkeyPatch, cli: Cli, tmp_path: Path) -> None:
    root = tmp_path / "root"
    for package in ("remora", "service"):
        (root / package).mkdir(parents=True)
    (root / "service/up.py").touch()
    monkeypatch.setattr(remora, "__file__", str(root / "remora/__init__.py"))
    became: list[list[str]] = []

    def execve(program: str, command: list[str], environ: dict[str, str]) -> None:
        assert environ["PYTHONPATH"].split(os.pathsep)[0] == str(root)
        became.append(command[1:])
        raise SystemExit(0)

    monkeypatch.setattr(os, "execve", execve)
    monkeypatch.chdir(tmp_path)

    cli("up", "--home", "here", "--port", "0", "--nodes", "2", "--node-cpus", "1")
    cli("down")

    assert became == [
        [
            "-P",
            "-m",
            "service.up",
            "--home",
            str(tmp_path / "here"),
            *["--port", "0", "--nodes", "2", "--node-cpus", "1"],
        ],
        ["-P", "-m", "service.up", "--down"],
    ]
    (root / "service/up.py").unlink()
    assert cli("up") == ExitCode.USAGE
    assert "this installation has only the client" in cli.err


def test_help_names_every_command_and_exit_code(cli: Cli) -> None:
    assert cli("--help") == ExitCode.OK
    assert all(f" {name} " in cli.out for name in COMMANDS)
    assert all(f"{code.value} " in HELP for code in ExitCode)
    assert cli("version") == ExitCode.OK
    assert cli.out == f"remora {remora.__version__}\n"
    assert cli() == ExitCode.USAGE
    assert "Usage" in cli.out + cli.err
    assert "remora:" not in cli.err


def test_job_ids_are_completed(service: FakeService, monkeypatch: pytest.MonkeyPatch) -> None:
    from remora.cli.options import complete_job

    job = service.add_job()
    assert complete_job("job_") == [job.id]
    assert complete_job("la") == ["last"]
    monkeypatch.setenv("REMORA_SERVER", "http://127.0.0.1:9")
    assert complete_job("") == []


def test_every_command_and_exit_code_is_documented() -> None:
    text = (ROOT / "docs/cli.md").read_text()
    assert [name for name in COMMANDS if f"`remora {name}" not in text] == []
    assert [code for code in ExitCode if f"| {code.value} |" not in text] == []
