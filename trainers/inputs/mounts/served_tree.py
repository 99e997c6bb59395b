"""The operations of a mounted tree, as FUSE asks for them: names from a list, contents from a storage."""

from __future__ import annotations

import errno
import logging
import stat
import time
from collections.abc import Callable
from typing import Any

import mfusepy

from trainers.input_source import InputFile
from trainers.inputs.mounts.blocks import BlockReader
from trainers.inputs.mounts.tree import Folder, found
from trainers.storage_grants import without_secrets

log = logging.getLogger(__name__)

#: Seconds between two lines about reads that failed.
_SAID_S = 10.0


class ServedTree(mfusepy.Operations):  # type: ignore[misc]
    """A tree that is only read; writing is refused by the kernel, which mounts it read-only."""

    use_ns = True

    def __init__(
        self,
        root: Folder,
        reader: BlockReader,
        is_mounted: Callable[[], None],
        say: Callable[[str], None],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`is_mounted` is called once the tree is there, `say` with lines for the logs of jobs."""
        self._root, self._reader = root, reader
        self._is_mounted, self._say, self._now = is_mounted, say, now
        self._said_at = -_SAID_S

    def init(self, path: str) -> None:
        """The kernel has it."""
        self._is_mounted()

    def getattr(self, path: str, fh: int | None = None) -> dict[str, Any]:
        """Kind and size of a file or folder."""
        one = self._find(path)
        if isinstance(one, Folder):
            return {"st_mode": stat.S_IFDIR | 0o555, "st_nlink": 2}
        return {
            "st_mode": stat.S_IFREG | 0o444,
            "st_nlink": 1,
            "st_size": one.size_bytes,
            "st_blksize": 2**17,
        }

    def readdir(self, path: str, fh: int) -> list[str]:
        """Names in a folder."""
        one = self._find(path)
        if not isinstance(one, Folder):
            raise mfusepy.FuseOSError(errno.ENOTDIR)
        return [".", "..", *one.names]

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        """Bytes of a file; EIO when the storage does not have them."""
        one = self._find(path)
        if isinstance(one, Folder):
            raise mfusepy.FuseOSError(errno.EISDIR)
        try:
            return self._reader.read(one, offset, size)
        except Exception as error:  # every storage has errors of its own kind
            self._report(one, error)
            raise mfusepy.FuseOSError(errno.EIO) from None

    def statfs(self, path: str) -> dict[str, int]:
        """It is full: nothing can be written."""
        return {
            "f_bsize": 4096,
            "f_frsize": 4096,
            "f_blocks": 0,
            "f_bfree": 0,
            "f_bavail": 0,
            "f_namemax": 255,
        }

    def _find(self, path: str) -> Folder | InputFile:
        one = found(self._root, path)
        if one is None:
            raise mfusepy.FuseOSError(errno.ENOENT)
        return one

    def _report(self, file: InputFile, error: Exception) -> None:
        now = self._now()
        if now - self._said_at < _SAID_S:
            return
        self._said_at = now
        what = "it is not in the storage any more" if isinstance(error, FileNotFoundError) else str(error)
        text = f"a read of {file.name[:200]!r} failed with EIO: {without_secrets(what)[:500]}"
        log.warning("%s", text)
        self._say(text)
