"""Checkpoints that stay on their node after they were stored: the next worker group there need not read them again.

What a worker has handed over is moved into a folder of the attempt on the same file system, in memory or on the disk.
That folder outlives the supervisors, because the workers of a group end before those of the next one begin.  It goes
when the script has ended well, when the driver gives it back at the attempt's end, and an hour after its last use
(`trainers/node_folders.py`).
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import stat
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from remora.private_files import open_lock
from trainers.checkpoints.manifest import Manifest, ShardFile, parse_folder_name
from trainers.confined_folders import ConfinedFolder, remove_tree
from trainers.node_folders import KEPT_NAME, mark_kept, shared_folder, sweep_folders, unmark_kept, work_root
from trainers.storage import is_linked, take_over
from trainers.supervisor.checkpoint_intake import TakenFolder
from trainers.supervisor.shard_transfer import CheckpointShard
from trainers.supervisor.snapshot_memory import clear_memory, memory_root, sweep_memory

#: Checkpoints of an attempt that a node keeps: the newest may not be committed yet.
MOST_KEPT = 2
#: Share of the memory for files that checkpoints may take, and the shares of memory and disk that stay free.
_MOST_SHARE = 0.25
_FREE_MEMORY, _FREE_DISK = 0.5, 0.1
#: How folders begin from which a worker group resumes.
_RESUME = "resume-"
#: The attempt's workers on a node keep one at a time.
_LOCK = "keeping.lock"
_CHUNK = 1 << 20


@dataclass(frozen=True)
class Area:
    """Where checkpoints are kept."""

    folder: Path
    #: Bytes that they may have together; None: what is free limits them.
    most_bytes: int | None
    #: Share of the file system that stays free.
    free_share: float


class KeptCheckpoints:
    """Those of one attempt on this node.  Nothing here raises: what cannot be kept is read from the storage."""

    def __init__(self, areas: Mapping[str, Area]) -> None:
        """`areas` are named as the places in which scripts write: "scratch" and "memory"."""
        self._areas = areas
        self._given: dict[str, int] = {}
        self._counting = threading.Lock()
        self._is_given_back = False

    @property
    def given_bytes(self) -> int:
        """Bytes of files that were found here."""
        return sum(self._given.values())

    def may_keep(self, root: str, size_bytes: int) -> bool:
        """Whether so much of what a script has written there may stay."""
        area = self._areas.get(root)
        return area is not None and (area.most_bytes is None or size_bytes <= area.most_bytes)

    def keep(self, taken: TakenFolder, shard: CheckpointShard) -> None:
        """Keep a worker's files of a checkpoint, which are stored, and let older ones go."""
        area = self._areas[taken.root]
        with contextlib.suppress(OSError), _alone(area.folder):
            if not _free_space(area, shard):
                return
            checkpoint = area.folder / shard.folder
            checkpoint.mkdir(exist_ok=True)
            with ConfinedFolder(checkpoint) as target:
                taken.move(target, str(shard.rank))
                _take_over(target, str(shard.rank))
            mark_kept(area.folder)

    def give(self, folder: str, file: ShardFile, target: Path) -> bool:
        """Have a file of the checkpoint `folder` at `target`, where nothing is; False: it is not here in this size."""
        for area in self._areas.values():
            where = area.folder / folder / str(file.rank)
            with contextlib.suppress(OSError), ConfinedFolder(where) as found:
                if _have(found, file, target):
                    with self._counting:
                        self._given[file.name] = file.size_bytes
                    return True
        return False

    def place_for(self, manifest: Manifest, generation: int, otherwise: Path) -> tuple[Path, str]:
        """In which folder, and under which name, a worker group gets a checkpoint: where nothing has to be copied.

        That is in memory when all of it is there, and below `otherwise` when not.
        """
        area, name = self._areas.get("memory"), f"{_RESUME}{generation}"
        if area is None:
            return otherwise, "resume"
        with contextlib.suppress(OSError), _alone(area.folder):
            if (area.folder / name).exists() or all(
                _size(area.folder / manifest.folder / str(file.rank) / file.name) == file.size_bytes
                for file in manifest.files
            ):
                for path in area.folder.glob(f"{_RESUME}*"):
                    # Of worker groups that have ended.
                    if not path.name.startswith((f"{name}.", f"{name}-")) and path.name != name:
                        remove_tree(path)
                return area.folder, name
        return otherwise, "resume"

    def give_back(self) -> None:
        """Nothing of this is needed any more: it goes with the last worker here."""
        self._is_given_back = True
        for area in self._areas.values():
            with contextlib.suppress(OSError):
                unmark_kept(area.folder)

    def close(self) -> None:
        """The worker ends: what is here stays for the next one, unless it was given back."""
        if self._is_given_back:
            return
        for area in self._areas.values():
            with contextlib.suppress(OSError):
                if _checkpoints(area):
                    mark_kept(area.folder)


@contextlib.contextmanager
def kept_checkpoints(attempt_id: str, most_disk_bytes: int) -> Iterator[KeptCheckpoints]:
    """What an attempt keeps on this node, while one of its supervisors lives and for the next one.

    On the disk it has at most `most_disk_bytes`, 0: as many as fit.  Raises OSError.
    """
    name = _name_of(attempt_id)
    with contextlib.ExitStack() as held:
        areas = {
            "scratch": Area(held.enter_context(shared_folder(name)), most_disk_bytes or None, _FREE_DISK)
        }
        if (root := memory_root()) is not None:
            most = int(shutil.disk_usage(root).total * _MOST_SHARE)
            folder = held.enter_context(shared_folder(name, root, clear_memory))
            areas["memory"] = Area(folder, most, _FREE_MEMORY)
        kept = KeptCheckpoints(areas)
        try:
            yield kept
        finally:
            kept.close()


def give_back(attempt_id: str) -> None:
    """Remove what an attempt that has ended keeps on this node, as soon as none of its supervisors lives here."""
    name, root = _name_of(attempt_id), memory_root()
    for above in (work_root(), *([] if root is None else [root])):
        with contextlib.suppress(OSError):
            unmark_kept(above / name)
    sweep_folders()
    sweep_memory()


def _name_of(attempt_id: str) -> str:
    """Nodes that share a machine have work roots of their own, and share its memory."""
    return f"{attempt_id}{KEPT_NAME}{hashlib.sha256(os.fsencode(work_root())).hexdigest()[:12]}"


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    with open_lock(folder / _LOCK) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _checkpoints(area: Area) -> list[Path]:
    """Folders of the checkpoints there, the one that was begun last first."""
    found = [path for path in area.folder.iterdir() if parse_folder_name(path.name) is not None]
    return sorted(found, key=_age, reverse=True)


def _free_space(area: Area, shard: CheckpointShard) -> bool:
    """Remove older checkpoints until that one may stay here; False: it may not."""
    own, present = _age(area.folder / shard.folder), _checkpoints(area)
    most_older = MOST_KEPT - 1 - sum(_age(path) > own for path in present)
    if most_older < 0:
        return False
    older = [path for path in present if _age(path) < own]
    while len(older) > most_older or not _fits(area, shard.size_bytes):
        if not older:
            return False
        remove_tree(older.pop())
    return True


def _age(checkpoint: Path) -> tuple[int, int, int, int]:
    step, attempt, group, take = parse_folder_name(checkpoint.name) or (0, 0, 0, 0)
    return attempt, group, step, take


def _fits(area: Area, size_bytes: int) -> bool:
    disk = shutil.disk_usage(area.folder)
    if disk.free - size_bytes < disk.total * area.free_share:
        return False
    if area.most_bytes is None:
        return True
    with ConfinedFolder(area.folder) as folder:
        # By their numbers: what a worker group resumes from is linked.
        present = {status.st_ino: status.st_size for name, status in folder.files() if "/" in name}
    return sum(present.values()) + size_bytes <= area.most_bytes


def _size(path: Path) -> int:
    status = path.lstat()
    return status.st_size if stat.S_ISREG(status.st_mode) else -1


def _take_over(folder: ConfinedFolder, name: str) -> None:
    """Files of a job's user become those of the node's: the next group of the job may have another user."""
    with folder.subfolder(name) as below:
        for file, status in below.files():
            if status.st_uid != os.geteuid():
                with below.open_file(file) as opened:
                    take_over(opened.fileno())


def _have(found: ConfinedFolder, file: ShardFile, target: Path) -> bool:
    with found.open_file(file.name) as opened:
        status = os.fstat(opened.fileno())
        if status.st_size != file.size_bytes:
            return False
        target.parent.mkdir(parents=True, exist_ok=True)
        # A file that still is a job's own may be one that the next group's user cannot read.
        if status.st_uid == os.geteuid() and is_linked(opened.fileno(), target):
            return True
        with target.open("wb") as copy:
            shutil.copyfileobj(opened, copy, _CHUNK)
    return True
