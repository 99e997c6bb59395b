"""Disks that are full for real: small file systems in memory, which take a right that only root has."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.needed import is_missing


@contextmanager
def small_disk(folder: Path, size_bytes: int) -> Iterator[Path]:
    """A file system of that size at a new folder, gone afterwards."""
    folder.mkdir()
    mounted = ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "none", str(folder)]
    if subprocess.run(mounted, capture_output=True, check=False).returncode:
        is_missing("a small disk takes the right to mount one: run as root")
    try:
        yield folder
    finally:
        # What is still open on it goes with its last user.
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(disk: Path) -> Path:
    """Take all the capacity that is left; the file that has it."""
    ballast = disk / "ballast"
    free = os.statvfs(disk)
    with ballast.open("ab") as file:
        os.posix_fallocate(file.fileno(), 0, max(1, free.f_bavail * free.f_frsize))
    return ballast


def fill_but(disk: Path, free_bytes: int) -> Path:
    """The same, but for that number of bytes."""
    ballast = fill(disk)
    os.truncate(ballast, max(0, ballast.stat().st_size - free_bytes))
    return ballast
