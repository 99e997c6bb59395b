"""A worker is killed, and the communicators of another one cannot be aborted: only these two processes are replaced.

The device is a double, as no machine here has a GPU: streams wait for collectives of gloo, and what is held up goes on
when the communicators are aborted.  All else is the product: nodes, drivers, supervisors, fork servers, `Loop`.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from remora.torch.communicators import ABORT_S
from tests.integration.trainers.lab import Lab

pytestmark = [pytest.mark.slow, pytest.mark.soak, pytest.mark.timeout(600)]

#: Imported by the script: from then on each worker of this process's groups has such a device.
DEVICE = """
import os, pathlib, sys, threading, time
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import ErrorType
from remora.torch import backends, group, members

FOLDER = pathlib.Path(sys.argv[1])
#: The abort of the process that began as rank 1 never returns, once the test has said so.
IS_DOOMED = os.environ.get("RANK") == "1" and "REMORA_JOIN" not in os.environ
DEVICE = torch.device("cpu", 0)

class Work:
    def __init__(self, work, communicators):
        self.work, self.communicators = work, communicators

    def is_completed(self):
        return self.work.is_completed()

    def wait(self, timeout=None):
        # The device waits: for the collective, or until an abort frees it.
        while not self.work.is_completed():
            if self.communicators.freed.wait(0.0002):
                return
        try:
            self.work.wait()
        except RuntimeError:
            # What NCCL's own watchdog finds out.  The device is held, as by a kernel whose peer is gone.
            self.communicators.error = ErrorType.REMOTE_ERROR
            self.communicators.freed.wait()

class Communicators:
    def __init__(self, gloo):
        self.gloo, self.freed, self.error = gloo, threading.Event(), ErrorType.SUCCESS

    def __getattr__(self, name):
        begin = getattr(self.gloo, name)
        return lambda *arguments: Work(begin(*arguments), self)

    def get_error(self):
        return self.error

    def abort(self):
        if IS_DOOMED and (FOLDER / "strike").exists():
            (FOLDER / "hangs").touch()
            threading.Event().wait()
        self.gloo.abort()
        self.freed.set()

class Event:
    def record(self, *_):
        pass

    def query(self):
        return True

def process_group(store, place, device, on_cuda, forming):
    gloo = dist.ProcessGroupGloo(store, place.rank, place.world_size, backends.COLLECTIVE_TIMEOUT)
    return Communicators(gloo) if on_cuda else gloo

def form(place, **fields):
    return group.form(place, **{**fields, "on_cuda": True, "device": DEVICE})

group.process_group, members.form = process_group, form
torch.cuda.Event, torch.cuda.current_stream = Event, lambda device: None
"""

STEPS = 1500
SCRIPT = f"""
import hashlib, pathlib, sys, time
import torch
from torch.nn import functional
import device
from remora.torch import Loop

folder = pathlib.Path(sys.argv[1])
torch.manual_seed(5)
model = torch.nn.Sequential(
    torch.nn.Linear(8, 16), torch.nn.Dropout(0.2), torch.nn.Tanh(), torch.nn.Linear(16, 1)
)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
loop = Loop(model, optimizer, data=torch.randn(96, 8), global_batch=12, shards=6, total_steps={STEPS},
            exactness="bitwise")
for step in loop:
    loss = step.backward(lambda model, batch: functional.mse_loss(model(batch), batch[:, :1]))
    optimizer.step()
    step.report(loss=loss)
    if not (folder / "hurry").exists():
        time.sleep(0.1)
weights = b"".join(one.detach().numpy().tobytes() for one in model.parameters())
print("weights", hashlib.sha256(weights).hexdigest(), flush=True)
"""
FILES = {"train.py": SCRIPT, "device.py": DEVICE}


def undisturbed(folder: Path) -> str:
    """What one worker says at the end, alone and without Remora."""
    folder.mkdir()
    (folder / "hurry").touch()
    for name, text in FILES.items():
        (folder / name).write_text(text)
    command = [sys.executable, "train.py", str(folder)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True, timeout=300)
    return done.stdout.strip()


def test_a_process_whose_abort_never_returns_is_replaced_and_the_result_is_that_of_an_undisturbed_run(
    lab: Lab, tmp_path: Path
) -> None:
    lab.nodes(3)
    run = lab.run(
        FILES, "python", "train.py", str(tmp_path),
        min_workers=1, max_workers=3, warm_modules=("torch", "remora.torch"),
    )  # fmt: skip

    def size() -> int:
        """Workers that did the newest step."""
        steps = run.bodies("metric")
        return steps[-1]["world_size"] if steps else 0

    run.until(lambda: run.step >= 20 and size() == 3, "three workers train")
    stays = run.child(0).pid
    (tmp_path / "strike").touch()
    run.child(2).kill()
    (lost,) = run.until(
        lambda: run.events("worker.collectives_failed"), "the one whose abort hangs has ended"
    )
    assert (tmp_path / "hangs").exists(), "the fault has happened"
    assert lost["data"] == {"rank": 1}
    assert (
        f"a communicator's abort did not return within {ABORT_S:g} s; no retry is used up" in lost["message"]
    )
    assert [one["data"] for one in run.events("worker.killed")] == [{"rank": 2}]

    before = run.step
    run.until(lambda: run.step >= before + 20 and size() == 3, "three workers train again")
    assert run.child(0).pid == stays, "the one that was well has kept its process"
    first, *later = (one["data"] for one in run.events("worker_group.regrouped"))
    assert (first["cause"], first["world_size"]) == ("loss", 1)
    assert first["pause_s"] >= ABORT_S - 1, "it has waited for the other one"
    assert {one["cause"] for one in later} == {"grow"}
    ready = [one["data"] for one in run.events("worker.ready")]
    assert [one["is_warm"] for one in ready] == [True, True], "each was forked, and none was started twice"
    assert run.checkpoints == [], "they have the state from the one that was well"

    (tmp_path / "hurry").touch()
    assert run.end()["end_reason"] == "completed"
    assert [one["step"] for one in run.bodies("metric")] == list(range(1, STEPS + 1)), "no step is done twice"
    assert run.progress["repeated_steps"] == 0
    assert len(run.events("worker_group.started")) == 1
    assert run.text("stdout").count(undisturbed(tmp_path / "alone")) == 3, "the same bits on each worker"
