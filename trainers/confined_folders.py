"""Folders in which scripts write, held open: no name in them is reached by following a link.

A script may give a file any name, and may put a link into the place of a file or folder at any moment.  So a name is
checked first, every part of it is then opened from the descriptor of the folder above it and never through a link, and
what was opened is what is read: nothing is looked up twice (openat(2) with O_NOFOLLOW).
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import uuid
from collections.abc import Iterator
from io import BufferedRandom, BufferedReader
from pathlib import Path
from types import TracebackType
from typing import Self

#: Folders that may lie in each other; each costs an open descriptor while a tree is walked.
MAX_DEPTH = 64
#: Bytes of a file's or folder's own name; Linux knows no longer ones.
MAX_PART_BYTES = 255
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
#: O_NONBLOCK: opening a named pipe does not wait for its writer.
_FILE = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
#: Error numbers for a link where none may be, and for a file where a folder has to be.
_LINKS = (errno.ELOOP, errno.ENOTDIR)


class OutsideFolder(OSError):
    """A name leads out of the folder or through a link, or is not what it has to be; the message is one sentence."""


def parts_of(name: str) -> tuple[str, ...]:
    """The parts of a relative POSIX name.  Raises OutsideFolder for one that could mean another place, or none."""
    parts = tuple(name.split("/"))
    if "\0" in name or not {"", ".", ".."}.isdisjoint(parts):
        raise OutsideFolder(f"{name[:200]!a} is no name inside a folder")
    return parts


class ConfinedFolder:
    """One open folder.  Names are relative POSIX paths below it; methods raise OutsideFolder and other OSErrors."""

    def __init__(self, path: Path, descriptor: int | None = None) -> None:
        """Open the folder `path`, which must not be a link itself, or take over its open descriptor."""
        self.path = path
        self._descriptor = _opened(str(path), _FOLDER) if descriptor is None else descriptor

    def close(self) -> None:
        """Close the descriptor; the folder itself stays."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def subfolder(self, name: str) -> ConfinedFolder:
        """A folder below this one, opened."""
        with self._above(name) as (folder, last):
            return ConfinedFolder(self.path / name, _opened(last, _FOLDER, folder, name))

    def files(self) -> Iterator[tuple[str, os.stat_result]]:
        """Names of all files, with their status; links and what is no regular file are left out.

        In the order of their names; what vanishes meanwhile is passed over.
        """
        return ((name, status) for name, status in self.entries() if stat.S_ISREG(status.st_mode))

    def entries(self) -> Iterator[tuple[str, os.stat_result]]:
        """As `files`, of all that lies below: also folders, each before what is in it, and what is no regular file."""
        return _entries(self._descriptor, "", MAX_DEPTH)

    def open_file(self, name: str) -> BufferedReader:
        """A file below this folder, to read."""
        with self._above(name) as (folder, last):
            return os.fdopen(_as_file(_opened(last, _FILE | os.O_RDONLY, folder, name), name), "rb")

    def open_to_write(self, name: str, *, is_new: bool = False) -> BufferedRandom:
        """A file below this folder, to read and write; it and the folders above it are made.  `is_new`: it must be."""
        with self._above(name, make=True) as (folder, last):
            flags = _FILE | os.O_RDWR | os.O_CREAT | (os.O_EXCL if is_new else 0)
            return os.fdopen(_as_file(_opened(last, flags, folder, name), name), "r+b")

    def make_folder(self, name: str) -> None:
        """A folder below this one, made with all above it unless it is there."""
        with self._above(f"{name}/-", make=True):
            pass

    def copy_in(self, source: Path, name: str) -> None:
        """Copy a file of this user to a name below this folder, whole or not at all, where nothing has that name."""
        draft = f"{name}.{uuid.uuid4().hex[:16]}.tmp"
        with source.open("rb") as content, self.open_to_write(draft, is_new=True) as target:
            shutil.copyfileobj(content, target)
        with self._above(name) as (folder, last), self._above(draft) as (above, first):
            try:
                os.link(first, last, src_dir_fd=above, dst_dir_fd=folder, follow_symlinks=False)
            finally:
                os.unlink(first, dir_fd=above)

    def make_link(self, name: str, target: Path) -> None:
        """A link to `target` below this folder, where nothing has the name; the folders above it are made."""
        with self._above(name, make=True) as (folder, last):
            os.symlink(target, last, dir_fd=folder)

    def status(self, name: str) -> os.stat_result | None:
        """The status of a name, which may be a link; None when there is nothing."""
        try:
            with self._above(name) as (folder, last):
                return os.stat(last, dir_fd=folder, follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def move(self, name: str, target: ConfinedFolder, new_name: str) -> ConfinedFolder:
        """Move a folder below this one into `target`, on the same file system, where nothing has the new name.

        Returns it, opened.
        """
        with self._above(name) as (folder, last), target._above(new_name) as (above, new_last):
            found = os.stat(last, dir_fd=folder, follow_symlinks=False)
            if not stat.S_ISDIR(found.st_mode):
                raise OutsideFolder(f"{name[:200]!a} is no folder")
            os.rename(last, new_last, src_dir_fd=folder, dst_dir_fd=above)
        try:
            return target.subfolder(new_name)
        except OutsideFolder:
            # A link took its place in that very moment: it lies in the other folder now, and goes.
            target.remove(new_name)
            raise

    def remove(self, name: str) -> None:
        """Remove a file, a link or a whole folder below this one; fine when it is gone already.

        Needs as few descriptors for folders that lie in each other a thousandfold as for one.
        """
        with contextlib.suppress(FileNotFoundError), self._above(name) as (folder, last):
            _remove(folder, last)

    def remove_empty(self, name: str) -> None:
        """Remove an empty folder below this one; fine when it is gone already."""
        with contextlib.suppress(FileNotFoundError), self._above(name) as (folder, last):
            os.rmdir(last, dir_fd=folder)

    @contextlib.contextmanager
    def _above(self, name: str, *, make: bool = False) -> Iterator[tuple[int, str]]:
        """Descriptor of the folder in which a name lies, and the last part of the name."""
        *parts, last = parts_of(name)
        if len(parts) >= MAX_DEPTH or any(len(os.fsencode(part)) > MAX_PART_BYTES for part in (*parts, last)):
            raise OutsideFolder(f"{name[:200]!a} is too long, or lies in more than {MAX_DEPTH} folders")
        descriptor = os.dup(self._descriptor)
        try:
            for part in parts:
                if make:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(part, dir_fd=descriptor)
                below = _opened(part, _FOLDER, descriptor, name)
                os.close(descriptor)
                descriptor = below
            yield descriptor, last
        finally:
            os.close(descriptor)


def remove_tree(path: Path) -> None:
    """Remove a whole folder that this process made, or what has taken its place; fine when it is gone already."""
    with contextlib.suppress(FileNotFoundError), ConfinedFolder(path.parent.resolve()) as above:
        above.remove(path.name)


def _opened(part: str, flags: int, folder: int | None = None, name: str | None = None) -> int:
    try:
        return os.open(part, flags, 0o666, dir_fd=folder)
    except OSError as error:
        if error.errno in _LINKS:
            raise OutsideFolder(f"{(name or part)[:200]!a} leads through a link or a file") from None
        if error.errno == errno.ENXIO:
            raise OutsideFolder(f"{(name or part)[:200]!a} is no file") from None
        raise


def _as_file(descriptor: int, name: str) -> int:
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OutsideFolder(f"{name[:200]!a} is no file")
    return descriptor


def _entries(folder: int, prefix: str, depth: int) -> Iterator[tuple[str, os.stat_result]]:
    with os.scandir(folder) as found:
        names = sorted(entry.name for entry in found)
    for last in names:
        name = prefix + last
        try:
            status = os.stat(last, dir_fd=folder, follow_symlinks=False)
            yield name, status
            if not stat.S_ISDIR(status.st_mode):
                continue
            below = _opened(last, _FOLDER, folder, name)
        except FileNotFoundError:
            continue
        try:
            if depth <= 1:
                raise OutsideFolder(f"{name[:200]!a} lies in more than {MAX_DEPTH} folders")
            yield from _entries(below, f"{name}/", depth - 1)
        finally:
            os.close(below)


def _remove(folder: int, last: str) -> None:
    """Remove one name; folders that lie in each other are moved up below it first, so that none is deep."""
    try:
        os.unlink(last, dir_fd=folder)
    except IsADirectoryError:
        pass
    else:
        return
    top = _opened_to_empty(folder, last)
    try:
        waiting = _unlink_files(top, top)
        while waiting:
            name = waiting.pop()
            below = _opened_to_empty(top, name)
            try:
                waiting += _unlink_files(below, top)
            finally:
                os.close(below)
            os.rmdir(name, dir_fd=top)
    finally:
        os.close(top)
    os.rmdir(last, dir_fd=folder)


def _unlink_files(folder: int, top: int) -> list[str]:
    """Unlink all files of a folder and move its folders to the top; returns the names that these have there."""
    with os.scandir(folder) as found:
        entries = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in found]
    names: list[str] = []
    for entry, is_folder in entries:
        if not is_folder:
            os.unlink(entry, dir_fd=folder)
        elif folder == top:
            names.append(entry)
        else:
            _allow(folder, entry)
            names.append(f".removed-{uuid.uuid4().hex}")
            os.rename(entry, names[-1], src_dir_fd=folder, dst_dir_fd=top)
    return names


def _opened_to_empty(folder: int, name: str) -> int:
    _allow(folder, name)
    return _opened(name, _FOLDER, folder)


def _allow(folder: int, name: str) -> None:
    """Give the owner back what a script took away from a folder, so that it can be emptied."""
    descriptor = _opened(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, folder)
    try:
        mode = stat.S_IMODE(os.fstat(descriptor).st_mode)
        if mode & 0o700 != 0o700:
            Path(f"/proc/self/fd/{descriptor}").chmod(mode | 0o700)
    finally:
        os.close(descriptor)
