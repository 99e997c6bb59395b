"""Gives each job on a machine a file system in memory of its own: the kernel bounds it and forgets it with the job.

It takes the place of /dev/shm for the job's commands on that machine, which share it: ranks of one node meet there.
The checkpoints on their way to the storage lie in it, too.

Source: tmpfs(5), mount(2).
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from remora.private_files import open_lock
from trainers.isolation.confinement import MEMORY
from trainers.node_folders import Clear, shared_folder

_MS_NOSUID, _MS_NODEV, _MNT_DETACH = 2, 4, 2
#: Files and folders that one job may have in its memory.
_MOST_FILES = 1_000_000
#: Where the job's commands see it.
SEEN = Path("/dev/shm")  # noqa: S108 - the job's own one
_LIBC = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class JobMemory:
    """What one job has for itself of a node's memory for files."""

    #: Where it is mounted on the node, or the folder that it is.
    root: Path
    #: Bytes that its files may have, where nothing but a watch limits them; None: the kernel does.
    watched_bytes: int | None = None

    @property
    def shared(self) -> Path:
        """What the job's commands see as `SEEN`."""
        return self.root / "shm"


@contextlib.contextmanager
def job_memory(name: str, root: Path, size_bytes: int, clear: Clear) -> Iterator[JobMemory]:
    """That of the job `name`, for all of its workers on this machine while one of them lives.

    It is mounted below `root`, a folder of the node's user whose folders are swept with `clear`, which unmounts it.
    Raises OSError.
    """
    with shared_folder(name, root, clear) as folder:
        # Not the folder itself: what is opened by its name is another folder as soon as the memory is mounted.
        with open_lock(_mounting(folder)) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not folder.is_mount():
                _mount(folder, size_bytes)
                # As in /dev/shm everyone may make files, and remove only his own.
                (folder / "shm").mkdir()
                (folder / "shm").chmod(0o1777)
        yield JobMemory(folder)


@contextlib.contextmanager
def job_memory_folder(name: str, root: Path, most_bytes: int, clear: Clear) -> Iterator[JobMemory]:
    """The same in a folder of the machine's memory, where nothing can be mounted.  Raises OSError."""
    with shared_folder(name, root, clear) as folder:
        (folder / "shm").mkdir(exist_ok=True)
        (folder / "shm").chmod(0o1777)
        yield JobMemory(folder, most_bytes)


def unmount(folder: Path) -> None:
    """Unmount what is mounted at a folder that has no users, with all that is in it; fine when nothing is.

    Raises OSError.
    """
    if folder.is_mount() and _LIBC.umount2(os.fsencode(folder), _MNT_DETACH) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{folder} cannot be unmounted: {os.strerror(number)}")
    _mounting(folder).unlink(missing_ok=True)


def _mounting(folder: Path) -> Path:
    """The file that is locked while memory is mounted at a folder."""
    return folder.with_name(f"{folder.name}.mounting")


def _mount(folder: Path, size_bytes: int) -> None:
    options = f"mode=755,size={size_bytes},nr_inodes={_MOST_FILES}".encode()
    flags = ctypes.c_ulong(_MS_NOSUID | _MS_NODEV)
    if _LIBC.mount(MEMORY.encode(), os.fsencode(folder), b"tmpfs", flags, options) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"no memory can be mounted at {folder}: {os.strerror(number)}")
