"""Files that outlive nodes: one small interface over any fsspec filesystem, a local directory by default.

A name is a relative POSIX path below the storage's root.  `write` is atomic as seen by `read`, `exists` and `names`:
on local disks by rename after fsync, on object stores because an upload becomes visible when it is complete.
"""

from __future__ import annotations

import contextlib
import os
import posixpath
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, cast

import fsspec.core

from trainers.rooms import NotInRoom, parts_of


class StorageError(Exception):
    """The storage could not do it; the message says what to look at."""


class Storage:
    """A folder in some filesystem.

    Raises StorageError from every method when the filesystem fails, and FileNotFoundError for a missing name.
    """

    def __init__(self, url: str | Path) -> None:
        """Open `url`: a path, `file://...`, or any URL that fsspec knows (`abfs://container/path`)."""
        self.url = str(url)
        try:
            self._fs, root = fsspec.core.url_to_fs(self.url)
        except (ValueError, ImportError) as error:
            raise StorageError(f"cannot open the storage {self.url!r}: {error}") from error
        self._root = str(root).rstrip("/")
        protocol = self._fs.protocol
        names = (protocol,) if isinstance(protocol, str) else tuple(protocol)
        #: The folder when the storage is on a local disk, else None.
        self.local_root: Path | None = Path(self._root) if "file" in names else None

    def path(self, name: str) -> str:
        """Full path of a name in the filesystem, without a protocol."""
        try:
            parts_of(name)
        except NotInRoom:
            raise StorageError(f"{name[:200]!r} is not a relative name inside the storage") from None
        return f"{self._root}/{name}"

    def location(self, name: str) -> str:
        """How a person finds the name: a path on a local disk, else a URL."""
        path = self.path(name)
        return path if self.local_root is not None else str(self._fs.unstrip_protocol(path))

    def exists(self, name: str) -> bool:
        """True when a file or folder of that name is there."""
        with self._errors(name):
            return bool(self._fs.exists(self.path(name)))

    def size(self, name: str) -> int:
        """Size of a file in bytes."""
        with self._errors(name):
            self._fs.invalidate_cache()
            return int(self._fs.size(self.path(name)) or 0)

    def state(self, name: str) -> str:
        """Changes when somebody writes to a file, as far as the filesystem tells: its time, number or tag."""
        with self._errors(name):
            self._fs.invalidate_cache()
            return str(self._fs.ukey(self.path(name)))

    def read_bytes(self, name: str) -> bytes:
        """Whole content of a small file."""
        with self._errors(name):
            return cast("bytes", self._fs.cat_file(self.path(name)))

    def open_read(self, name: str) -> IO[bytes]:
        """A binary stream of a file."""
        with self._errors(name):
            return cast("IO[bytes]", self._fs.open(self.path(name), "rb"))

    def write_bytes(self, name: str, content: bytes) -> None:
        """Write a small file at once."""
        with self._errors(name):
            path = self.path(name)
            self._fs.makedirs(posixpath.dirname(path), exist_ok=True)
            if self.local_root is None:
                self._fs.pipe_file(path, content)
                return
            with _beside(path) as temporary, temporary.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            _sync_folder(Path(path).parent)

    def create_bytes(self, name: str, content: bytes) -> bool:
        """Write a small file unless there is one of that name; False when there is, which stays as it is.

        Of any number of writers one is first: local disks decide by a link, object stores by a conditional request.
        """
        with self._errors(name):
            path = self.path(name)
            self._fs.makedirs(posixpath.dirname(path), exist_ok=True)
            try:
                if self.local_root is None:
                    # Unlike `pipe_file`, every implementation that cannot do it refuses the mode.
                    with self._fs.open(path, "xb") as file:
                        file.write(content)
                    return True
                # A link, unlike O_EXCL, shows the whole content at once.
                _link_new(Path(path), content)
            except FileExistsError:
                return False
            _sync_folder(Path(path).parent)
            return True

    def write_file(self, name: str, source: Path, *, move: bool = False) -> None:
        """Put a local file there; with `move` the source may be consumed instead of copied."""
        with self._errors(name):
            path = self.path(name)
            self._fs.makedirs(posixpath.dirname(path), exist_ok=True)
            if self.local_root is None:
                self._fs.put_file(str(source), path)
                if move:
                    source.unlink()
                return
            if move and source.stat().st_dev == Path(path).parent.stat().st_dev:
                _sync_file(source)
                source.replace(path)
            else:
                with _beside(path) as temporary:
                    shutil.copyfile(source, temporary)
                    _sync_file(temporary)
                if move:
                    source.unlink()
            _sync_folder(Path(path).parent)

    def write_open(self, name: str, source: IO[bytes], *, share: bool = False) -> None:
        """Put what an open local file holds there, whatever has its name by now; it has to be a real file of this disk.

        With `share` a storage on the same disk may keep the file itself instead of a copy: the caller writes no more to
        it.
        """
        # Every library that wants a path finds the very file that is open behind this one (proc(5)).
        opened = Path(f"/proc/self/fd/{source.fileno()}")
        with self._errors(name):
            path = self.path(name)
            self._fs.makedirs(posixpath.dirname(path), exist_ok=True)
            if self.local_root is None:
                self._fs.put_file(str(opened), path)
                return
            with _beside(path) as temporary:
                if not (share and _is_linked(source.fileno(), temporary)):
                    shutil.copyfile(opened, temporary)
                _sync_file(temporary)
            _sync_folder(Path(path).parent)

    def read_file(self, name: str, target: Path) -> None:
        """Copy a file to the local disk."""
        with self._errors(name):
            target.parent.mkdir(parents=True, exist_ok=True)
            self._fs.get_file(self.path(name), str(target))

    def names(self, folder: str) -> list[str]:
        """Names directly below a folder, sorted; empty when there is no such folder."""
        with self._errors(folder):
            self._fs.invalidate_cache()
            try:
                entries: list[Any] = self._fs.ls(self.path(folder), detail=False)
            except FileNotFoundError:
                return []
            return sorted(str(entry).rstrip("/").rsplit("/", 1)[-1] for entry in entries)

    def delete(self, name: str) -> None:
        """Remove a file or a whole folder; fine when it is gone already."""
        with self._errors(name), contextlib.suppress(FileNotFoundError):
            self._fs.rm(self.path(name), recursive=True)

    @contextlib.contextmanager
    def _errors(self, name: str) -> Iterator[None]:
        try:
            yield
        except (FileNotFoundError, StorageError):
            raise
        except Exception as error:  # every fsspec filesystem has errors of its own kind
            raise StorageError(f"the storage {self.url!r} failed at {name!r}: {error}") from error


@contextlib.contextmanager
def _beside(path: str) -> Iterator[Path]:
    """A name for a file that takes the place of `path` when it is written, and is gone when it could not be."""
    temporary = Path(f"{path}.{uuid.uuid4().hex}.tmp")
    try:
        yield temporary
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _is_linked(descriptor: int, path: Path) -> bool:
    """Whether `path` is now one more name of an open file; not on another disk, nor where disks know no such names."""
    try:
        # Python follows this link only when it is given some descriptor, for which an absolute path has no use.
        os.link(f"/proc/self/fd/{descriptor}", path, src_dir_fd=descriptor, follow_symlinks=True)
    except OSError:
        return False
    return True


def _link_new(path: Path, content: bytes) -> None:
    """Make a file with this content.  Raises FileExistsError when there is one of that name."""
    temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.link(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _sync_file(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
