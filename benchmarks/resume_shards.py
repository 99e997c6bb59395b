"""Bytes that leave the storage until all ranks of two nodes have a sharded state, beside torch.distributed.checkpoint.

    python -m benchmarks.resume_shards

Four ranks on two nodes have written 16 matrices of 4 MiB, sharded by FSDP2; 2, 4 and 8 ranks on two nodes read them,
each rank a process.  Ours: one rank of each node fetches its node's files and compares them with their digests, as its
supervisor does, and the ranks exchange the blocks.  The peer: `torch.distributed.checkpoint` through fsspec.  Bytes are
counted where both read them; the storage is the local disk, so its seconds leave out every network.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import fsspec
import torch
import torch.distributed.checkpoint as dcp
from fsspec.implementations.local import LocalFileSystem
from torch import nn
from torch.distributed.checkpoint._fsspec_filesystem import FsspecReader, FsspecWriter
from torch.distributed.fsdp import fully_shard

from remora.script.link import Rendezvous
from remora.torch.group import Group, form
from remora.torch.layout import Writer
from remora.torch.sharded import checkpoint_io, checkpoint_parts
from remora.torch.sharded.building import BuiltModel, construct
from remora.torch.sharded.grid import Parallel
from remora.torch.sharded.mesh import close_mesh, open_mesh
from remora.torch.sharded.state_shards import ShardOffsets
from remora.torch.state import LoopState, Progress
from trainers.checkpoints.catalog import Catalog
from trainers.checkpoints.manifest import Manifest
from trainers.checkpoints.parts import files_of_node
from trainers.confined_folders import ConfinedFolder
from trainers.node_folders import fill_once
from trainers.storage import Storage

WRITERS, READERS, NODES = 4, (2, 4, 8), 2
LAYERS, WIDTH = 16, 1024
JOB = "job_benchmark"
_PATIENCE_S = 300.0


class Counted(LocalFileSystem):  # type: ignore[misc]
    """The local disk, which counts in each process what is read of it."""

    protocol = ("counted",)
    read_bytes = 0

    def _open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        opened = super()._open(path, mode, **options)
        if mode == "rb":
            plain = opened.f
            opened.f = _Counting(plain)
        return opened

    def get_file(self, rpath: str, lpath: str, **_: Any) -> None:
        """Through `_open`, which counts."""
        with self._open(rpath) as source, Path(lpath).open("wb") as target:
            shutil.copyfileobj(source, target, 1 << 20)


class _Counting:
    """An open file that counts."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def read(self, *size: int) -> bytes:
        found: bytes = self._file.read(*size)
        Counted.read_bytes += len(found)
        return found

    def readinto(self, buffer: Any) -> int:
        count: int = self._file.readinto(buffer)
        Counted.read_bytes += count
        return count

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def run() -> dict[str, Any]:
    """By the number of ranks that read: bytes read as multiples of the state's size, and seconds."""
    return {"resume_shards": {str(ranks): one for ranks, one in measured().items()}}


def measured() -> dict[int, dict[str, float]]:
    """Both, on a folder that is the storage."""
    with tempfile.TemporaryDirectory(prefix="remora-shards-") as name:
        folder = Path(name)
        _in_processes(WRITERS, _write, folder)
        manifest = _commit(folder)
        found = {}
        for ranks in READERS:
            answers = _in_processes(ranks, _read, folder)
            for node in range(NODES):
                shutil.rmtree(folder / f"node-{node}")
            size = manifest.size_bytes
            found[ranks] = {
                "remora_times": round(sum(one["remora"] for one in answers) / size, 2),
                "dcp_times": round(sum(one["dcp"] for one in answers) / size, 2),
                "remora_s": round(max(one["remora_s"] for one in answers), 3),
                "dcp_s": round(max(one["dcp_s"] for one in answers), 3),
            }
    return found


def _commit(folder: Path) -> Manifest:
    catalog = Catalog(Storage(folder / "storage"), JOB)
    with ConfinedFolder(folder / "written") as written:
        files = catalog.put(written, 1, 1, 1, 0)
    manifest = Manifest(
        job_id=JOB, step=1, attempt=1, generation=1, world_size=WRITERS, committed_at=0.0, files=files
    )
    catalog.commit(manifest)
    return manifest


def _write(folder: Path, rank: int, group: Group, _: Group, built: BuiltModel) -> dict[str, float]:
    sharded, grid = built.sharded, built.grid
    (folder / "written").mkdir(exist_ok=True)
    layout = sharded.layout()
    offsets = ShardOffsets(layout, grid.state_shard_of(rank))
    memory = torch.empty(offsets.size_bytes, dtype=torch.uint8)
    sharded.copy_into(memory, offsets)
    blocks = checkpoint_io.blocks_of(layout, offsets, memory, grid, rank)
    writer = Writer(rank, group.world_size)
    state = LoopState({}, {}).capture(Progress(1, 0, 1))
    checkpoint_io.save(folder / "written", blocks, writer, state if rank == 0 else None)
    dcp.save(dict(sharded.tensors()), storage_writer=FsspecWriter(f"counted://{folder}/dcp"))
    return {}


def _read(folder: Path, rank: int, group: Group, host: Group, built: BuiltModel) -> dict[str, float]:
    node = rank * NODES // group.world_size
    own = folder / f"node-{node}"
    own.mkdir(exist_ok=True)
    began, before = time.perf_counter(), Counted.read_bytes
    catalog = Catalog(Storage(f"counted://{folder}/storage"), JOB)
    found, _ = catalog.newest()
    assert found is not None
    needed = files_of_node(found, node, NODES)
    part = replace(found, files=tuple(file for file in found.files if file.name in needed))
    resume = fill_once(own, "resume", lambda target: catalog.fetch(part, target), lambda: None)
    checkpoint_parts.load(resume, built.sharded, built.grid, host)
    host.wait(host.sum(torch.ones(1)))
    ours, ours_s = Counted.read_bytes - before, time.perf_counter() - began
    began, before = time.perf_counter(), Counted.read_bytes
    dcp.load(dict(built.sharded.tensors()), storage_reader=FsspecReader(f"counted://{folder}/dcp"))
    host.wait(host.sum(torch.ones(1)))
    theirs_s = time.perf_counter() - began
    return {"remora": ours, "remora_s": ours_s, "dcp": Counted.read_bytes - before, "dcp_s": theirs_s}


Work = Callable[[Path, int, Group, Group, BuiltModel], dict[str, float]]


def _in_processes(ranks: int, work: Work, folder: Path) -> list[dict[str, float]]:
    """What each rank answers.  Raises RuntimeError where one does not."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    answers = context.SimpleQueue()
    started = [
        context.Process(target=_rank, args=(work, folder, rank, ranks, port, answers))
        for rank in range(ranks)
    ]
    for one in started:
        one.start()
    until = time.monotonic() + _PATIENCE_S
    for one in started:
        one.join(max(0.0, until - time.monotonic()))
    for one in started:
        one.kill()
        one.join()
    if any(one.exitcode for one in started):
        raise RuntimeError("a rank failed")
    return [answers.get() for _ in started]


def _rank(work: Work, folder: Path, rank: int, ranks: int, port: int, answers: Any) -> None:
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    fsspec.register_implementation("counted", Counted, clobber=True)
    place = Rendezvous(1, rank, ranks, rank, ranks, 0, "127.0.0.1", port)
    group = form(place, check=lambda: None, on_cuda=False)
    host = group.subgroup(range(ranks), "snapshots", on_cuda=False)
    grid = Parallel().arrange(ranks)
    mesh, _ = open_mesh(group, torch.device("cpu"), grid)

    def build(mesh: Any) -> Any:
        model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)))
        fully_shard(model, mesh=mesh)
        return model, torch.optim.SGD(model.parameters())

    answers.put(work(folder, rank, group, host, construct(build, mesh, grid, 0)))
    # Who goes first would break the others' last collective.
    host.wait(host.sum(torch.ones(1)))
    close_mesh()


if __name__ == "__main__":
    print(json.dumps(run()))
