"""The folder in memory for checkpoints that outlive the script, and whether one fits; standard library only.

The supervisor names a folder on a file system in memory and the bytes that may lie there at once.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

#: Share of the file system that stays free for others.
_FREE_SHARE = 0.1


def folder_for(size_bytes: int | None) -> str | None:
    """The folder in memory when that many bytes fit into it now; None when not, or when the number is unknown."""
    folder, limit = os.environ.get("REMORA_MEMORY_DIR"), os.environ.get("REMORA_MEMORY_BYTES", "")
    if folder is None or size_bytes is None or not limit.isdecimal():
        return None
    try:
        system = os.statvfs(folder)
    except OSError:
        return None
    # The supervisor keeps what it took beside this folder until that is stored.
    used = sum(_size(path) for path in Path(folder).parent.rglob("*"))
    free = (system.f_bavail - system.f_blocks * _FREE_SHARE) * system.f_frsize
    workers = max(1, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    return folder if used + size_bytes <= int(limit) and size_bytes * workers <= free else None


def _size(path: Path) -> int:
    try:
        status = path.stat()
    except OSError:  # stored and removed meanwhile
        return 0
    return status.st_size if stat.S_ISREG(status.st_mode) else 0
