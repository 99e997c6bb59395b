"""Folders of one user in places where everyone may write, and files in them that processes lock.

Standard library only.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import IO


def is_private(folder: Path) -> bool:
    """True for a folder, not a link to one, into which only this user can write: others may have taken its name."""
    status = folder.lstat()
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o022


def open_lock(path: Path, *, make: bool = True) -> IO[str]:
    """The lock file itself, to read and write: a script may have replaced it by a link to another file."""
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | (os.O_CREAT if make else 0)
    return os.fdopen(os.open(path, flags, 0o600), "r+")
