"""Where a value stands on this machine: files of folders, command lines, environments and the memory of processes."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import psutil

#: Bytes that are read at once.
_CHUNK = 1 << 22


def files_with(values: list[bytes], *roots: Path) -> list[Path]:
    """Files below the roots whose contents or names have one of the values."""
    found = []
    for root in roots:
        for folder, _, names in os.walk(root):
            for name in names:
                path = Path(folder) / name
                with contextlib.suppress(OSError):
                    if path.is_symlink() or not path.is_file():
                        continue
                    if any(value in os.fsencode(path) for value in values) or _file_has(path, values):
                        found.append(path)
    return found


def _file_has(path: Path, values: list[bytes]) -> bool:
    longest = max(len(value) for value in values)
    before = b""
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            window = before + chunk
            if any(value in window for value in values):
                return True
            before = window[-longest:]
    return False


def processes_showing(value: bytes, what: str) -> list[psutil.Process]:
    """Processes with the value in their `cmdline` or `environ`."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(OSError):
            if value in Path(f"/proc/{process.pid}/{what}").read_bytes():
                found.append(process)
    return found


def memory_has(pid: int, values: list[bytes]) -> bool:
    """True when the memory that a process has for itself, or its shared memory in files without a name, has one.

    Raises PermissionError where the kernel does not let this process look.
    """
    chunks = itertools.chain(_own_memory(pid), _unnamed_files(pid))
    return any(value in chunk for chunk in chunks for value in values)


def _own_memory(pid: int) -> Iterator[bytes]:
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        for line in lines:
            where, permissions, _, device, *_ = line.split(maxsplit=5)
            if not permissions.startswith("rw") or device != "00:00":
                continue
            first, end = (int(one, 16) for one in where.split("-"))
            while first < end:
                with contextlib.suppress(OSError):
                    memory.seek(first)
                    yield memory.read(min(_CHUNK, end - first))
                # A value that two chunks share is found in the second one.
                first += _CHUNK - 4096 if end - first > _CHUNK else end - first


def _unnamed_files(pid: int) -> Iterator[bytes]:
    """Ray's object store: memory in a file that was removed, of which the parts are read that were written to."""
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            if "/dev/shm/" not in str(path.readlink()):
                continue
            with path.open("rb", buffering=0) as file:
                at, end = 0, os.fstat(file.fileno()).st_size
                while at < end:
                    at = os.lseek(file.fileno(), at, os.SEEK_DATA)
                    hole = os.lseek(file.fileno(), at, os.SEEK_HOLE)
                    while at < hole:
                        yield os.pread(file.fileno(), min(_CHUNK, hole - at), at)
                        at += _CHUNK - 4096 if hole - at > _CHUNK else hole - at
