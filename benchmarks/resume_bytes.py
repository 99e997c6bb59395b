"""Bytes that leave the storage until all ranks of a node have a checkpoint, beside torch.distributed.checkpoint.

    python -m benchmarks.resume_bytes

The state is the same on all ranks, 16 tensors of 4 MiB.  Ours: each rank takes the steps that its supervisor takes, at
the same time as the others.  The peer: each rank loads the state with `torch.distributed.checkpoint` through fsspec.
Bytes are counted where both read them, in the storage's filesystem.
"""

from __future__ import annotations

import io
import json
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from fsspec.implementations.memory import MemoryFileSystem
from torch.distributed.checkpoint._fsspec_filesystem import FsspecReader, FsspecWriter

from trainers.checkpoints.catalog import Catalog
from trainers.checkpoints.manifest import Manifest
from trainers.confined_folders import ConfinedFolder
from trainers.node_folders import fill_once
from trainers.storage import Storage

RANKS = (2, 4, 8)
TENSORS, ELEMENTS = 16, 1 << 20
JOB = "job_benchmark"


def run() -> dict[str, Any]:
    """By the number of ranks on the node: bytes read as multiples of the checkpoint's size, and seconds."""
    return {"resume_bytes": {str(ranks): measured(ranks) for ranks in RANKS}}


def measured(ranks: int) -> dict[str, float]:
    """Both, on a storage of its own each."""
    with tempfile.TemporaryDirectory(prefix="remora-resume-") as name:
        ours, ours_s = _ours(ranks, Path(name))
        theirs, theirs_s = _theirs(ranks)
    MemoryFileSystem.store.clear()
    MemoryFileSystem.pseudo_dirs[:] = [""]
    return {
        "remora_times": round(ours, 2), "dcp_times": round(theirs, 2),
        "remora_s": round(ours_s, 3), "dcp_s": round(theirs_s, 3),
    }  # fmt: skip


def _state() -> dict[str, torch.Tensor]:
    torch.manual_seed(1)
    return {f"tensor-{number}": torch.randn(ELEMENTS) for number in range(TENSORS)}


def _ours(ranks: int, folder: Path) -> tuple[float, float]:
    source, group = folder / "source", folder / "group"
    source.mkdir()
    group.mkdir()
    for name, tensor in _state().items():
        torch.save(tensor, source / name)
    storage = Storage("memory://benchmark/ours")
    catalog = Catalog(storage, JOB)
    with ConfinedFolder(source) as confined:
        files = catalog.put(confined, 1, 1, 1, 0)
    manifest = Manifest(
        job_id=JOB, step=1, attempt=1, generation=1, world_size=1, committed_at=0.0, files=files
    )
    catalog.commit(manifest)
    with counted() as count:
        found, _ = Catalog(storage, JOB).newest()
        assert found is not None

        def fetch() -> None:
            fill_once(group, "resume", lambda target: catalog.fetch(found, target), lambda: None)

        seconds = _together(ranks, fetch)
    return count() / manifest.size_bytes, seconds


def _theirs(ranks: int) -> tuple[float, float]:
    state = _state()
    dcp.save(state, storage_writer=FsspecWriter("memory://benchmark/theirs"), no_dist=True)
    size = sum(one.numel() * one.element_size() for one in state.values())

    def load() -> None:
        mine = {name: torch.empty_like(one) for name, one in state.items()}
        dcp.load(mine, storage_reader=FsspecReader("memory://benchmark/theirs"), no_dist=True)

    with counted() as count:
        seconds = _together(ranks, load)
    return count() / size, seconds


def _together(ranks: int, work: Callable[[], None]) -> float:
    began = time.perf_counter()
    threads = [threading.Thread(target=work) for _ in range(ranks)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    return time.perf_counter() - began


@contextmanager
def counted() -> Iterator[Callable[[], int]]:
    """Count the bytes that are read from the filesystem meanwhile."""
    total, lock = 0, threading.Lock()
    open_ = MemoryFileSystem._open

    def opening(self: MemoryFileSystem, path: str, mode: str = "rb", **options: Any) -> Any:
        opened = open_(self, path, mode, **options)
        return io.BufferedReader(_Counting(opened.getvalue(), add)) if mode == "rb" else opened

    def add(count: int) -> None:
        nonlocal total
        with lock:
            total += count

    MemoryFileSystem._open = opening
    try:
        yield lambda: total
    finally:
        MemoryFileSystem._open = open_


class _Counting(io.RawIOBase):
    """A file that says how much of it is read; each reader has a place of its own in it."""

    def __init__(self, content: bytes, add: Callable[[int], None]) -> None:
        self._content, self._at, self._add = content, 0, add

    def readinto(self, buffer: Any) -> int:
        found = self._content[self._at : self._at + len(buffer)]
        buffer[: len(found)] = found
        self._at += len(found)
        self._add(len(found))
        return len(found)

    def seek(self, place: int, whence: int = 0) -> int:
        self._at = (0, self._at, len(self._content))[whence] + place
        return self._at

    def tell(self) -> int:
        return self._at

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True


if __name__ == "__main__":
    print(json.dumps(run()))
