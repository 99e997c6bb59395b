"""Resuming a script that owns its training, from what its node still has and from the storage.

    python -m benchmarks.resume_near

The same network and AdamW, 50 MB, are written and read by a plain loop with `torch.save`, by FSDP2 with
`torch.distributed.checkpoint`, and by DeepSpeed.  Each checkpoint takes the steps of a supervisor: it is handed over,
stored and kept; in memory, and of DeepSpeed on the disk as its engine does it, whose files are links in the script's
own folder as well.  Measured is the time until the script has its state again: files fetched, compared with their
digests and loaded.  The storage is the memory of the process (fsspec), so its seconds leave out every network; bytes
are counted where it is read.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from fsspec.implementations.memory import MemoryFileSystem
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from benchmarks.resume_bytes import counted
from benchmarks.stall import in_own_process
from trainers.checkpoints.catalog import Catalog
from trainers.checkpoints.manifest import Manifest
from trainers.node_folders import fill_once
from trainers.storage import Storage
from trainers.supervisor.checkpoint_intake import CheckpointIntake, CheckpointOffer
from trainers.supervisor.kept_checkpoints import KeptCheckpoints, give_back, kept_checkpoints
from trainers.supervisor.shard_transfer import CheckpointShard, size_of
from trainers.supervisor.snapshot_memory import snapshot_space

#: Width of each of four square layers: 4.2 million parameters, 17 MB, and twice that for AdamW.
_WIDTH = 1024
_ROUNDS = 5
JOB, ATTEMPT = "job_benchmark", f"att_{os.getpid()}"

#: Writes a checkpoint into a folder, and reads it into the state of the same object.
Way = tuple[Callable[[Path], object], Callable[[Path], object]]


def run() -> dict[str, Any]:
    """By the kind of script: seconds from the node and from the storage, and what was read of that, as multiples."""
    return {"resume_near": in_own_process("benchmarks.resume_near")}


def main() -> None:
    """Measure here, and print the result as JSON."""
    torch.set_num_threads(1)
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    variables = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    os.environ.update(variables, LOCAL_WORLD_SIZE="1")
    store = dist.TCPStore("127.0.0.1", 0, 1, is_master=True)
    os.environ["MASTER_PORT"] = str(store.port)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    ways = {
        "plain": (_plain, "memory"),
        "fsdp2": (_fsdp2, "memory"),
        "deepspeed": (_deepspeed, "scratch"),
    }
    found = {name: _measured(make(), root) for name, (make, root) in ways.items()}
    dist.destroy_process_group()
    print(json.dumps(found))


def _network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(*(nn.Linear(_WIDTH, _WIDTH) for _ in range(4)))


def _trained(model: nn.Module) -> torch.optim.Optimizer:
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, _WIDTH)).sum().backward()
    optimizer.step()
    return optimizer


def _plain() -> Way:
    model = _network()
    optimizer = _trained(model)

    def save(folder: Path) -> None:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, folder / "state.pt")

    def load(folder: Path) -> None:
        state = torch.load(folder / "state.pt", weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])

    return save, load


def _fsdp2() -> Way:
    model = _network()
    fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
    optimizer = _trained(model)

    def state() -> dict[str, Any]:
        weights, moments = get_state_dict(model, optimizer)
        return {"model": weights, "optimizer": moments}

    return lambda folder: dcp.save(state(), checkpoint_id=folder), (
        lambda folder: dcp.load(state(), checkpoint_id=folder)
    )


def _deepspeed() -> Way:
    import deepspeed

    # Otherwise it compiles a collective for several ranks of a node, for minutes.
    deepspeed.ops.__compatible_ops__.clear()
    model = _network()
    config = {
        "train_batch_size": 1,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
        "zero_optimization": {"stage": 1},
    }
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    engine.backward(engine(torch.ones(1, _WIDTH)).sum())
    engine.step()
    return lambda folder: engine.save_checkpoint(folder, tag="step1"), (
        lambda folder: engine.load_checkpoint(folder, tag="step1")
    )


def _measured(way: Way, root: str) -> dict[str, float]:
    """`root`: where a script of this kind hands over what it has written."""
    save, load = way
    storage = Storage("memory://benchmark/near")
    with tempfile.TemporaryDirectory(prefix="remora-near-") as name, _kept(Path(name)) as (kept, hand_over):
        manifest = hand_over(storage, save, root)

        def resume(group_name: str, number: int, near: KeptCheckpoints) -> None:
            above, group = near.place_for(manifest, number, Path(name) / group_name)
            above.mkdir(exist_ok=True)
            load(fill_once(above, group, fetch(near), lambda: None))

        def fetch(near: KeptCheckpoints) -> Callable[[Path], object]:
            return lambda target: Catalog(storage, JOB).fetch(manifest, target, near=near.give)

        result: dict[str, float] = {"mb": round(manifest.size_bytes / 1e6, 1)}
        for kind, near in (("node", kept), ("storage", KeptCheckpoints({}))):
            seconds = []
            with counted() as count:
                for number in range(1, _ROUNDS + 1):
                    began = time.perf_counter()
                    resume(f"{kind}-{number}", number, near)
                    seconds.append(time.perf_counter() - began)
            result[f"{kind}_times"] = round(count() / _ROUNDS / manifest.size_bytes, 2)
            result[f"{kind}_s"] = round(statistics.median(seconds), 3)
    MemoryFileSystem.store.clear()
    MemoryFileSystem.pseudo_dirs[:] = [""]
    return result


HandOver = Callable[[Storage, Callable[[Path], object], str], Manifest]


@contextlib.contextmanager
def _kept(folder: Path) -> Iterator[tuple[KeptCheckpoints, HandOver]]:
    """What a node keeps, and how a checkpoint comes there."""
    os.environ["REMORA_WORK_DIR"] = str(folder / "work")
    scratch, staging = folder / "scratch", folder / "staging"
    scratch.mkdir()
    staging.mkdir()
    with snapshot_space(f"{ATTEMPT}-near", 1) as space, kept_checkpoints(ATTEMPT, 0) as kept:
        if space is None:
            raise SystemExit("there is no file system in memory here (/dev/shm), which this measures")

        def hand_over(storage: Storage, save: Callable[[Path], object], root: str) -> Manifest:
            written = (space.folder if root == "memory" else scratch) / "checkpoint"
            written.mkdir()
            save(written)
            intake = CheckpointIntake(scratch, staging, space)
            offer = CheckpointOffer(step=1, generation=1, root=root, folder=written.name, asked=False)
            taken = intake.take(offer)
            shard = CheckpointShard(
                rank=0, step=1, attempt=1, generation=1, size_bytes=size_of(taken.folder), asked=False
            )
            catalog = Catalog(storage, JOB)
            files = catalog.put(taken.folder, 1, 1, 1, 0, consume=False)
            kept.keep(taken, shard)
            taken.discard()
            intake.close()
            manifest = Manifest(
                job_id=JOB, step=1, attempt=1, generation=1, world_size=1, committed_at=0.0, files=files
            )
            catalog.commit(manifest)
            return manifest

        yield kept, hand_over
        kept.give_back()
    give_back(ATTEMPT)


if __name__ == "__main__":
    main()
