"""Memory of a node that holds checkpoints on their way from a script to the storage; it outlives the script.

A snapshot is a folder of files on a file system in memory.  Each supervisor has a folder of
its own, which it removes at its end together with the files that its command made in that memory; what a killed
supervisor left is removed by the next one on the machine.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from remora.private_files import is_private
from trainers.confined_folders import remove_tree
from trainers.isolation.confined import ConfinedJob
from trainers.isolation.memory import SEEN, JobMemory, job_memory, job_memory_folder, unmount
from trainers.node_folders import is_in_use, shared_folder, sweep_folders
from trainers.supervisor.memory_files import remove_recorded

#: Where Linux keeps files in memory.
_MEMORY = Path("/dev/shm")  # noqa: S108 - the folder below it is the owner's only
#: Share of that memory that the snapshots of all workers of a machine may fill, and that the files of one command may.
_MOST_SHARE = 0.5
#: What the command has made in that memory by itself, in the folder of its worker.
_RECORD = "files"
_SCRIPT, _TAKEN = "script", "taken"


@dataclass(frozen=True)
class SnapshotSpace:
    """Where one worker's snapshots lie, and how big they may be together."""

    #: The script writes here.
    folder: Path
    #: Snapshots that the supervisor has taken over, on the same file system.
    staging: Path
    limit_bytes: int
    #: The file system in memory, the name of this user's folder for snapshots below it, and the record of other files.
    memory: Path
    own: str
    record: Path
    #: The job's own file system in memory, in which all of this lies; None: it lies in that of the machine.
    confined: JobMemory | None = None

    def variables(self) -> dict[str, str]:
        """Environment variables for the script."""
        seen = self.folder
        if self.confined is not None:
            seen = SEEN / self.folder.relative_to(self.confined.shared)
        return {"REMORA_MEMORY_DIR": str(seen), "REMORA_MEMORY_BYTES": str(self.limit_bytes)}


def memory_root() -> Path | None:
    """Folder of this user for all snapshots of the machine; None where there is no file system in memory."""
    if not (_MEMORY.is_dir() and os.access(_MEMORY, os.W_OK)):
        return None
    root = _MEMORY / f"remora-{os.getuid()}"
    try:
        root.mkdir(mode=0o700, exist_ok=True)
    except FileExistsError:
        return None
    # Another user may have made a folder of this name, or a link to one of this user.
    return root if is_private(root) else None


@contextlib.contextmanager
def snapshot_space(name: str, workers: int) -> Iterator[SnapshotSpace | None]:
    """Space for one of `workers` workers of this machine, while its supervisor lives; None where there is none."""
    root = memory_root()
    if root is None:
        yield None
        return
    sweep_memory()
    try:
        with shared_folder(name, root, clear_memory) as folder:
            space = SnapshotSpace(
                folder / _SCRIPT,
                folder / _TAKEN,
                limit_bytes=most_bytes(root) // max(1, workers),
                memory=_MEMORY.resolve(),
                own=root.name,
                record=folder / _RECORD,
            )
            space.folder.mkdir(exist_ok=True)
            space.staging.mkdir(exist_ok=True)
            yield space
    finally:
        # What others left because this worker's command used it.
        with contextlib.suppress(OSError):
            sweep_memory()


@contextlib.contextmanager
def confined_space(
    name: str, workers: int, most_shared: int, job: ConfinedJob
) -> Iterator[SnapshotSpace | None]:
    """The same in a file system in memory that the job has for itself.

    Files of its scripts may have `most_shared` bytes there, 0: as many as snapshots.  Raises OSError.
    """
    root = memory_root()
    if root is None:
        yield None
        return
    sweep_memory()
    most = most_bytes(root)
    make = job_memory_folder if job.has_namespaces else job_memory
    with make(job.name, root, most + (most_shared or most), clear_memory) as memory:
        own = memory.shared / "remora" / name
        for path, mode in ((own.parent, 0o755), (own, 0o1777), (own / _SCRIPT, 0o700), (own / _TAKEN, 0o755)):
            path.mkdir(exist_ok=True)
            path.chmod(mode)
        job.own(own / _SCRIPT)
        try:
            yield SnapshotSpace(
                own / _SCRIPT,
                own / _TAKEN,
                limit_bytes=most // max(1, workers),
                memory=memory.shared,
                own=own.parent.name,
                record=own / _RECORD,
                confined=memory,
            )
        finally:
            with contextlib.suppress(OSError):
                remove_tree(own)


def most_bytes(folder: Path) -> int:
    """Bytes that snapshots may fill on the file system of a folder, and that the files of one command may."""
    return int(shutil.disk_usage(folder).total * _MOST_SHARE)


def sweep_memory() -> None:
    """Remove what killed supervisors left in the memory of this machine, with what their commands made there."""
    root = memory_root()
    if root is not None:
        sweep_folders(root, clear_memory)


def clear_memory(folder: Path) -> bool:
    """Remove what the command of a worker's folder made by itself; False while some of that may be used.

    Other workers of its attempt on this machine may need a file there without having it open.  Raises OSError.
    """
    unmount(folder)
    for name in (_SCRIPT, _TAKEN):
        # First: checkpoints are large, and the rest may fail or have to wait.
        remove_tree(folder / name)
    attempt = folder.name.partition("-")[0]
    siblings = (path for path in folder.parent.glob("*.lock") if path.stem.partition("-")[0] == attempt)
    if any(is_in_use(path) for path in siblings if path.stem != folder.name):
        return False
    return remove_recorded(folder / _RECORD, _MEMORY.resolve())
