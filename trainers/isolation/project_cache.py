"""What the jobs of one project keep on a node for its later jobs: downloads of Hugging Face, compiled kernels, wheels.

Each project has a folder, which belongs on disk to a user that no job is.  A job's command sees it as its own
(`trainers/isolation/confinement.py` maps the two), so that jobs need no group and no rights of each other, and jobs of
other projects see nothing.  What a project used longest ago goes when its folder is larger than it may be, and so do
the folders of those projects that were used longest ago.

Source: mount_setattr(2).
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

from remora.private_files import open_lock
from trainers.confined_folders import ConfinedFolder, OutsideFolder, remove_tree
from trainers.node_folders import is_in_use, work_root

#: Projects whose folders a node keeps.
MOST_PROJECTS = 20
#: Files and folders that one folder may hold, and the depth of what is removed as a whole
#: (`huggingface/hub/models--NAME`).
MOST_FILES, _DEPTH = 500_000, 3
#: Bytes of one block in what the kernel says of a file.
_BLOCK = 512


@dataclass(frozen=True, kw_only=True)
class ProjectCache:
    """The folder of one project on this node."""

    folder: Path
    #: The user that its files belong to on disk, and their group.
    owner: int


@dataclass(frozen=True)
class Kept:
    """One file or folder in such a folder."""

    name: str
    size_bytes: int
    #: Seconds since the epoch; 0.0 for a folder, in which looking is no use.
    used_at: float


@contextlib.contextmanager
def project_cache(
    project: str, owner: int, most_bytes: int, root: Path | None = None
) -> Iterator[ProjectCache | None]:
    """The folder of a project for one of its jobs; it is cut to `most_bytes` when no other job uses it.

    Its files belong to the user `owner`.
    None where there is none: `project` is empty, nothing may be kept, or the folder is too large and in use by others.
    Raises OSError.
    """
    if not project or most_bytes <= 0 or owner >= 2**32 - 1:
        yield None
        return
    root = root or work_root() / "caches"
    root.mkdir(exist_ok=True, mode=0o700)
    digest = hashlib.sha256(project.encode()).hexdigest()[:32]
    cache = ProjectCache(folder=root / digest, owner=owner)
    with open_lock(root / f"{digest}.lock") as lock:
        if _alone(lock):
            _make(cache, most_bytes)
        fcntl.flock(lock, fcntl.LOCK_SH)
        os.utime(lock.fileno())
        _remove_projects(root)
        try:
            yield None if _too_large(cache.folder).exists() or not cache.folder.is_dir() else cache
        finally:
            if _alone(lock):
                _make(cache, most_bytes)
            elif to_remove(kept(cache.folder), most_bytes):
                # Others use what would be removed: the jobs that start from now on have no part of it.
                _too_large(cache.folder).touch()


def kept(folder: Path) -> list[Kept]:
    """What is in a project's folder, each with a block at least, for the kernel's own record of it.

    What cannot be counted, for it is too deep or too many, has no bound.
    """
    found, uncountable = [], [Kept("", 2**62, 0.0)]
    try:
        with ConfinedFolder(folder) as opened:
            for name, status in opened.entries():
                used = 0.0 if stat.S_ISDIR(status.st_mode) else max(status.st_atime, status.st_mtime)
                found.append(Kept(name, max(1, status.st_blocks) * _BLOCK, used))
                if len(found) > MOST_FILES:
                    return uncountable
    except (OutsideFolder, PermissionError):
        return uncountable
    except FileNotFoundError:
        return []
    return found


def to_remove(files: Iterable[Kept], most_bytes: int) -> list[str]:
    """What has to go so that the rest is not larger than `most_bytes`, what was used longest ago first (pure).

    Whole folders of some depth, since half of a model or of a package is of no use; "" is everything.
    """
    sizes: dict[str, int] = {}
    used: dict[str, float] = {}
    for file in files:
        name = "/".join(file.name.split("/")[:_DEPTH])
        sizes[name] = sizes.get(name, 0) + file.size_bytes
        used[name] = max(used.get(name, 0.0), file.used_at)
    # A folder above others goes after them, at the end with all.
    above = {str(folder) for name in sizes for folder in PurePosixPath(name).parents}
    total, gone = sum(sizes.values()), []
    for name in sorted(sizes.keys() - (above - {""}), key=lambda one: (used[one], one)):
        if total <= most_bytes:
            break
        total -= sizes[name]
        gone.append(name)
    return gone if total <= most_bytes else [""]


def _make(cache: ProjectCache, most_bytes: int) -> None:
    """Make the folder, or cut it.  With the lock alone: no command of a job runs that sees it.  Raises OSError."""
    folder = cache.folder
    if folder.exists() and folder.stat().st_uid != cache.owner:
        # The range of users is another one now.
        remove_tree(folder)
    for name in to_remove(kept(folder), most_bytes):
        if not name:
            remove_tree(folder)
            break
        with ConfinedFolder(folder) as opened:
            opened.remove(name)
    folder.mkdir(exist_ok=True, mode=0o700)
    if cache.owner != os.geteuid():
        os.chown(folder, cache.owner, cache.owner)
    _too_large(folder).unlink(missing_ok=True)


def _remove_projects(root: Path) -> None:
    """Remove the folders of those projects that were used longest ago, but for what is in use."""
    locks = sorted(root.glob("*.lock"), key=lambda one: one.stat().st_mtime, reverse=True)
    for path in locks[MOST_PROJECTS:]:
        if is_in_use(path):
            continue
        with contextlib.suppress(OSError), open_lock(path, make=False) as lock:
            if _alone(lock):
                remove_tree(path.with_suffix(""))
                _too_large(path.with_suffix("")).unlink(missing_ok=True)


def _too_large(folder: Path) -> Path:
    """The file that says so of a folder."""
    return folder.with_suffix(".full")


def _alone(lock: IO[str]) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
