"""Watches how much a job's files take of its node's disk, where operators set a limit.

No file system that nodes have counts by folder, and few count by user, so the folders are walked: rarely, so that all
workers of a node together take a fiftieth of a core at most.  What a process has deleted and keeps open is in no folder
and takes as much; of a job with a user of its own it is found in /proc.
"""

from __future__ import annotations

import contextlib
import logging
import os
import stat
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

log = logging.getLogger(__name__)

#: Seconds between the end of a look and the next one: at least _PAUSE_S, and _PAUSES times the look's own time for each
#: worker of the node.
_PAUSE_S, _PAUSES = 10.0, 50
#: Folders in each other that are looked into; each costs an open descriptor.
_MOST_DEEP = 256
#: Bytes of one block in what the kernel says of a file.
_BLOCK = 512
#: Open files of a job's processes that are looked at.
_MOST_OPEN = 1_000_000
#: More than any disk has, in bytes.
_UNCOUNTABLE = 1 << 62
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True)
class Spared:
    """Files that do not count, as others have asked for them: those of one folder whose names begin so."""

    folder: Path
    prefix: str
    #: Bytes of all of them together; what they have beyond that counts.
    most_bytes: int


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
        pause_s: float | None = None,
        spared: Callable[[], Spared | None] = lambda: None,
    ) -> None:
        """`on_excess` is called once, from another thread, with the bytes when they are more than `most_bytes`.

        With `uid` only the files of that user count; `workers` of the node look at the same folders, after `pause_s`
        seconds at least (ten by default).  `spared` is asked at each look for what does not count.
        """
        self._folders, self._most_bytes, self._on_excess = tuple(folders), most_bytes, on_excess
        self._uid, self._workers, self._spared = uid, workers, spared
        self._pause_s = _PAUSE_S if pause_s is None else pause_s
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
                size = used_bytes(self._folders, self._uid, self._over.is_set, self._spared())
            except OSError:
                log.exception("the files of a job could not be counted")
            else:
                if size > self._most_bytes and not self._over.is_set():
                    self._on_excess(size)
                    return
            took_s = time.monotonic() - began_at
            self._over.wait(max(self._pause_s, _PAUSES * self._workers * took_s))


def used_bytes(
    folders: Iterable[Path],
    uid: int | None = None,
    is_over: Callable[[], bool] = lambda: False,
    spared: Spared | None = None,
) -> int:
    """What the files below some folders take of the disk, each counted once however many names it has.

    Folders count too, and all have a block at least, for the kernel's own record of them.  With `uid` those of that
    user, and what its processes hold open of the same file systems without a name.  Follows no link; what vanishes
    meanwhile is passed over.  What lies in more than 256 folders, or is among more than a million open files, cannot be
    counted, and is taken for more than any disk has.  Raises OSError.
    """
    look = _Look(uid, is_over)
    total = 0
    for folder in folders:
        try:
            opened = os.open(folder, _FOLDER)
        except FileNotFoundError:
            continue
        look.devices.add(os.fstat(opened).st_dev)
        of_others = spared.prefix if spared is not None and spared.folder == folder else None
        total += look.used_in(opened, _MOST_DEEP, of_others)
    if spared is not None:
        total += max(0, look.spared_bytes - spared.most_bytes)
    return total + (0 if uid is None else look.held_open(uid))


class _Look:
    """One look at the files of a job."""

    def __init__(self, uid: int | None, is_over: Callable[[], bool]) -> None:
        self._uid, self._is_over = uid, is_over
        #: Files that were counted and may be met again.
        self._seen: set[tuple[int, int]] = set()
        #: File systems of the folders.
        self.devices: set[int] = set()
        #: What files take that others have asked for.
        self.spared_bytes = 0

    def used_in(self, folder: int, depth: int, of_others: str | None = None) -> int:
        """What an open folder takes with all below, and close it; without its files whose names begin so."""
        try:
            if depth == 0:
                return _UNCOUNTABLE
            total = self._counted(os.fstat(folder))
            with os.scandir(folder) as entries:
                names = [entry.name for entry in entries]
            for name in names:
                if self._is_over():
                    break
                try:
                    status = os.stat(name, dir_fd=folder, follow_symlinks=False)
                    below = os.open(name, _FOLDER, dir_fd=folder) if stat.S_ISDIR(status.st_mode) else None
                except OSError:
                    # Gone, or another thing by now.
                    continue
                if below is not None:
                    total += self.used_in(below, depth - 1)
                elif of_others is not None and name.startswith(of_others):
                    self.spared_bytes += self._counted(status)
                else:
                    total += self._counted(status)
        finally:
            os.close(folder)
        return total

    def held_open(self, uid: int) -> int:
        """What processes of a user hold open that has no name any more."""
        total, left = 0, _MOST_OPEN
        for process in _processes_of(uid):
            for status in _open_files(process):
                left -= 1
                if left < 0:
                    return _UNCOUNTABLE
                if self._is_over():
                    return total
                if status.st_nlink == 0 and status.st_dev in self.devices:
                    total += self._counted(status, is_met_again=True)
        return total

    def _counted(self, status: os.stat_result, *, is_met_again: bool = False) -> int:
        if self._uid not in (None, status.st_uid):
            return 0
        if is_met_again or (status.st_nlink > 1 and not stat.S_ISDIR(status.st_mode)):
            if (status.st_dev, status.st_ino) in self._seen:
                return 0
            self._seen.add((status.st_dev, status.st_ino))
        return max(1, status.st_blocks) * _BLOCK


def _processes_of(uid: int) -> Iterator[str]:
    """Ids of the processes of a user.  A process can have its folder in /proc belong to root, so they say it."""
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            text = (folder / "status").read_bytes()
        except OSError:
            continue
        if str(uid).encode() in text.partition(b"\nUid:")[2].partition(b"\n")[0].split():
            yield folder.name


def _open_files(process: str) -> Iterator[os.stat_result]:
    """The status of each file that a process has open; none of one that is gone or may not be looked into."""
    folder = f"/proc/{process}/fd"
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    yield entry.stat()
    except OSError:
        return
