"""Profiles of real attempts: a trace of the steps of one rank, and a training that does not notice."""

from __future__ import annotations

import gzip
import json
import signal
from typing import Any

import pytest
import torch

from tests.integration.trainers.lab import Lab, Running, until
from trainers.plan import ProfileRequest
from trainers.profiles import profile_name

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

#: Each rank trains a model of its own, for ever.
TRAIN = """
import time
import torch
from remora import training
torch.set_num_threads(1)
torch.manual_seed(3)
model = torch.nn.Linear(16, 16)
optimizer = torch.optim.AdamW(model.parameters())
step = 0
while True:
    step += 1
    optimizer.zero_grad()
    model(torch.randn(8, 16)).square().sum().backward()
    optimizer.step()
    training.report(step, {"weight": model.weight.detach()[0, 0]})
    time.sleep(0.02)
"""
#: One step, and no other one.
HANGS = "import time\nfrom remora import training\ntraining.report(1)\ntime.sleep(600)\n"


def profile(run: Running, number: int, rank: int, steps: int = 4) -> None:
    request = ProfileRequest(number=number, rank=rank, steps=steps)
    until(lambda: run.launcher.request_profile(run.plan.attempt_id, request), "the driver has the request")


def outcome(run: Running, number: int) -> dict[str, Any]:
    def reported() -> list[dict[str, Any]]:
        return [body for body in run.bodies("profile") if body["number"] == number]

    (found,) = run.until(reported, f"the request {number} ends")
    return found


def weights(steps: int) -> list[float]:
    """What the same script has after each step when nothing profiles it."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = torch.nn.Linear(16, 16)
        optimizer = torch.optim.AdamW(model.parameters())
        found = []
        for _ in range(steps):
            optimizer.zero_grad()
            model(torch.randn(8, 16)).square().sum().backward()
            optimizer.step()
            found.append(float(model.weight.detach()[0, 0]))
    return found


def test_a_rank_is_profiled_while_it_trains_and_when_another_one_is_lost_that_is_said(lab: Lab) -> None:
    lab.nodes(2)
    run = lab.run({"train.py": TRAIN}, "python", "train.py")
    run.until(lambda: run.step >= 3, "it trains")
    profile(run, 1, rank=0)
    profile(run, 1, rank=0)
    made = outcome(run, 1)
    assert made["steps"] == 4, made
    trace = lab.storage / profile_name(run.plan.job_id, made["file"])
    assert trace.stat().st_size == made["size_bytes"]
    events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    assert sum(event.get("name") == "aten::addmm" for event in events) == 4
    after = run.step + 3
    run.until(lambda: run.step >= after, "it trains on")
    seen = {body["step"]: body["values"]["weight"] for body in run.bodies("metric")}
    alone = weights(max(seen))
    assert seen == {step: alone[step - 1] for step in seen}

    profile(run, 2, rank=1, steps=100)
    run.child(1).send_signal(signal.SIGKILL)
    assert outcome(run, 2)["message"] == "its process ended, or was lost, before the profile was there"
    assert [event["data"] for event in run.events("worker.profile")] == [
        {"rank": 0, "profile": 1},
        {"rank": 1, "profile": 2},
    ]


@pytest.mark.soak
def test_commands_that_cannot_be_profiled_say_why(lab: Lab) -> None:
    lab.nodes(1)
    one: dict[str, Any] = {"min_workers": 1, "max_workers": 1}
    run = lab.run({"train.py": HANGS}, "python", "train.py", **one)
    run.until(lambda: run.progress.get("step") == 1, "it trains")
    profile(run, 1, rank=1)
    assert outcome(run, 1)["message"] == "the worker group has 1 ranks now, from 0"
    run.close()
    other = lab.run({}, "sh", "-c", "echo begins; sleep 600", **one)
    other.until(lambda: "begins" in other.text(), "its command runs")
    profile(other, 1, rank=0)
    said = outcome(other, 1)["message"]
    assert "let it call training.report(step) of remora.training after each step" in said
