"""Keeps workers from running far ahead of the test that wants to strike them, however busy the machine is."""

from __future__ import annotations

import mmap
import struct
import time
from pathlib import Path

_OPEN = 2**62


class Gate:
    """A number that the test sets and its workers read: no step beyond it is begun."""

    def __init__(self, folder: Path) -> None:
        """The gate of that folder, which is open at first."""
        path = folder / "gate"
        if not path.exists():
            path.write_bytes(struct.pack("q", _OPEN))
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 8)

    @property
    def limit(self) -> int:
        """The last step that may be begun."""
        number: int = struct.unpack("q", self._memory[:])[0]
        return number

    @limit.setter
    def limit(self, step: int) -> None:
        self._memory[:] = struct.pack("q", step)

    def open(self) -> None:
        """Let everybody run."""
        self.limit = _OPEN

    def stand(self, step: int) -> None:
        """Called by a worker that has done a step, until it may begin the next one."""
        while step >= self.limit:
            time.sleep(0.001)  # a worker that has nothing to do, not a test that waits
