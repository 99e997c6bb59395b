"""One embedded service per home: an exclusive lock that the kernel frees when its owner dies."""

from __future__ import annotations

import fcntl
import os
import signal
from pathlib import Path
from types import TracebackType

import psutil

from cluster import processes

#: Seconds that a service may take to end all its nodes.
_END_TIMEOUT_S = 150.0


class HomeTaken(Exception):
    """Another service owns the home; the message says which and what to do."""


class HomeLock:
    """`with HomeLock(home):` owns the home or raises HomeTaken."""

    def __init__(self, home: Path) -> None:
        self._path = home / "up.lock"
        self._descriptor: int | None = None

    def __enter__(self) -> HomeLock:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise HomeTaken(
                f"a service runs in {self._path.parent} already (process {self._owner()}); use it, end it with "
                f"`remora down`, or choose another --home"
            ) from None
        os.truncate(descriptor, 0)
        os.write(descriptor, str(os.getpid()).encode())
        self._descriptor = descriptor
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._descriptor is not None:
            os.truncate(self._descriptor, 0)
            os.close(self._descriptor)
            self._descriptor = None

    @property
    def is_held(self) -> bool:
        """False when the home was taken away from under its owner: removed, or replaced by another folder."""
        if self._descriptor is None:
            return False
        try:
            there = self._path.stat()
        except OSError:
            return False
        mine = os.fstat(self._descriptor)
        return (there.st_dev, there.st_ino) == (mine.st_dev, mine.st_ino)

    def end_owner(self) -> bool:
        """Ask the service that owns the home to end and wait for it; False when there is none.

        Raises HomeTaken when it does not end in time.
        """
        owner = self._owner()
        if owner is None or not self._is_taken():
            return False
        try:
            process = psutil.Process(owner)
            process.send_signal(signal.SIGTERM)
        except psutil.NoSuchProcess:
            return False
        if processes.wait_ended([process], _END_TIMEOUT_S):
            raise HomeTaken(
                f"the service in {self._path.parent} (process {owner}) does not end; kill it first"
            )
        return True

    def _is_taken(self) -> bool:
        with self._path.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False

    def _owner(self) -> int | None:
        try:
            return int(self._path.read_text() or "0") or None
        except (FileNotFoundError, ValueError):
            return None
