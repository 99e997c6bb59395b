"""Watches the files that a command makes in /dev/shm: which they are, and that they do not exceed a limit together.

A look costs a reading of /proc for each of the command's processes.  So it is taken when a file appears there, which
the kernel reports (inotify(7)), or when memory was taken or given back since the one before, and not at once again: the
watch takes a fiftieth of a core at most.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import select
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from trainers.supervisor.memory_files import (
    MOST_RECORDED,
    entries,
    folders_above,
    held_by,
    is_at,
    reserve_record,
    size_of,
    write_record,
)

log = logging.getLogger(__name__)

#: Seconds after which it is asked whether memory was taken or given back, when no file event came.
_EVERY_S = 1.0
#: Seconds between the end of a look and the next one: at least _PAUSE_S, and _PAUSES times the look's own time.
_PAUSE_S, _PAUSES = 0.05, 50
_IN_MOVED_TO, _IN_CREATE = 0x80, 0x100
_LIBC = ctypes.CDLL(None, use_errno=True)


class MemoryWatch:
    """What one command makes in the folder `memory`, from when this was built.  `close` has to be called."""

    def __init__(
        self, memory: Path, own: str, record: Path, most_bytes: int, on_excess: Callable[[int], None]
    ) -> None:
        """What lies below the name `own` there is not counted; `record` gets its memory now, while there is some.

        `on_excess` is called once, from another thread, with the bytes when they are more than `most_bytes`.
        """
        self._memory, self._own, self._record = memory, own, record
        self._most_bytes, self._on_excess = most_bytes, on_excess
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._events = _watch_new_files(memory)
        try:
            reserve_record(record)
        except OSError as error:
            log.warning("no memory can be set aside for %s: %s", record, error)
        present = entries(memory)
        if present is None:
            log.warning("there are too many files in %s to know which ones a command makes", memory)
        #: What was there before; None: there are too many files.
        self._before = None if present is None else frozenset(present)
        #: Names of what is the command's, by inode.
        self._names: dict[int, str] = {}
        #: What of that the record holds.
        self._recorded: dict[int, str] = {}
        self._free: tuple[int, int] | None = None
        self._is_over = self._is_reported = False
        self._thread: threading.Thread | None = None

    def start(self, processes: Callable[[], Iterable[int]]) -> None:
        """Begin to watch the processes of the command, whose ids it asks for in each look."""
        self._thread = threading.Thread(target=self._watch, args=(processes,), name="memory", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Watch no more, and put down what full memory refused before; may be called twice."""
        if self._wake < 0:
            return
        self._is_over = True
        os.eventfd_write(self._wake, 1)
        if self._thread is not None:
            self._thread.join()
        for descriptor in (self._wake, self._events):
            if descriptor is not None:
                os.close(descriptor)
        self._wake = -1
        try:
            self._put_down()
        except OSError:
            log.exception("what the command made in %s could not be written down", self._memory)

    def _watch(self, processes: Callable[[], Iterable[int]]) -> None:
        while not self._is_over and self._before is not None:
            began_at = time.monotonic()
            try:
                if self._has_news():
                    self._look(processes())
            except Exception:
                # Memory that is full, a process that went in the middle.  The next look comes also where nothing
                # happens from now on.
                self._free = None
                log.exception("looking into %s failed", self._memory)
            took_s = time.monotonic() - began_at
            if self._waits(max(_PAUSE_S, _PAUSES * took_s), for_files=False):
                return
            self._waits(_EVERY_S, for_files=True)

    def _waits(self, timeout_s: float, *, for_files: bool) -> bool:
        """Wait, no longer than until it is over or a file appears; True when it is over."""
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        if for_files and self._events is not None:
            poll.register(self._events, select.POLLIN)
        poll.poll(timeout_s * 1000)
        return self._is_over

    def _has_news(self) -> bool:
        """True when something has happened there since this was asked before."""
        has_new_files = False
        if self._events is not None:
            with contextlib.suppress(BlockingIOError):
                while os.read(self._events, 1 << 16):
                    has_new_files = True
        system = os.statvfs(self._memory)
        before, self._free = self._free, (system.f_bfree, system.f_ffree)
        return has_new_files or before != self._free

    def _look(self, pids: Iterable[int]) -> None:
        assert self._before is not None
        held = {
            inode: one
            for inode, one in held_by(pids, self._memory, for_writing=True).items()
            if inode not in self._before and one.name.partition("/")[0] != self._own
        }
        known = dict(self._names)
        for inode, one in held.items():
            if one.name and (inode in known or len(known) < MOST_RECORDED):
                known[inode] = one.name
        for name in folders_above(known[inode] for inode in held if inode in known):
            with contextlib.suppress(FileNotFoundError):
                inode = (self._memory / name).lstat().st_ino
                if inode not in self._before:
                    known[inode] = name
        if not all(is_at(inode, name, self._memory) for inode, name in known.items()):
            # Some are gone, or have another name.
            present = entries(self._memory)
            if present is not None:
                known = {inode: present[inode] for inode in known if inode in present}
        self._names = known
        closed = (name for inode, name in known.items() if inode not in held)
        size = sum(one.size_bytes for one in held.values()) + size_of(closed, self._memory)
        if size > self._most_bytes and not self._is_reported:
            self._is_reported = True
            self._on_excess(size)
        # Last: this is what full memory may refuse.
        self._put_down()

    def _put_down(self) -> None:
        """Bring the record up to date.  Raises OSError."""
        if self._names != self._recorded:
            write_record(self._record, self._names)
            self._recorded = self._names


def _watch_new_files(folder: Path) -> int | None:
    """A descriptor that can be read when a file appears in a folder; None where the kernel gives no more of them."""
    descriptor: int = _LIBC.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
    if descriptor < 0:
        return None
    if _LIBC.inotify_add_watch(descriptor, os.fsencode(folder), _IN_CREATE | _IN_MOVED_TO) < 0:
        os.close(descriptor)
        return None
    return descriptor
