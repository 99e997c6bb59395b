"""An attempt on real nodes ends with the right reason, whatever its command does, and leaves nothing."""

from __future__ import annotations

import os
import signal
import sys
import uuid
from pathlib import Path

import psutil
import pytest
import ray

from remora import cgroups
from remora.states import EndReason
from tests.integration.trainers.lab import Lab, Running, processes_of, until
from tests.integration.trainers.scripts import COLLECTIVE, DAEMON, ENDLESS, LOCKSTEP, LOUD, ROUNDED
from tests.unit.trainers.test_escapes import KILLS_EVERYBODY, marked
from trainers import driver_actors
from trainers.attempt_claims import Claims
from trainers.launch import RayLauncher
from trainers.plan import DriverGone
from trainers.ray_train import StartLimit
from trainers.ready_drivers import ReadyDriver
from trainers.storage import Storage
from trainers.supervisor.device import devices_of_node

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def test_a_command_runs_to_its_end_on_two_nodes(lab: Lab) -> None:
    lab.nodes(2)
    run = lab.run({"train.py": LOCKSTEP}, "python", "train.py", "30", "0.01")
    assert run.end() == {
        "end_reason": "completed",
        "message": "The command returned 0 on every rank.",
        "exit_code": 0,
    }
    assert {"rank 0 ends with 465", "rank 1 ends with 465"} <= set(run.text("stdout").splitlines())
    assert [body["step"] for body in run.bodies("metric")] == list(range(1, 31))
    assert run.bodies("metric")[-1]["values"] == {"total": 465}
    assert run.checkpoints == [30]
    (checkpoint,) = run.bodies("checkpoint")
    assert checkpoint["files"].keys() == {"state.json", "rank-0.txt", "rank-1.txt"}
    assert Path(checkpoint["location"], "rank-1.txt").read_text() == "30"
    seen = run.progress
    assert (seen["step"], seen["total_steps"], seen["repeated_steps"], seen["lost_s"]) == (30, 30, 0, 0.0)
    assert run.world_sizes == [2]
    assert len(set(run.events("worker_group.started")[0]["data"]["addresses"])) == 2
    until(lambda: lab.work_folders() == [], "the supervisors cleaned up", 10.0)


def test_a_driver_that_cannot_take_its_attempt_is_reported(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.nodes(1)
    first, second = (
        lab.plan({"train.py": ENDLESS}, "python", "train.py", min_workers=1, max_workers=1) for _ in range(2)
    )
    has_it = lab.start(first)
    has_it.until(lambda: has_it.world_sizes, "it trains")
    # As if a crash had given one driver to two attempts.
    launcher = RayLauncher()
    taken = ReadyDriver(f"driver-{first.attempt_id}", None, StartLimit(frozenset()))
    monkeypatch.setattr("trainers.ready_drivers.ReadyDrivers.take", lambda _: taken)
    launcher.start(second)

    def gone_drivers() -> list[DriverGone]:
        return [one for one in launcher.poll([second.attempt_id], {}).values() if isinstance(one, DriverGone)]

    (gone,) = until(gone_drivers, "it is reported")
    assert f"has {first.attempt_id} already" in gone.message
    assert launcher.kill(second.attempt_id)
    assert f"driver-{first.attempt_id}" in drivers(), "the one that has it keeps it"
    lab.stop(has_it, EndReason.CANCELLED)
    assert has_it.end()["end_reason"] == "cancelled"


def test_a_driver_without_a_plan_is_distinguished_from_one_without_news_and_is_sent_it_again(
    lab: Lab,
) -> None:
    """As after a controller that died when it had made the driver, and whose next call was lost with it."""
    lab.nodes(1)
    plan = lab.plan({"train.py": "print('done')"}, "python", "train.py", min_workers=1, max_workers=1)
    driver_actors.give(plan.attempt_id, f"driver-{plan.attempt_id}")
    driver_actors.make(f"driver-{plan.attempt_id}")
    launcher = RayLauncher()
    gone = until(lambda: launcher.poll([plan.attempt_id], {}).get(plan.attempt_id), "it answers")
    assert isinstance(gone, DriverGone)
    assert "has lost its plan" in gone.message
    until(lambda: launcher.start(plan), "it says that it has the plan")
    run = lab.start(plan)
    assert run.end()["end_reason"] == "completed"
    assert run.text("stdout") == "done"


@pytest.mark.parametrize("end", ["it has run", "it was closed"])
def test_an_attempt_that_is_over_gets_no_second_driver(lab: Lab, tmp_path: Path, end: str) -> None:
    """As from a controller that was stopped before it started the driver, and goes on when the job has ended."""
    lab.nodes(1)
    mark = tmp_path / "mark"
    script = {"train.py": f"print('ran', file=open({str(mark)!r}, 'a'))"}
    plan = lab.plan(script, "python", "train.py", min_workers=1, max_workers=1)
    if end == "it has run":
        run = lab.start(plan)
        assert run.end()["end_reason"] == "completed"
        until(lambda: run.launcher.kill(plan.attempt_id), "its driver is gone")
        assert f"driver-{plan.attempt_id}" not in drivers()
    else:
        place = {"job_id": plan.job_id, "storage_url": plan.storage_url}
        other = RayLauncher()
        until(lambda: other.close(plan.attempt_id, **place), "it is closed")
    stopped = RayLauncher()
    gone = until(lambda: stopped.start(plan), "it is answered")
    assert isinstance(gone, DriverGone), "nothing was begun"
    assert not mark.exists() or mark.read_text() == "ran\n"
    assert mark.exists() is (end == "it has run")
    until(lambda: f"driver-{plan.attempt_id}" not in drivers(), "no driver is left")


def test_a_driver_that_was_refused_ends_though_its_answer_is_lost(lab: Lab) -> None:
    plan = lab.plan({"train.py": ""}, "python", "train.py", min_workers=1, max_workers=1)
    Claims(Storage(plan.storage_url), plan.job_id).close(plan.attempt_id)
    RayLauncher().start(plan)
    until(lambda: f"driver-{plan.attempt_id}" not in drivers(), "it has ended by itself")


def drivers() -> set[str]:
    """Names of the drivers that live."""
    return {name for name in ray.util.list_named_actors() if name.startswith("driver-")}


@pytest.mark.soak
def test_a_device_that_no_node_has_ends_the_attempt_with_a_sentence(lab: Lab) -> None:
    lab.nodes(1)
    run = lab.run({"train.py": ""}, "python", "train.py", min_workers=1, max_workers=1, device="xpu")
    end = run.end()
    assert end["end_reason"] == "start_failed"
    assert "asks for an Intel GPU (resources.device: xpu) and this node has none" in end["message"]


@pytest.mark.soak
def test_bfloat16_on_processors_rounds_products_or_is_refused(lab: Lab) -> None:
    lab.nodes(1)
    run = lab.run({"train.py": ROUNDED}, "python", "train.py", min_workers=1, max_workers=1, precision="bf16")
    end = run.end()
    if devices_of_node().has_bf16:
        assert run.text("stdout") == "the product is rounded: True"
    else:
        assert "let it run on newer processors" in end["message"]


@pytest.mark.parametrize(
    ("script", "reason", "exit_code", "said"),
    [
        ("import sys, os; sys.exit(3 * int(os.environ['RANK']))", "exit_code", 3, "rank 1 ended with exit code 3"),
        ("raise RuntimeError('the loss is infinite')", "exit_code", 1, "RuntimeError: the loss is infinite"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "signal", None, "SIGSEGV"),
    ],
)  # fmt: skip
def test_a_command_that_fails_by_itself(
    lab: Lab, script: str, reason: str, exit_code: int | None, said: str
) -> None:
    lab.nodes(2)
    run = lab.run({"train.py": script}, "python", "train.py")
    end = run.end()
    assert (end["end_reason"], end["exit_code"]) == (reason, exit_code)
    assert said in end["message"]
    if "infinite" in script:
        assert "RuntimeError: the loss is infinite" in run.text("stderr")


@pytest.mark.soak
def test_a_command_that_cannot_be_started(lab: Lab) -> None:
    lab.nodes(2)
    absent = lab.run({"train.py": ""}, "trane", "train.py")
    end = absent.end()
    assert end["end_reason"] == "start_failed"
    assert "trane: No such file or directory" in end["message"]
    absent.close()
    lost = lab.run({}, "python", "-V", bundle="sha256:" + "0" * 64)
    end = lost.end()
    assert end["end_reason"] == "start_failed"
    assert "is not in the storage any more" in end["message"]
    lost.close()
    nowhere = lab.run({}, "python", "-V", checkpoint_url="nosuch://storage")
    end = nowhere.end()
    assert end["end_reason"] == "start_failed"
    assert "nosuch" in end["message"]


@pytest.mark.soak
def test_a_killed_process_is_a_signal(lab: Lab) -> None:
    lab.nodes(2)
    run = endless(lab)
    run.child(1).send_signal(signal.SIGKILL)
    end = run.end()
    assert (end["end_reason"], end["message"]) == ("signal", "The command of rank 1 was ended by SIGKILL.")


def test_a_killed_supervisor_is_its_own_reason(lab: Lab) -> None:
    lab.nodes(2)
    run = endless(lab)
    run.supervisor(1).send_signal(signal.SIGKILL)
    end = run.end()
    assert (end["end_reason"], end["message"]) == ("supervisor_lost", "The supervisor of rank 1 died.")
    until(lambda: not processes_of(run.plan.attempt_id), "its child ended with it", 10.0)


@pytest.mark.skipif(cgroups.walls().folder is None, reason=cgroups.walls().sentence)
def test_a_script_that_kills_its_shim_and_its_supervisor_leaves_nothing_behind(
    lab: Lab, tmp_path: Path
) -> None:
    lab.nodes(1)
    # What it prints dies with its supervisor.
    script = KILLS_EVERYBODY.replace(
        'print("up", flush=True)', f"open({str(tmp_path / 'up')!r}, 'w').close()"
    )
    mark = f"mark-{uuid.uuid4().hex}"
    command = ("python", "train.py", mark)
    run = lab.run({"train.py": script}, *command, min_workers=1, max_workers=1)
    try:
        end = run.end()
        assert ((tmp_path / "up").exists(), end["end_reason"]) == (True, "supervisor_lost")
        until(lambda: not marked(mark), "its daemon ended, by the hand of its node", 10.0)
    finally:
        for process in marked(mark):
            process.kill()


def test_drivers_start_on_the_head_while_all_other_nodes_stand_still(lab: Lab) -> None:
    nodes = lab.nodes(2)
    for node_id in nodes:
        lab.provider.freeze(node_id)
    try:
        for run in [lab.run({}, "python", "-V") for _ in range(4)]:
            run.until(lambda run=run: run.gone or run.events("attempt.driver_started"), "its driver starts")
            assert run.gone is None, "it was leased by way of a node that does not answer"
            lab.stop(run, EndReason.CANCELLED)
    finally:
        for node_id in nodes:
            lab.provider.kill(node_id)


@pytest.mark.soak
def test_a_killed_driver_takes_its_workers_with_it(lab: Lab) -> None:
    lab.nodes(2)
    run = endless(lab)
    lab.driver().send_signal(signal.SIGKILL)
    run.until(lambda: run.gone, "the launcher notices")
    assert run.gone == DriverGone(EndReason.DRIVER_LOST, "The driver of this attempt died.")
    until(lambda: not processes_of(run.plan.attempt_id), "its workers end", 20.0)
    run.close()
    lab.nodes(2)
    after = lab.run({"train.py": ""}, "python", "train.py", regroup_s=20.0)
    assert after.end()["end_reason"] == "completed", "what it had reserved is free again"


def test_a_command_that_never_returns_is_ended_with_the_reason_of_who_asked(lab: Lab) -> None:
    lab.nodes(2)
    run = endless(lab)
    lab.stop(run, EndReason.CANCELLED)
    assert run.end()["end_reason"] == "cancelled"
    assert {"state": "draining"} in run.bodies("progress")
    assert processes_of(run.plan.attempt_id) == []


def test_a_daemon_does_not_outlive_its_command(lab: Lab, tmp_path: Path) -> None:
    lab.nodes(1)
    run = lab.run(
        {"train.py": DAEMON}, "python", "train.py", str(tmp_path / "pid"), min_workers=1, max_workers=1
    )
    assert run.end()["end_reason"] == "completed"
    assert not psutil.pid_exists(int((tmp_path / "pid").read_text()))
    assert "1 processes that the command had left behind were ended" in run.text("remora")


@pytest.mark.soak
def test_a_loud_command_is_cut_and_says_so(lab: Lab) -> None:
    lab.nodes(1)
    limit = 100_000
    run = lab.run(
        {"train.py": LOUD}, "python", "train.py",
        min_workers=1, max_workers=1, log_limit_bytes=limit, log_line_bytes=1000,
    )  # fmt: skip
    assert run.end()["end_reason"] == "completed"
    lines = run.text("stdout").splitlines()
    assert lines[0] == "x" * 1000 + " [4999000 more bytes of this line were cut]"
    assert lines[1] == "caf\ufffd \ufffd \ufffd"
    assert limit <= len(run.text().encode()) <= limit + 2000
    assert f"the log of this attempt reached {limit} bytes" in run.text("remora")
    assert "lines were dropped" in run.text("remora")


@pytest.mark.soak
def test_users_folders_that_bear_our_names_are_the_users(lab: Lab) -> None:
    lab.nodes(1)
    files = {
        "train.py": "import trainers, service, cluster, os\nprint(trainers.WHOSE, service.WHOSE, cluster.WHOSE)\n"
        "print(sorted(name for name in os.environ if name.startswith(('RAY_', 'PYTHONPATH'))))",
        **{f"{name}/__init__.py": "WHOSE = 'mine'" for name in ("trainers", "service", "cluster")},
    }
    run = lab.run(files, "python", "train.py", min_workers=1, max_workers=1)
    assert run.end()["end_reason"] == "completed", run.text()
    assert run.text("stdout") == "mine mine mine\n[]"


@pytest.mark.soak
def test_a_users_own_collective_runs_as_it_is(lab: Lab) -> None:
    lab.nodes(2)
    run = lab.run({"train.py": COLLECTIVE}, "python", "train.py")
    assert run.end()["end_reason"] == "completed", run.text()
    assert run.text("stdout").splitlines() == ["sum 2", "sum 2"]


def test_a_service_that_was_killed_goes_on_reading_where_it_was(lab: Lab) -> None:
    lab.nodes(2)
    run = lab.run({"train.py": LOCKSTEP}, "python", "train.py", "200", "0.02")
    run.until(lambda: run.step >= 20, "it trains")
    again = Running(run.plan)
    again.records = list(run.records)  # what was stored
    again.launcher.start(run.plan)  # a controller that is not sure starts it once more
    assert again.end()["end_reason"] == "completed"
    assert [body["step"] for body in again.bodies("metric")] == list(range(1, 201))
    assert len(again.events("attempt.driver_started")) == 1


@pytest.mark.soak
def test_too_few_nodes_for_too_long_is_a_lost_node(lab: Lab) -> None:
    lab.nodes(1)
    run = lab.run({"train.py": LOCKSTEP}, "python", "train.py", "5", "0", regroup_s=2.0)
    end = run.end()
    assert (end["end_reason"], end["message"]) == ("node_lost", "No 2 workers could be had for 2 s.")


def endless(lab: Lab) -> Running:
    run = lab.run(
        {"train.py": ENDLESS}, sys.executable, "train.py", variables={"PYTHONHASHSEED": str(os.getpid())}
    )
    run.until(lambda: run.text("stdout").count("ready") == 2, "both ranks are ready")
    return run
