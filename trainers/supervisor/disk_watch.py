"""Watches how much a job's files take of its node's disk, where operators set a limit.

No file system that nodes have counts by folder, and few count by user, so the folders are walked: rarely, so that all
workers of a node together take a fiftieth of a core at most.
"""

from __future__ import annotations

import logging
import os
import stat
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

log = logging.getLogger(__name__)

#: Seconds between the end of a look and the next one: at least _PAUSE_S, and _PAUSES times the look's own time for each
#: worker of the node.
_PAUSE_S, _PAUSES = 10.0, 50
#: Folders in each other that are looked into; each costs an open descriptor.
_MOST_DEEP = 256
#: Bytes of one block in what the kernel says of a file.
_BLOCK = 512
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class DiskWatch:
    """Looks at some folders until `close`."""

    def __init__(
        self,
        folders: Iterable[Path],
        most_bytes: int,
        on_excess: Callable[[int], None],
        *,
        uid: int | None = None,
        workers: int = 1,
    ) -> None:
        """`on_excess` is called once, from another thread, with the bytes when they are more than `most_bytes`.

        With `uid` only the files of that user count; `workers` of the node look at the same folders.
        """
        self._folders, self._most_bytes, self._on_excess = tuple(folders), most_bytes, on_excess
        self._uid, self._workers = uid, workers
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="disk", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def close(self) -> None:
        """Look no more; may be called twice."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()

    def _watch(self) -> None:
        while not self._over.is_set():
            began_at = time.monotonic()
            try:
                size = used_bytes(self._folders, self._uid, self._over.is_set)
            except OSError:
                log.exception("the files of a job could not be counted")
            else:
                if size > self._most_bytes and not self._over.is_set():
                    self._on_excess(size)
                    return
            took_s = time.monotonic() - began_at
            self._over.wait(max(_PAUSE_S, _PAUSES * self._workers * took_s))


def used_bytes(
    folders: Iterable[Path], uid: int | None = None, is_over: Callable[[], bool] = lambda: False
) -> int:
    """What the files below some folders take of the disk, each counted once however many names it has.

    With `uid` those of that user.  Follows no link; what vanishes meanwhile is passed over.  What lies in more than 256
    folders cannot be counted, and is taken for more than any disk has.  Raises OSError.
    """
    seen: set[tuple[int, int]] = set()
    total = 0
    for folder in folders:
        try:
            opened = os.open(folder, _FOLDER)
        except FileNotFoundError:
            continue
        total += _used_in(opened, uid, seen, is_over, _MOST_DEEP)
    return total


def _used_in(
    folder: int, uid: int | None, seen: set[tuple[int, int]], is_over: Callable[[], bool], depth: int
) -> int:
    """The same for an open folder, which is closed."""
    total = 0
    try:
        if depth == 0:
            return 1 << 62
        with os.scandir(folder) as entries:
            names = [entry.name for entry in entries]
        for name in names:
            if is_over():
                break
            try:
                status = os.stat(name, dir_fd=folder, follow_symlinks=False)
                below = os.open(name, _FOLDER, dir_fd=folder) if stat.S_ISDIR(status.st_mode) else None
            except OSError:
                # Gone, or another thing by now.
                continue
            if below is not None:
                total += _used_in(below, uid, seen, is_over, depth - 1)
            elif uid in (None, status.st_uid):
                if status.st_nlink > 1:
                    if (status.st_dev, status.st_ino) in seen:
                        continue
                    seen.add((status.st_dev, status.st_ino))
                total += status.st_blocks * _BLOCK
    finally:
        os.close(folder)
    return total
