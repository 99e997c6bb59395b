"""One process of a script that owns its training is killed: seconds until the worker group does its next step.

    python -m benchmarks.restart_alone

Two workers on two nodes train the same network with AdamW, in a plain loop with `torch.save`, with FSDP2 and
`torch.distributed.checkpoint`, and with DeepSpeed.  The process of rank 1 gets SIGKILL.  `noticed_s` goes until the
driver ends the others, `ended_s` until the workers of the next group are there, and `step_s` until their first step;
`began_s`, of that, until the script's first line runs.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

from benchmarks.remora_cluster import RemoraCluster, Run, remora_cluster, until
from remora.spec.worker_sizes import WorkerSizes

ROUNDS = 3
_WAIT_S = 120.0

_COMMON = """
import time
print("BEGAN", time.time(), flush=True)
import os
import torch, torch.distributed as dist
from torch import nn
from remora import training

torch.set_num_threads(1)
torch.manual_seed(1)
model = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(4)))
saved, begin = training.resume_from(), int(os.environ.get("REMORA_RESUME_STEP", 0))

def train(one_step, save, begin):
    for step in range(begin + 1, 1_000_000):
        one_step()
        training.report(step, {"loss": 0.0})
        if training.should_checkpoint():
            with training.checkpoint(step, size_bytes=60_000_000) as folder:
                save(folder)
        time.sleep(0.02)
"""

_PLAIN = """
dist.init_process_group("gloo")
model = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters())
if saved is not None:
    state = torch.load(saved / "state.pt", weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])

def one_step():
    optimizer.zero_grad()
    model(torch.ones(1, 1024)).sum().backward()
    optimizer.step()

def save(folder):
    if dist.get_rank() == 0:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, folder / "state.pt")

train(one_step, save, begin)
"""

_FSDP2 = """
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
optimizer = torch.optim.AdamW(model.parameters())

def state():
    weights, moments = get_state_dict(model, optimizer)
    return {"model": weights, "optimizer": moments}

if saved is not None:
    loaded = state()
    dcp.load(loaded, checkpoint_id=saved)
    set_state_dict(model, optimizer, model_state_dict=loaded["model"], optim_state_dict=loaded["optimizer"])

def one_step():
    optimizer.zero_grad()
    model(torch.ones(1, 1024)).sum().backward()
    optimizer.step()

train(one_step, lambda folder: dcp.save(state(), checkpoint_id=folder), begin)
"""

_DEEPSPEED = """
import deepspeed

config = {
    "train_batch_size": "auto", "train_micro_batch_size_per_gpu": 1, "steps_per_print": 1_000_000,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
    "zero_optimization": {"stage": 1},
}
deepspeed.init_distributed()
engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
_, client = engine.load_checkpoint("checkpoints")
begin = client["step"] if client else 0
for step in range(begin + 1, 1_000_000):
    engine.backward(engine(torch.ones(1, 1024)).sum())
    engine.step()
    training.report(step, {"loss": 0.0})
    if step % 25 == 0:
        engine.save_checkpoint("checkpoints", client_state={"step": step})
    time.sleep(0.02)
"""

#: Script and backend of each.
SCRIPTS = {
    "plain": (_COMMON + _PLAIN, "ddp"),
    "fsdp2": (_COMMON + _FSDP2, "fsdp"),
    "deepspeed": (_COMMON + _DEEPSPEED, "deepspeed"),
}


def run() -> dict[str, Any]:
    """Medians over the rounds, by the kind of script."""
    with remora_cluster(2) as cluster:
        return {"restart_alone": {name: measured(cluster, name) for name in SCRIPTS}}


def measured(cluster: RemoraCluster, name: str) -> dict[str, float]:
    """Kill rank 1 again and again, each time after a new checkpoint."""
    script, backend = SCRIPTS[name]
    with tempfile.TemporaryDirectory(prefix="remora-restart-") as folder:
        (Path(folder) / "train.py").write_text(script)
        attempt = Run(
            cluster,
            Path(folder),
            ["python", "train.py"],
            backend=backend,
            sizes=WorkerSizes(2, 2),
            checkpoint_interval_s=None if backend == "deepspeed" else 2.0,
        )
        try:
            rounds = [one_round(attempt) for _ in range(ROUNDS)]
        finally:
            attempt.close()
    return {key: round(statistics.median(one[key] for one in rounds), 2) for key in rounds[0]}


def one_round(attempt: Run) -> dict[str, float]:
    """Where the seconds go from SIGKILL to the next step, once a checkpoint of the present worker group is stored."""
    groups = len(until(lambda: attempt.events("worker_group.started"), _WAIT_S))
    since = attempt.events("worker_group.started")[-1].at
    until(lambda: [one for one in attempt.records if one.kind == "checkpoint" and one.at > since], _WAIT_S)
    process = script_of(attempt.plan.attempt_id, 1)
    killed_at = time.time()
    process.send_signal(signal.SIGKILL)
    until(lambda: len(attempt.events("worker_group.started")) > groups or attempt.end, _WAIT_S)
    if attempt.end:
        raise RuntimeError(f"the attempt has ended: {attempt.end}")
    started = attempt.events("worker_group.started")[-1]
    first = until(lambda: [at for at, *_ in attempt.steps if at > started.at], _WAIT_S)[0]
    noticed = attempt.events("worker.killed")[-1]
    begun = [
        float(line.split()[1])
        for record in attempt.records
        if record.kind == "log"
        for line in record.body["text"].split("\n")
        if line.startswith("BEGAN") and float(line.split()[1]) > started.at
    ]
    return {
        "noticed_s": noticed.at - killed_at,
        "ended_s": started.at - noticed.at,
        "began_s": max(begun, default=first) - started.at,
        "step_s": first - started.at,
        "s": first - killed_at,
    }


def script_of(attempt_id: str, rank: int) -> psutil.Process:
    """The script's own process of a rank."""
    wanted = {f"REMORA_ATTEMPT_ID={attempt_id}".encode(), f"RANK={rank}".encode()}
    for process in psutil.process_iter():
        with contextlib.suppress(OSError, psutil.Error):
            variables = set(Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0"))
            if wanted <= variables and "command_shim.py" in " ".join(process.cmdline()):
                children = process.children()
                if children:
                    return children[0]
    raise RuntimeError(f"rank {rank} does not run")


if __name__ == "__main__":
    print(json.dumps(run() | {"cores": len(os.sched_getaffinity(0))}), file=sys.stdout)
