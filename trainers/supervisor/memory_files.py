"""Files that a command makes in the memory of its machine (/dev/shm): which they are, their sizes and users.

Linux does not record which process made a file.  So those are a command's that were not there before it began and
that one of its processes was seen to have open or mapped for writing.  They are known by their inodes, whatever name
they get, and written into a record beside the worker's own folder in that memory, which vanishes with them when the
machine restarts.

Source: proc(5).
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from trainers.confined_folders import ConfinedFolder

#: Files and folders of a memory that are looked at.
MOST_SEEN = 100_000
#: Files and folders that a record holds, and bytes of it that are read.
MOST_RECORDED, _RECORD_BYTES = 10_000, 16 << 20
#: Bytes that a record and its draft take from the beginning: enough for about a thousand names.
_RESERVED_BYTES = 64 << 10
#: How the kernel marks the name of a mapped file that has none any more.
_GONE = b" (deleted)"


@dataclass(frozen=True)
class HeldFile:
    """A file that a process has open or mapped."""

    #: Its name below the memory's folder; empty when it has none any more.
    name: str
    #: Memory that it takes.
    size_bytes: int


def entries(memory: Path) -> dict[int, str] | None:
    """Names of all files and folders there by their inodes; None when they are too many to look at.

    No link is followed, and what vanishes meanwhile is passed over.
    """
    found: dict[int, str] = {}
    waiting = [""]
    while waiting:
        above = waiting.pop()
        with contextlib.suppress(OSError), os.scandir(memory / above) as listed:
            for entry in listed:
                name = f"{above}{entry.name}"
                found[entry.inode()] = name
                if len(found) > MOST_SEEN:
                    return None
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(f"{name}/")
    return found


def held_by(pids: Iterable[int], memory: Path, *, for_writing: bool) -> dict[int, HeldFile]:
    """Files there that these processes have open or mapped, by their inodes; of those that may not be read, nothing."""
    found: dict[int, HeldFile] = {}
    for pid in pids:
        for inode, held in (*_opened(pid, memory, for_writing), *_mapped(pid, memory, for_writing)):
            before = found.get(inode)
            if before is None or held.size_bytes > before.size_bytes or (held.name and not before.name):
                found[inode] = held
    return found


def _opened(pid: int, memory: Path, for_writing: bool) -> Iterator[tuple[int, HeldFile]]:
    prefix = f"{memory}/"
    opened: list[Path] = []
    with contextlib.suppress(OSError):
        opened = list(Path(f"/proc/{pid}/fd").iterdir())
    for path in opened:
        with contextlib.suppress(OSError):
            link = str(path.readlink())
            if not link.startswith(prefix) or (for_writing and not _is_writable(path)):
                continue
            # The file itself, whatever its name is now.
            status = path.stat()
            if stat.S_ISREG(status.st_mode):
                name = link.removeprefix(prefix) if status.st_nlink else ""
                yield status.st_ino, HeldFile(name, status.st_blocks * 512)


def _is_writable(opened: Path) -> bool:
    with (opened.parents[1] / "fdinfo" / opened.name).open() as file:
        flags = next((line.split()[1] for line in file if line.startswith("flags:")), "0")
    return int(flags, 8) & os.O_ACCMODE != os.O_RDONLY


def _mapped(pid: int, memory: Path, for_writing: bool) -> Iterator[tuple[int, HeldFile]]:
    prefix = os.fsencode(f"{memory}/")
    lines: list[bytes] = []
    with contextlib.suppress(OSError), Path(f"/proc/{pid}/maps").open("rb") as file:
        lines = [line for line in file if prefix in line]
    nameless: dict[int, int] = {}
    for line in lines:
        where, permissions, offset, _, number, path = line.rstrip(b"\n").split(maxsplit=5)
        if not path.startswith(prefix) or (for_writing and permissions[1:2] + permissions[3:4] != b"ws"):
            continue
        inode, name = int(number), os.fsdecode(path.removeprefix(prefix))
        status = _status(memory / name)
        if status is not None and status.st_ino == inode:
            yield inode, HeldFile(name, status.st_blocks * 512)
        elif path.endswith(_GONE):
            begin, end = (int(one, 16) for one in where.split(b"-"))
            nameless[inode] = max(nameless.get(inode, 0), int(offset, 16) + end - begin)
    if nameless:
        # A mapping says how large a file is, not how much of it was ever written to: no more than this process holds.
        most = _shared_bytes(pid)
        for inode, size in nameless.items():
            yield inode, HeldFile("", min(size, most))
            most -= min(size, most)


def _shared_bytes(pid: int) -> int:
    """Shared memory that a process has touched, in bytes."""
    with contextlib.suppress(OSError), Path(f"/proc/{pid}/status").open() as file:
        for line in file:
            if line.startswith("RssShmem:"):
                return int(line.split()[1]) * 1024
    return 0


def size_of(names: Iterable[str], memory: Path) -> int:
    """Bytes of memory that these files take; of those that are gone, none."""
    statuses = (_status(memory / name) for name in names)
    return sum(one.st_blocks * 512 for one in statuses if one is not None and stat.S_ISREG(one.st_mode))


def is_at(inode: int, name: str, memory: Path) -> bool:
    """True when a file or folder has that name there."""
    status = _status(memory / name)
    return status is not None and status.st_ino == inode


def _status(path: Path) -> os.stat_result | None:
    try:
        return path.lstat()
    except (OSError, ValueError):
        return None


def reserve_record(record: Path) -> None:
    """Make an empty record, and take the memory that it and its draft need while there is some.  Raises OSError."""
    for _ in range(2):
        write_record(record, {})


def write_record(record: Path, names: Mapping[int, str]) -> None:
    """Write which files are a command's, atomically.  Raises OSError.

    The record and its draft change places, so that both keep the memory that they have: it may be full.
    """
    draft, old = (record.with_name(f"{record.name}.{end}") for end in ("new", "old"))
    content = json.dumps(list(names.items())[:MOST_RECORDED]).encode()
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    with os.fdopen(os.open(draft, flags, 0o600), "wb") as file:
        # Spaces behind it mean nothing there.
        file.write(content.ljust(max(_RESERVED_BYTES, os.fstat(file.fileno()).st_size)))
    old.unlink(missing_ok=True)
    with contextlib.suppress(FileNotFoundError):
        os.link(record, old, follow_symlinks=False)
    draft.replace(record)
    with contextlib.suppress(FileNotFoundError):
        old.replace(draft)


def read_record(record: Path) -> dict[int, str]:
    """The names in a record by inode; empty when it cannot be parsed."""
    try:
        descriptor = os.open(record, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            listed = json.loads(file.read(_RECORD_BYTES))
        return {int(inode): str(name) for inode, name in listed}
    except (OSError, ValueError, TypeError, RecursionError):
        return {}


def remove_recorded(record: Path, memory: Path) -> bool:
    """Remove what a record names and no process uses; False while some are used: the record names those alone then.

    A file that another one has replaced under its name stays, and so does what is not this user's.
    Raises OSError.
    """
    recorded = read_record(record)
    if not recorded:
        return True
    now = entries(memory)
    # One that was given another name is found by its inode.
    names = recorded if now is None else {one: now[one] for one in recorded if one in now}
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()] if names else []
    used = held_by(pids, memory, for_writing=False).keys() & names.keys()
    with ConfinedFolder(memory) as opened:
        for inode, name in sorted(names.items(), key=lambda one: one[1].count("/"), reverse=True):
            if inode not in used:
                _remove(opened, inode, name)
    left = {inode: name for inode, name in names.items() if inode in used}
    if left:
        write_record(record, left)
    return not left


def _remove(opened: ConfinedFolder, inode: int, name: str) -> None:
    with contextlib.suppress(OSError):
        status = opened.status(name)
        if status is None or status.st_ino != inode or status.st_uid != os.getuid():
            return
        if stat.S_ISREG(status.st_mode):
            opened.remove(name)
        elif stat.S_ISDIR(status.st_mode):
            opened.remove_empty(name)


def folders_above(names: Iterable[str]) -> set[str]:
    """Names of the folders in which files of these names lie."""
    return {str(above) for name in names for above in list(PurePosixPath(name).parents)[:-1]}
