"""Makes the home of a service readable by its own user only: jobs, logs and the cluster's secret are private."""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Iterator
from pathlib import Path

log = logging.getLogger(__name__)

_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def make_private(home: Path) -> None:
    """Make the home, or take other users' rights on one that is there, with what lies in it and in its folders.

    What lies deeper is reached through these only.  What belongs to another user is left, and named in the log.
    Raises OSError when there can be no such folder.
    """
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    for path in (home.resolve(), *_inside(home)):
        close_to_others(path)


def close_to_others(path: Path) -> None:
    """Take the rights of group and others on a file or folder; a link is left as it is, and so is what has gone."""
    try:
        mode = path.lstat().st_mode
        if mode & _OTHERS and not stat.S_ISLNK(mode):
            path.chmod(stat.S_IMODE(mode) & ~_OTHERS)
    except FileNotFoundError:
        return
    except PermissionError:
        log.warning("other users may read %s, which belongs to one of them: make it private", path)


def make_private_file(path: Path) -> None:
    """An empty file of this user, unless it is there; others lose their rights on it.  Raises OSError."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    close_to_others(path)


def _inside(home: Path) -> Iterator[Path]:
    for path in home.iterdir():
        yield path
        if path.name in ("logs", "uploads") and path.is_dir() and not path.is_symlink():
            yield from path.iterdir()
