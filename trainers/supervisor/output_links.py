"""Folders of the code that are outputs: links to where a worker's outputs are collected.

The working folder belongs to all workers of a node, so what they write below such a path is the first one's.
"""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from remora.private_files import open_lock
from trainers.confined_folders import ConfinedFolder
from trainers.worker_identity import WorkerIdentity


def own_outputs(folder: Path, identity: WorkerIdentity) -> Path:
    """A worker's outputs folder, below its node's folder for the worker group."""
    return _outputs_of(folder, identity.local_rank)


def _outputs_of(folder: Path, local_rank: int) -> Path:
    return folder / f"outputs-{local_rank}"


def link_outputs(
    code: Path, folder: Path, identity: WorkerIdentity, paths: Mapping[str, str], *, is_joining: bool
) -> None:
    """Make each path below `code` a link to the output of that name, unless another worker did or it is code.

    Workers that join a group lead themselves: the group's first worker of this node has another folder.
    """
    leader = identity.local_rank if is_joining else 0
    with open_lock(folder / "links.lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for path, name in paths.items():
            link, target = code / path, _outputs_of(folder, leader) / name
            if link.is_symlink() or link.exists():
                continue
            target.mkdir(parents=True, exist_ok=True)
            # A script that runs here already may have put a link there.
            with ConfinedFolder(code) as opened:
                opened.make_link(path, target)


def unlinked(code: Path, paths: Iterable[str]) -> list[str]:
    """Paths that are part of the code, and so no outputs."""
    return [path for path in paths if not (code / path).is_symlink()]


@contextlib.contextmanager
def first_of_node(folder: Path, what: str) -> Iterator[bool]:
    """Hold up the other workers of the node; yields True to the first one that comes through without an error."""
    with open_lock(folder / f"{what}.lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield not lock.read()
        lock.write("done")
        lock.flush()
