"""A storage that takes that number of bytes a second, until a test lets go of it."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem


class SlowFileSystem(LocalFileSystem):  # type: ignore[misc]
    """A local folder behind a thin wire: `slow:///folder`; reading costs nothing."""

    protocol = "slow"
    bytes_per_s = float("inf")
    #: Set: the wire is as fast as the disk, also for what is under way.
    is_wide = threading.Event()

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        return super()._strip_protocol(str(path).removeprefix("slow://"))

    def unstrip_protocol(self, name: str) -> str:
        return f"slow://{self._strip_protocol(name)}"

    def put_file(self, lpath: str, rpath: str, *arguments: Any, **named: Any) -> None:
        self.is_wide.wait(Path(lpath).stat().st_size / self.bytes_per_s)
        super().put_file(lpath, rpath, *arguments, **named)


def narrow(bytes_per_s: float) -> None:
    """From now on files of `slow://` take their time."""
    fsspec.register_implementation("slow", SlowFileSystem, clobber=True)
    SlowFileSystem.bytes_per_s = bytes_per_s
    SlowFileSystem.is_wide.clear()


def widen() -> None:
    """They take no time any more."""
    SlowFileSystem.is_wide.set()
