"""The command line as its users see it: output, one-line errors, exit codes."""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

import remora
from remora import JobState, NodeState, installation
from remora.cli.exits import HELP, ExitCode
from remora.cli.output import clock, date
from remora.spec.quantities import format_duration
from remora.views import (
    AccountLine,
    Attempt,
    Checkpoint,
    ClusterLedger,
    CostLine,
    CostReport,
    GoodputLoss,
    GoodputReport,
    MetricPoint,
    Node,
    NodeEvent,
    Page,
    Pool,
    PoolWait,
    RefusedOffering,
)
from tests.command_line import ROOT, Cli
from tests.unit.remora.fake_service import FakeService, problem, tar_of

COMMANDS = (
    *("up", "down", "submit", "convert", "list", "show", "logs", "events", "metrics", "cancel", "wait"),
    *("arrays", "schedules", "pause", "resume", "resize", "clone", "label", "delete"),
    *(
        "nodes",
        "pools",
        "drill",
        "goodput",
        "report",
        "checkpoints",
        "download",
        "export",
        "outputs",
        "models",
        "plan",
        "policy",
        "trace",
        "version",
    ),
)


def test_no_service_there_is_exit_code_5(cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("remora.cli.session.SHORT_S", 0)
    monkeypatch.delenv("REMORA_SERVER", raising=False)
    monkeypatch.setenv("REMORA_HOME", str(tmp_path))
    (tmp_path / "api.url").write_text("http://127.0.0.1:9")
    assert cli("list") == ExitCode.UNREACHABLE
    assert cli.err.count("\n") == 1
    assert "start it with: remora up" in cli.err


def test_an_unknown_job_is_exit_code_3(cli: Cli, service: FakeService) -> None:
    for command in ("show", "logs", "events", "metrics", "cancel", "wait", "checkpoints", "download"):
        assert cli(command, "job_unknown") == ExitCode.NOT_FOUND
        assert cli.err == "remora: there is no job 'job_unknown'; remora list shows the jobs\n"


def test_an_empty_name_is_refused_and_no_job_is_taken_for_it(cli: Cli, service: FakeService) -> None:
    job = service.add_job("only")
    for command in ("show", "logs", "events", "metrics", "cancel", "wait", "checkpoints", "download"):
        assert cli(command, "") == ExitCode.USAGE
        assert cli.err == "remora: the id of the job is empty: name it, or `last` for the newest one\n"
    assert cli("drill", "--pool", "", "--silent") == ExitCode.USAGE
    assert cli.err == "remora: the name of the pool is empty: name it\n"
    assert not [seen for seen in service.requests if seen.method == "POST"]
    assert service.jobs[job.id].cancel_requested_at is None


def test_an_error_of_the_service_is_exit_code_1(cli: Cli, service: FakeService) -> None:
    service.faults = [problem(500, "internal", "It broke\nin two lines.", hint="Report it.")]
    assert cli("nodes") == ExitCode.ERROR
    assert cli.err == "remora: It broke in two lines; Report it.\n"


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
    service.add_event(job, "job.queued", "Waits in the queue.")
    service.nodes = [Node(id="node_1", pool="local", state="ready", resources={"CPU": 1.0}, created_at=1.0)]  # type: ignore[arg-type]

    assert cli("logs", "last", "--tail", "2") == ExitCode.OK
    assert cli.out == "[0] line 2\n[1] line 3\n"
    assert cli("logs", "last", "-f", "--rank", "1") == ExitCode.OK
    assert "line 1\n" in cli.out
    assert cli("logs", "last", "-f", "--json") == ExitCode.OK
    assert [json.loads(line)["text"] for line in cli.out.splitlines()] == [f"line {at}" for at in range(4)]
    service.add_event(job, "job.succeeded", "It is done.")
    assert cli("events", "last", "--tail", "1") == ExitCode.OK
    assert cli.out.endswith("job.succeeded             It is done.\n")
    assert len(cli.out.splitlines()) == 1
    assert cli("events", "last", "-f") == ExitCode.OK
    assert "job.queued                Waits in the queue.\n" in cli.out
    assert cli("nodes") == ExitCode.OK
    assert cli.out.splitlines()[1].split()[:4] == ["node_1", "local", "ready", "CPU=1"]
    assert cli("nodes", "--json") == ExitCode.OK
    assert cli.json[0]["id"] == "node_1"


def test_the_cluster_is_a_column_where_there_are_several(cli: Cli, service: FakeService) -> None:
    service.add_job()
    here = Node(id="node_1", pool="cpu", state=NodeState.READY, created_at=1.0)
    there = Node(id="node_2", pool="locked", state=NodeState.READY, created_at=1.0, cluster="ward")
    service.nodes = [here]
    assert cli("nodes") == ExitCode.OK
    assert "CLUSTER" not in cli.out
    assert cli("list") == ExitCode.OK
    assert "CLUSTER" not in cli.out
    service.nodes = [here, there]
    service.add_job("rounds", cluster="ward")
    service.pools = [
        Pool(name="cpu", max_nodes=1),
        Pool(name="locked", max_nodes=1, cluster="ward"),
        Pool(name="old", cluster=None),
    ]
    for words, columns in (("nodes", ["default", "ward"]), ("list", ["ward", "default"])):
        assert cli(words) == ExitCode.OK
        table = cli.out.splitlines()
        at = table[0].index("CLUSTER")
        assert [line[at:].split()[0] for line in table[1:]] == columns
    assert cli("pools") == ExitCode.OK
    head, *rows = cli.out.splitlines()
    assert [row[head.index("CLUSTER") :].split()[:1] for row in rows] == [["default"], ["ward"], []]
    assert cli("show", "last") == ExitCode.OK
    assert re.search(r"cluster +ward", cli.out)


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


def test_pools_show_their_nodes_their_limits_and_what_holds_them_up(cli: Cli, service: FakeService) -> None:
    assert cli("pools") == ExitCode.OK
    assert cli.err == "There are no pools.\n"
    waits = [PoolWait(reason="spot is sold out", since=5.0), PoolWait(reason="1 node goes later", since=9.0)]
    nodes = {NodeState.READY: 2, NodeState.DRAINING: 1}
    service.pools = [
        Pool(name="cpu", min_nodes=1, max_nodes=4, warm_nodes=1, nodes=nodes, waits=waits),
        Pool(
            name="gpu",
            max_nodes=2,
            refused=[RefusedOffering(offering="a100/1/spot", at=7.0, until=99.0, tries=3, reason="sold out")],
        ),
    ]
    assert cli("pools") == ExitCode.OK
    table = [re.split(r" {2,}", line) for line in cli.out.splitlines()]
    assert table == [
        ["POOL", "NODES", "LIMITS", "SINCE", "WHAT HOLDS IT UP"],
        ["cpu", "2 ready, 1 draining", "1 to 4, 1 warm", clock(5.0), "spot is sold out"],
        ["", clock(9.0), "1 node goes later"],
        [
            "gpu",
            "none",
            "0 to 2",
            clock(7.0),
            f"a100/1/spot is not asked for before {date(99.0)} (`remora pools reopen gpu` asks at once),"
            " refused 3 times in a row: sold out",
        ],
    ]
    assert cli("pools", "--json") == ExitCode.OK
    assert cli.json[0]["waits"][0] == {"reason": "spot is sold out", "since": 5.0}
    assert cli("pools", "reopen", "gpu") == ExitCode.OK
    assert cli.out == "gpu asks again at the next tick for all that it may buy.\n"
    assert (service.requests[-1].method, service.requests[-1].path) == ("POST", "/v1/pools/gpu/reopen")


def test_prune_asks_until_nothing_is_left_and_never_without_a_yes(cli: Cli, service: FakeService) -> None:
    assert cli("prune") == ExitCode.USAGE
    assert "--yes" in cli.err
    assert cli("prune", "--older-than", "soon", "--yes") == ExitCode.USAGE
    assert not [one for one in service.requests if one.path == "/v1/prune"]
    assert cli("prune", "--older-than", "2d", "--keep", "5", "--yes") == ExitCode.OK
    assert cli.out == "Deleted 4 jobs, 2 nodes and 14 rows of theirs.\n"
    asked = [one for one in service.requests if one.path == "/v1/prune"]
    assert [(one.method, one.query) for one in asked] == [
        ("POST", {"older_than_s": "172800.0", "keep_jobs": "5"})
    ] * 2


def test_a_running_job_says_why_it_has_not_more_workers(cli: Cli, service: FakeService) -> None:
    service.add_job(state=JobState.RUNNING, why_short="pool 'p' may have 1 node")
    assert cli("show", "last") == ExitCode.OK
    assert "why not more    pool 'p' may have 1 node\n" in cli.out


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


def test_the_ledger_of_the_cluster_names_every_payer_and_the_sum(cli: Cli, service: FakeService) -> None:
    assert cli("ledger") == ExitCode.OK
    assert cli.err == f"No node has cost money since {date(0.0)}.\n"
    line = AccountLine(payer="job", name="job_1", purpose="work", nodes=2, node_s=7200.0, cost=1.5)
    others = AccountLine(payer="job", name="", purpose="start_up", nodes=1, node_s=60.0, cost=0.01)
    own = AccountLine(payer="cluster", name="", purpose="failed", nodes=1, node_s=60.0, cost=0.01)
    service.cluster_ledger = ClusterLedger(
        since=0.0, until=9.0, lines=[line, others, own], node_s=7320.0, cost=1.52
    )
    assert cli("ledger") == ExitCode.OK
    table = [re.split(r" {2,}", row) for row in cli.out.splitlines()]
    assert table == [
        ["PAYER", "NAME", "FOR", "NODES", "NODE TIME", "USD"],
        ["job", "job_1", "work", "2", format_duration(7200.0), "1.5000"],
        ["job", "others", "start_up", "1", format_duration(60.0), "0.0100"],
        ["cluster", "-", "failed", "1", format_duration(60.0), "0.0100"],
        ["total", format_duration(7320.0), "1.5200"],
    ]
    assert cli("ledger", "--json") == ExitCode.OK
    assert cli.json["cost"] == 1.52


def test_the_ledger_by_cause_sums_all_pages_and_says_what_would_have_saved_money(
    cli: Cli, service: FakeService
) -> None:
    job = service.add_job()
    common = {
        "since": 0.0, "until": 9.0, "by": ["cause", "pool"], "node_s": 7260.0, "gpu_s": 7260.0, "cost": 1.51,
        "sentence": "99% of 1.51 USD trained.",
    }  # fmt: skip
    first = CostLine(of={"cause": "failed", "pool": ""}, node_s=60.0, gpu_s=60.0, cost=0.01)
    second = CostLine(of={"cause": "training", "pool": "=gpu"}, node_s=7200.0, gpu_s=7200.0, cost=1.5)
    service.costs = [
        CostReport(lines=[first], next_cursor="1", **common),
        CostReport(lines=[second], **common),
    ]
    assert cli("ledger", job.id, "--by", "cause,pool", "--since", "7d") == ExitCode.OK
    table = [re.split(r" {2,}", row) for row in cli.out.splitlines()]
    assert table == [
        ["CAUSE", "POOL", "NODE TIME", "GPU TIME", "USD"],
        ["failed", "-", format_duration(60.0), format_duration(60.0), "0.0100"],
        ["training", "=gpu", format_duration(7200.0), format_duration(7200.0), "1.5000"],
        ["total", format_duration(7260.0), format_duration(7260.0), "1.5100"],
    ]
    assert cli.err == "99% of 1.51 USD trained.\n"
    seen = [one.query for one in service.requests if one.path == "/v1/costs"]
    assert [(one["by"], one["job"]) for one in seen] == [("cause,pool", job.id)] * 2
    assert (seen[1]["since"], seen[1]["until"]) == ("0.0", "9.0"), "pages of one moment"
    assert cli("ledger", "--by", "cause,pool", "--format", "csv") == ExitCode.OK
    assert cli.out.splitlines() == [
        "cause,pool,node_s,gpu_s,usd", "failed,,60.000,60.000,0.010000", "training,'=gpu,7200.000,7200.000,1.500000",
    ]  # fmt: skip
    assert cli("ledger", "--format", "focus") == ExitCode.OK
    assert cli.out == "BilledCost,x_Cause\n0.010000,failed\n"
    for wrong in (("ledger", "--format", "csv"), ("ledger", "--by", "cause", "--since", "soon")):
        assert cli(*wrong) == ExitCode.USAGE
        assert cli.err.count("\n") == 1


def test_goodput_shows_its_parts_and_what_was_lost(cli: Cli, service: FakeService) -> None:
    loss = GoodputLoss(
        cause="recomputing", node_s=60.0, gpu_s=0.0, cost=0.1, saved_cost=0.05, saved_node_s=30.0,
        by="with a checkpoint twice as often",
    )  # fmt: skip
    service.goodput = GoodputReport(
        since=0.0, until=9.0, scheduling=1.0, runtime=0.9, goodput=0.9, trained_node_s=540.0, node_s=600.0, gpu_s=0.0,
        cost=1.0, losses=[loss], sentence="90% of 1.00 USD trained.",
    )  # fmt: skip
    assert cli("goodput") == ExitCode.OK
    assert re.search(r"program +not known", cli.out)
    assert re.search(r"recomputing +1m 00s +0\.1000 +0\.0500 +with a checkpoint twice as often", cli.out)
    assert cli.err == "90% of 1.00 USD trained.\n"
    assert cli("goodput", "--json") == ExitCode.OK
    assert cli.json["runtime"] == 0.9


def test_a_report_is_one_page_that_loads_nothing_and_runs_nothing(
    cli: Cli, service: FakeService, tmp_path: Path
) -> None:
    lines = [
        CostLine(of={"project": f"<script>alert({n})</script>"}, node_s=60.0, gpu_s=0.0, cost=float(n))
        for n in range(30)
    ]
    service.costs = [
        CostReport(
            since=0.0, until=9.0, by=["project"], lines=lines, node_s=1800.0, gpu_s=0.0, cost=435.0, sentence="."
        )
    ]  # fmt: skip
    service.goodput = GoodputReport(
        since=0.0, until=9.0, goodput=0.9, trained_node_s=540.0, node_s=600.0, gpu_s=0.0, cost=1.0, losses=[],
        sentence="90% of 1.00 USD trained.",
    )  # fmt: skip
    file = tmp_path / "week.html"
    assert cli("report", "--week", "-o", str(file)) == ExitCode.OK
    assert cli.err == f"90% of 1.00 USD trained. Written to {file}.\n"
    page = file.read_text()
    assert not re.search(r"<script|src=|href=|https?:", page)
    assert "&lt;script&gt;alert(29)" in page
    assert re.search(r"<td>5 others</td><td>10.00</td>", page)
    assert re.search(r"<td>total</td><td>435.00</td>", page)
    for wrong in (("report",), ("report", "--week", "-o", str(tmp_path / "no" / "week.html"))):
        assert cli(*wrong) == ExitCode.USAGE
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


def test_up_and_down_become_the_service(monkeypatch: pytest.MonkeyPatch, cli: Cli, tmp_path: Path) -> None:
    root = tmp_path / "root"
    for package in ("remora", "service"):
        (root / package).mkdir(parents=True)
    (root / "service/up.py").touch()
    monkeypatch.setattr(installation, "_PACKAGE", root / "remora")
    missing: list[str] = []
    monkeypatch.setattr(installation, "missing_packages", lambda _: missing)
    became: list[list[str]] = []

    def execve(program: str, command: list[str], environ: dict[str, str]) -> None:
        assert environ["PYTHONPATH"].split(os.pathsep)[0] == str(root)
        became.append(command[1:])
        raise SystemExit(0)

    monkeypatch.setattr(os, "execve", execve)
    monkeypatch.chdir(tmp_path)

    cli("up", "--home", "here", "--port", "0", "--nodes", "2", "--node-cpus", "1", "--node-gpus", "4")
    cli("down")
    cli("demo", "--example", "digits", "--home", "there")

    assert became == [
        [
            "-P",
            "-m",
            "service.up",
            "--home",
            str(tmp_path / "here"),
            *["--port", "0", "--nodes", "2", "--node-cpus", "1", "--node-gpus", "4"],
        ],
        ["-P", "-m", "service.up", "--down"],
        ["-P", "-m", "examples.demo", "--example", "digits", "--home", str(tmp_path / "there")],
    ]
    missing += ["torch"]
    cli("down")
    assert len(became) == 4, "only the demo trains"
    assert cli("demo") == ExitCode.USAGE
    assert "this installation lacks torch; install the service with `pip install" in cli.err
    missing += ["ray"]
    assert cli("up") == ExitCode.USAGE
    assert "this installation has only the client" in cli.err
    missing.clear()
    (root / "service/up.py").unlink()
    assert cli("up") == ExitCode.USAGE
    assert "this installation has only the client" in cli.err


def test_times_of_another_day_have_their_date() -> None:
    now = time.time()
    assert clock(now) == time.strftime("%H:%M:%S", time.localtime(now))
    for days in (1, 7, 366):
        assert clock(now - days * 86_400.0) == date(now - days * 86_400.0)


def test_logs_are_shown_while_they_are_read(cli: Cli, service: FakeService) -> None:
    job = service.add_job(state=JobState.SUCCEEDED)
    service.page_limit = 2
    for at in range(5):
        service.add_log(job, f"line {at}")
    page = Page(items=service.logs[job.id][:2], next_cursor="2")
    service.faults = [
        (200, {}, job.model_dump_json().encode()),
        (200, {}, page.model_dump_json().encode()),
        problem(500, "internal", "the database is gone"),
    ]
    assert cli("logs", job.id) == ExitCode.ERROR
    assert cli.out == "[0] line 0\n[0] line 1\n"
    assert "the database is gone" in cli.err


def test_the_package_itself_runs_as_a_program() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "remora", "version"], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"remora {remora.__version__}\n"


def test_help_names_every_command_and_exit_code(cli: Cli) -> None:
    assert cli("--help") == ExitCode.OK
    assert all(f" {name} " in cli.out for name in COMMANDS)
    assert all(f"{code.value} " in HELP for code in ExitCode)
    assert cli("version") == ExitCode.OK
    assert cli.out == f"remora {remora.__version__}\n"
    assert cli("--version") == ExitCode.OK
    assert cli.out == f"remora {remora.__version__}\n"
    assert "--version" in (cli("--help"), cli.out)[1]
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
