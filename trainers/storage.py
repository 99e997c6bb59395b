"""Files that outlive nodes: one small interface over any fsspec filesystem, a local directory by default.

A name is a relative POSIX path below the storage's root.  `write` is atomic as seen by `read`, `exists` and `names`:
on local disks by rename after fsync, on object stores because an upload becomes visible when it is complete.
"""

from __future__ import annotations

import contextlib
import errno
import os
import posixpath
import shutil
import stat
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, cast

import fsspec.core
from fsspec import AbstractFileSystem

from trainers.confined_folders import OutsideFolder, parts_of
from trainers.storage_grants import Action, Scope, without_secrets

#: Bytes of a file that is read as a whole, unless its reader says more.
MOST_BYTES = 32 * 2**20
#: Links are not followed, and nothing waits for the other end of a pipe.
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
#: Error numbers of what cannot be opened as a file, with their meaning.
_NO_FILES = {
    errno.ELOOP: "is a link",
    errno.ENXIO: "is no file",
    errno.EACCES: "may not be read by this user",
    errno.EPERM: "may not be read by this user",
}


#: What filesystems of fsspec report of a file's state, by their names for it.
_TAGS = ("etag", "ETag", "mtime", "last_modified", "LastModified", "ino", "created")
#: Error numbers of a full disk.
FULL = (errno.ENOSPC, errno.EDQUOT)


class StorageError(Exception):
    """The storage failed; the message says what to check."""


class StorageFull(StorageError):
    """There is no space left in the storage."""


class NotReadable(StorageError):
    """The storage works, and what has the name is no file that is read: a folder, a link, closed, or too large."""


class Storage:
    """A folder in some filesystem.

    Raises StorageError from every method when the filesystem fails, and FileNotFoundError for a missing name.
    """

    def __init__(
        self,
        url: str | Path,
        *,
        scope: Scope | None = None,
        options: Mapping[str, Any] | None = None,
        filesystem: AbstractFileSystem | None = None,
    ) -> None:
        """Open `url`: a path, `file://...`, or any URL that fsspec knows (`abfs://container/path`).

        `scope` says which names may be reached; None: all.  `options` are those of its filesystem, such as a
        credential.  A `filesystem` takes the place of the one that fsspec knows; names in it begin at the storage.
        """
        self.url = str(url)
        self._scope = scope
        try:
            self._fs, root = (
                (filesystem, "")
                if filesystem is not None
                else fsspec.core.url_to_fs(self.url, **(options or {}))
            )
        except (ValueError, ImportError) as error:
            raise StorageError(f"cannot open the storage {self.url!r}: {error}") from error
        self._root = str(root).rstrip("/")
        protocol = self._fs.protocol
        names = (protocol,) if isinstance(protocol, str) else tuple(protocol)
        #: The folder when the storage is on a local disk, else None.
        self.local_root: Path | None = Path(self._root) if "file" in names else None

    def path(self, name: str, action: Action = "read") -> str:
        """Full path of a name in the filesystem, without a protocol.  Raises StorageError for one out of its scope."""
        try:
            parts_of(name)
        except OutsideFolder:
            raise StorageError(f"{name[:200]!r} is not a relative name inside the storage") from None
        self._check_scope(name, action)
        return f"{self._root}/{name}"

    def _check_scope(self, name: str, action: Action) -> None:
        if self._scope is not None and self._scope.covering(name, action) is None:
            way = "write to" if action == "write" else "read"
            raise StorageError(f"this process may not {way} {name[:200]!r} in the storage")

    def _make_folder(self, path: str) -> None:
        """A folder of the storage; on a local disk only this user reaches what is made."""
        if self.local_root is None:
            self._fs.makedirs(path, exist_ok=True)
            return
        whole = Path(path)
        if not whole.is_dir():
            for folder in reversed([one for one in (whole, *whole.parents) if not one.exists()]):
                folder.mkdir(mode=0o700, exist_ok=True)

    def location(self, name: str) -> str:
        """How a person finds the name: a path on a local disk, else a URL."""
        path = self.path(name)
        return path if self.local_root is not None else f"{self.url.rstrip('/')}/{name}"

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
        """Changes when a file is written to, as far as the filesystem reports: its time, number or tag."""
        with self._errors(name):
            self._fs.invalidate_cache()
            return str(self._fs.ukey(self.path(name)))

    def read_bytes(self, name: str, most_bytes: int = MOST_BYTES) -> bytes:
        """Whole content of a small file.  Raises NotReadable for a larger one, and for what is no file."""
        with self._errors(name):
            if self.local_root is None:
                _check_size(name, self._file_size(name), most_bytes)
                return cast("bytes", self._fs.cat_file(self.path(name)))
            with _opened(self.path(name), name) as file:
                _check_size(name, os.fstat(file.fileno()).st_size, most_bytes)
                content = file.read(most_bytes + 1)
                _check_size(name, len(content), most_bytes)
                return content

    def read_range(self, name: str, begin: int, end: int, tag: str = "") -> bytes:
        """Bytes of a file from one position to another one, fewer where it ends before.

        With the `tag` of a list (`entries`) a storage that knows tags fails when the file is another one by now.
        """
        with self._errors(name):
            if self.local_root is None:
                known = {"etag": tag} if tag and getattr(self._fs, "checks_tags", False) else {}
                return cast("bytes", self._fs.cat_file(self.path(name), start=begin, end=end, **known))
            with _opened(self.path(name), name) as file:
                file.seek(begin)
                return file.read(end - begin)

    def open_read(self, name: str) -> IO[bytes]:
        """A binary stream of a file.  Raises NotReadable for what is no file."""
        with self._errors(name):
            if self.local_root is not None:
                return _opened(self.path(name), name)
            self._file_size(name)
            return cast("IO[bytes]", self._fs.open(self.path(name), "rb"))

    def _file_size(self, name: str) -> int:
        self._fs.invalidate_cache()
        found = self._fs.info(self.path(name))
        if found.get("type") == "directory":
            raise NotReadable(f"{name!r} is a folder")
        return int(found.get("size") or 0)

    def write_bytes(self, name: str, content: bytes) -> None:
        """Write a small file at once."""
        with self._errors(name):
            path = self.path(name, "write")
            self._make_folder(posixpath.dirname(path))
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
            path = self.path(name, "write")
            self._make_folder(posixpath.dirname(path))
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
            path = self.path(name, "write")
            self._make_folder(posixpath.dirname(path))
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
        it.  It belongs to this user then.
        """
        # Every library that wants a path finds the very file that is open behind this one (proc(5)).
        opened = Path(f"/proc/self/fd/{source.fileno()}")
        with self._errors(name):
            path = self.path(name, "write")
            self._make_folder(posixpath.dirname(path))
            if self.local_root is None:
                self._fs.put_file(str(opened), path)
                return
            with _beside(path) as temporary:
                if share and is_linked(source.fileno(), temporary):
                    take_over(source.fileno())
                else:
                    shutil.copyfile(opened, temporary)
                _sync_file(temporary)
            _sync_folder(Path(path).parent)

    def read_file(self, name: str, target: Path) -> None:
        """Copy a file to the local disk."""
        with self._errors(name):
            target.parent.mkdir(parents=True, exist_ok=True)
            self._fs.get_file(self.path(name), str(target))

    def link_file(self, name: str, target: Path) -> None:
        """Have a file on the local disk, without a copy where the storage is on the same one; it is not written to."""
        with self._errors(name):
            target.parent.mkdir(parents=True, exist_ok=True)
            if self.local_root is not None:
                with _opened(self.path(name), name) as file:
                    target.unlink(missing_ok=True)
                    if is_linked(file.fileno(), target):
                        return
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

    def sizes(self, folder: str) -> dict[str, int]:
        """Bytes of every file in a folder and below, by its name relative to the folder; empty when there is none.

        One question, however many files there are.
        """
        with self._errors(folder):
            self._fs.invalidate_cache()
            root = self.path(folder)
            try:
                found: dict[str, dict[str, Any]] = self._fs.find(root, detail=True)
            except FileNotFoundError:
                return {}
            return {path.removeprefix(f"{root}/"): int(info.get("size") or 0) for path, info in found.items()}

    def entries(self, path: str) -> dict[str, tuple[int, str]]:
        """Bytes and tag of every file in a folder and below, by its name relative to it; of a file itself by "".

        A tag changes when the file is written to, as far as the filesystem reports.  `path` "" is the whole storage.
        One question, however many files there are; empty when there is nothing.
        """
        with self._errors(path):
            self._fs.invalidate_cache()
            if not path:
                self._check_scope("", "read")
            root = self.path(path) if path else self._root
            try:
                found: dict[str, dict[str, Any]] = self._fs.find(root, detail=True)
            except FileNotFoundError:
                return {}
            return {
                "" if name == root else name.removeprefix(f"{root}/"): (
                    int(info.get("size") or 0),
                    " ".join(str(info[one]) for one in _TAGS if info.get(one) is not None),
                )
                for name, info in found.items()
            }

    def rename(self, name: str, new: str) -> None:
        """Give a file or a whole folder another name in the same folder, which nothing has."""
        with self._errors(name):
            old, path = self.path(name, "write"), self.path(new, "write")
            if self.local_root is not None:
                Path(old).rename(path)
                return
            if not self._fs.exists(old):
                raise FileNotFoundError(name)
            # One by one: filesystems differ in what a copy of a folder is.
            for found in self._fs.find(old):
                self._fs.mv(found, f"{path}{found.removeprefix(old)}")
            with contextlib.suppress(FileNotFoundError):
                # Some filesystems have folders.
                self._fs.rm(old, recursive=True)

    def delete(self, name: str) -> None:
        """Remove a file or a whole folder; fine when it is gone already."""
        with self._errors(name), contextlib.suppress(FileNotFoundError):
            self._fs.rm(self.path(name, "write"), recursive=True)

    @contextlib.contextmanager
    def _errors(self, name: str) -> Iterator[None]:
        try:
            yield
        except (FileNotFoundError, StorageError):
            raise
        except Exception as error:  # every fsspec filesystem has errors of its own kind
            if isinstance(error, OSError) and error.errno in FULL:
                raise StorageFull(f"the storage {self.url!r} is full: free space in it") from error
            said = str(error)
            safe = without_secrets(said)
            text = f"the storage {self.url!r} failed at {name!r}: {safe}"
            # A traceback would show what the text leaves out.
            raise StorageError(text) from (error if safe == said else None)


def _check_size(name: str, size_bytes: int, most_bytes: int) -> None:
    if size_bytes > most_bytes:
        raise NotReadable(f"{name!r} has {size_bytes} bytes, more than {most_bytes}")


def _opened(path: str, name: str) -> IO[bytes]:
    """A real file of a local disk, open for reading."""
    try:
        descriptor = os.open(path, _READ)
    except OSError as error:
        if (what := _NO_FILES.get(error.errno or 0)) is None:
            raise
        raise NotReadable(f"{name!r} {what}") from error
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        raise NotReadable(f"{name!r} is {'a folder' if stat.S_ISDIR(mode) else 'no file'}")
    return os.fdopen(descriptor, "rb")


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


def is_linked(descriptor: int, path: Path) -> bool:
    """Whether `path` is now one more name of an open file; not on another disk, nor where disks know no such names."""
    try:
        # Python follows this link only when it is given some descriptor, for which an absolute path has no use.
        os.link(f"/proc/self/fd/{descriptor}", path, src_dir_fd=descriptor, follow_symlinks=True)
    except OSError:
        return False
    return True


def take_over(descriptor: int) -> None:
    """Make an open file one of this user, whatever user of a job has written it."""
    if os.fstat(descriptor).st_uid != os.geteuid():
        os.fchown(descriptor, os.geteuid(), os.getegid())
        os.fchmod(descriptor, 0o644)


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
