"""Memory of a node that holds checkpoints between a script and the storage; it outlives the script.

A snapshot is a folder of files on a file system in memory.  A folder of each supervisor's own is removed with it; what
a killed one left behind is swept by the next one on the machine.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from trainers.supervisor.code import is_private, shared_folder, sweep_folders

#: Where Linux keeps files in memory.
_MEMORY = Path("/dev/shm")  # noqa: S108 - the folder below it is the owner's only
#: Share of that memory that the snapshots of all workers of a machine may fill.
_MOST_SHARE = 0.5


@dataclass(frozen=True)
class SnapshotRoom:
    """Where one worker's snapshots lie, and how big they may be together."""

    #: The script writes here.
    folder: Path
    #: What the supervisor has taken lies here, on the same file system.
    staging: Path
    limit_bytes: int

    def variables(self) -> dict[str, str]:
        """Environment variables that tell the script."""
        return {"REMORA_MEMORY_DIR": str(self.folder), "REMORA_MEMORY_BYTES": str(self.limit_bytes)}


def memory_root() -> Path | None:
    """Folder of this user for all snapshots of the machine; None where there is no file system in memory."""
    if not (_MEMORY.is_dir() and os.access(_MEMORY, os.W_OK)):
        return None
    root = _MEMORY / f"remora-{os.getuid()}"
    try:
        root.mkdir(mode=0o700, exist_ok=True)
    except FileExistsError:
        return None
    # Somebody else may have made a folder of this name, or a link to one of this user.
    return root if is_private(root) else None


@contextlib.contextmanager
def snapshot_room(name: str, workers: int) -> Iterator[SnapshotRoom | None]:
    """Room for one of so many workers on this machine, while its supervisor lives; None where there is none."""
    root = memory_root()
    if root is None:
        yield None
        return
    sweep_folders(root)
    with shared_folder(name, root) as folder:
        limit_bytes = int(shutil.disk_usage(root).total * _MOST_SHARE) // max(1, workers)
        room = SnapshotRoom(folder / "script", folder / "taken", limit_bytes)
        room.folder.mkdir(exist_ok=True)
        room.staging.mkdir(exist_ok=True)
        yield room
