"""A step that never ends, on real nodes: what every rank was doing is reported, and the attempt ends or goes on."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.integration.trainers.elastic_script import ELASTIC
from tests.integration.trainers.lab import Lab
from tests.integration.trainers.scripts import LOCKSTEP

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def test_a_hang_ends_the_attempt_with_the_stack_of_every_rank(lab: Lab) -> None:
    lab.nodes(2)
    run = lab.run({"train.py": LOCKSTEP}, "python", "train.py", "100000", "0.05", step_time_s=2.0)
    run.until(lambda: run.step >= 10, "it trains")
    run.child(1).send_signal(signal.SIGSTOP)
    assert run.end()["end_reason"] == "hang"
    stacks = {event["data"]["rank"]: event["data"]["stack"] for event in run.events("worker.stack")}
    assert stacks.keys() == {0, 1}
    assert "(stopped)" in stacks[1]
    assert "barrier (train.py" in stacks[0], "it waits for the one that hangs"


#: A script that ends on all ranks but rank 0 before it has met the others.
MEETS_NO_PEER = """
import os
if os.environ["RANK"] == "0":
    import torch.distributed as dist
    dist.init_process_group("gloo")
"""


@pytest.mark.soak
def test_a_rendezvous_to_which_no_rank_can_come_any_more_ends_the_attempt(lab: Lab) -> None:
    lab.nodes(2)
    run = lab.run({"train.py": MEETS_NO_PEER}, "python", "train.py")
    ended = run.end()
    assert ended["end_reason"] == "start_failed"
    assert "Rank 1 ended with exit code 0" in ended["message"]
    assert "(init_process_group) still keeps rank 0 waiting" in ended["message"]


@pytest.mark.soak
def test_a_script_that_can_go_on_leaves_the_one_that_hangs_behind(lab: Lab, tmp_path: Path) -> None:
    lab.nodes(2)
    finish = tmp_path / "finish"
    run = lab.run(
        {"train.py": ELASTIC}, "python", "train.py", str(finish), "0.05",
        min_workers=1, max_workers=2, step_time_s=2.0,
    )  # fmt: skip
    run.until(lambda: run.step >= 10, "it trains")
    run.child(1).send_signal(signal.SIGSTOP)
    regrouped = run.until(lambda: run.events("worker_group.regrouped"), "the other one goes on")
    assert (regrouped[0]["data"]["cause"], regrouped[0]["data"]["world_size"]) == ("loss", 1)
    stacks = {event["data"]["rank"]: event["data"]["stack"] for event in run.events("worker.stack")}
    assert "(stopped)" in stacks[1]
    assert "wait (train.py" in stacks[0]
    assert len(run.events("worker_group.hung")) == 1
    step = run.step
    run.until(lambda: run.step > step, "it does steps")
    finish.touch()
    assert run.end()["end_reason"] == "completed"
    assert run.progress["repeated_steps"] == 0


#: A script of PyTorch alone: from step 12 on rank 1 waits for something else than the others.
LEAVES_OUT_ONE = """
import sys, threading
import torch, torch.distributed as dist
from remora import training

dist.init_process_group("gloo")
total = torch.zeros(4)
for step in range(1, 100_000):
    if step == 12 and dist.get_rank() == 1:
        threading.Event().wait()
    dist.all_reduce(total)
    training.report(step, {"sum": float(total[0])})
    threading.Event().wait(0.05)
"""


@pytest.mark.soak
def test_a_hang_of_gloo_names_the_rank_that_has_not_entered_a_collective_and_the_collective(lab: Lab) -> None:
    lab.nodes(3)
    run = lab.run(
        {"train.py": LEAVES_OUT_ONE}, "python", "train.py", min_workers=3, max_workers=3, step_time_s=2.0
    )
    ended = run.end()
    assert ended["end_reason"] == "hang"
    assert ": rank 1 has not entered all_reduce #12, which ranks 0, 2 wait in; the events" in ended["message"]
    said = {event["data"]["rank"]: event["data"]["collectives"] for event in run.events("worker.stack")}
    last = {"group": "gloo:0", "what": "all_reduce"}
    assert said[0] == said[2] == [{**last, "number": 12, "waits": True}]
    assert said[1] == [{**last, "number": 11, "waits": False}]
