"""Gives files and folders to another user."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from trainers.confined_folders import OutsideFolder

#: Folders in each other that are given to a user: each costs an open descriptor, and a call.
MOST_DEEP = 256


def give(path: Path, uid: int) -> None:
    """Make a file, or a folder with all in it, one of this user and of the group of the same number.

    Follows no link, and leaves files of the node that have a second name.  Raises OSError where there is nothing, and
    OutsideFolder when all was given but what lies in more than `MOST_DEEP` folders.
    """
    above = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        is_whole = _give_in(above, path.name, uid, MOST_DEEP)
    finally:
        os.close(above)
    if not is_whole:
        raise OutsideFolder(f"it has folders that lie in more than {MOST_DEEP} others")


def _give_in(above: int, name: str, uid: int, depth: int) -> bool:
    """The same for a name in an open folder; False when something lies deeper than `depth`."""
    try:
        status = os.stat(name, dir_fd=above, follow_symlinks=False)
        # What a job makes has no second name outside of its folders; a file of the node's user may be one of a cache.
        is_shared = status.st_nlink > 1 and stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()
        if status.st_uid != uid and not is_shared:
            os.chown(name, uid, uid, dir_fd=above, follow_symlinks=False)
        if not stat.S_ISDIR(status.st_mode):
            return True
        if depth == 0:
            return False
        folder = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above)
    except OSError:
        # It went, or became another thing, while a script runs there: what that makes is its own anyway.
        return True
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in entries]
        # Each of them, whatever became of the one before.
        given = [_give_in(folder, one, uid, depth - 1) for one in names]
        return all(given)
    finally:
        os.close(folder)
