"""`remora profile` of real jobs: a trace of the steps of one rank, and a training that does not notice."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from remora import Client
from tests.e2e.embedded import Embedded
from tests.e2e.processes import PATIENCE_S, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

#: Trains until it may end, and writes down after how many steps, and a digest of the weights.
TRAIN = """
import hashlib, pathlib, sys, time
import torch
from remora import training

outside, most = pathlib.Path(sys.argv[1]), int(sys.argv[2])
torch.manual_seed(3)
torch.set_num_threads(1)
model = torch.nn.Linear(16, 16)
optimizer = torch.optim.AdamW(model.parameters())
step = 0
while step < most and not (outside / "enough").exists():
    step += 1
    optimizer.zero_grad()
    model(torch.randn(8, 16)).square().sum().backward()
    optimizer.step()
    training.report(step, {"step": step})
    if most > 100_000:
        time.sleep(0.02)
weights = b"".join(one.detach().numpy().tobytes() for one in model.parameters())
(outside / f"rank-{training.world().rank}").write_text(f"{step} {hashlib.sha256(weights).hexdigest()}")
"""


def test_a_rank_of_a_running_job_is_profiled_and_trains_as_if_it_were_not(
    service: Embedded, client: Client, folder: Path, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (folder / "train.py").write_text(TRAIN)
    command = ["python", "train.py", str(outside), str(10**9)]
    job = client.submit({"code": str(folder), "command": command, "workers": 2, "resources": {"cpus": 1}})
    until(lambda: (client.job(job.id).step or 0) > 5, "it trains")
    trace = tmp_path / "trace.json.gz"
    words = ("profile", job.id, "--steps", "4", "--rank", "1", "-o", str(trace))
    answer = service.remora(*words, "--json")
    assert answer.code == 0, answer.err
    assert (answer.document["state"], answer.document["profiled_steps"]) == ("ready", 4)
    events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    assert sum(event.get("name") == "aten::addmm" for event in events) == 4
    again = service.remora(*words)
    assert (again.code, "is there already" in again.err) == (2, True)
    (outside / "enough").touch()
    assert client.wait(job.id, PATIENCE_S).state == "succeeded"
    assert [one.number for one in client.profiles(job.id)] == [1]
    steps, digest = (outside / "rank-1").read_text().split()
    (alone := tmp_path / "alone").mkdir()
    subprocess.run([sys.executable, folder / "train.py", alone, steps], check=True, timeout=PATIENCE_S)
    assert (alone / "rank-0").read_text() == f"{steps} {digest}"
    refused = service.remora(*words[:-1], str(tmp_path / "other"))
    assert (refused.code, "has ended already" in refused.complaint) == (1, True)


def test_a_job_without_the_library_says_what_it_would_need(service: Embedded, client: Client) -> None:
    job = client.submit({"command": "echo begins; sleep 600", "resources": {"cpus": 1}})
    until(lambda: any(client.logs(job.id)), "its command runs")
    answer = service.remora("profile", job.id)
    assert answer.code == 1
    assert "let it call training.report(step) of remora.training after each step" in answer.err
    client.cancel(job.id)
    client.wait(job.id, PATIENCE_S)


def test_a_rank_that_is_killed_while_it_is_profiled_ends_the_request(
    service: Embedded, client: Client, folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "pid").touch()
    (folder / "train.py").write_text(
        "import os, pathlib, time\nfrom remora import training\ntraining.report(1)\n"
        f"pathlib.Path({str(tmp_path / 'pid')!r}).write_text(str(os.getpid()))\ntime.sleep(600)\n"
    )
    command = ["python", "train.py"]
    job = client.submit(
        {"code": str(folder), "command": command, "resources": {"cpus": 1}, "retry": {"limit": 0}}
    )
    until(lambda: (tmp_path / "pid").read_text() != "" and client.job(job.id).step == 1, "it trains")
    client.request_profile(job.id, steps=3)
    until(lambda: client.profiles(job.id)[0].state == "running", "its driver knows")

    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
    until(lambda: client.profiles(job.id)[0].state == "failed", "the request ends")
    assert "before the profile was there" in (client.profiles(job.id)[0].message or "")
    client.cancel(job.id)
    client.wait(job.id, PATIENCE_S)
