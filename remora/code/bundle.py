"""Code bundles: a folder of code as one zip file, addressed by its digest.

`pack` is deterministic: names sorted, times fixed, of the mode only "executable or not"; so the same tree gives the
same digest whatever the modification times and the order of the folder's entries.  Empty folders are not kept.
`verify` and `unpack` trust nothing that a bundle says about itself.  Only `pack` needs more than the standard library.
"""

from __future__ import annotations

import contextlib
import hashlib
import heapq
import os
import shutil
import stat
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from remora.errors import BundleError
from remora.spec.quantities import format_size

_EPOCH = (1980, 1, 1, 0, 0, 0)
_CHUNK = 1 << 20
_LEVEL = 6
#: Bytes of central directory allowed per permitted file: fixed part, extra fields and a long name.
_DIRECTORY_BYTES_PER_FILE = 512


@dataclass(frozen=True, kw_only=True)
class BundleLimits:
    """How big a bundle may be."""

    packed_bytes: int = 512 * 2**20
    unpacked_bytes: int = 4 * 2**30
    #: Files and folders.
    files: int = 20_000
    #: Bytes of one relative name in UTF-8.
    path_bytes: int = 1024


DEFAULT_LIMITS = BundleLimits()


@dataclass(frozen=True, kw_only=True)
class PackedBundle:
    """A bundle that is known to be good."""

    #: `sha256:` and the digest of the zip file in hexadecimal.
    digest: str
    #: Size of the zip file.
    size_bytes: int
    #: Number of files in it.
    files: int
    #: Their size together.
    unpacked_bytes: int


def digest_of(path: Path) -> str:
    """`sha256:` and the digest of a file's content in hexadecimal."""
    with path.open("rb") as file:
        return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"


def pack(folder: Path, target: Path, limits: BundleLimits = DEFAULT_LIMITS) -> PackedBundle:
    """Write the code in `folder` to the zip file `target`, which is replaced.

    Raises BundleError, and leaves no `target`, for anything that cannot be packed as it is.
    """
    from remora.code.folder import source_files

    own = target.resolve()
    sources = []
    for source in source_files(folder):
        if source.path == own:
            continue
        _check_name(source.name, limits)
        sources.append(source)
        if len(sources) > limits.files:
            advice = "add what is no code to .remoraignore"
            raise BundleError(f"{folder} holds more than {limits.files} files; {advice}")
    biggest = _biggest({source.name: source.size_bytes for source in sources})
    unpacked = 0
    try:
        with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=_LEVEL) as archive:
            for source in sorted(sources, key=lambda source: source.name):
                entry = _entry(source.name, source.is_executable)
                with _open_plain(source.path, source.name) as file:
                    big = source.size_bytes >= 2**31 - 1
                    with archive.open(entry, "w", force_zip64=big) as writer:
                        for chunk in _chunks(file):
                            unpacked += len(chunk)
                            _check_size(unpacked, limits.unpacked_bytes, "unpacked", biggest)
                            writer.write(chunk)
                            _check_size(target.stat().st_size, limits.packed_bytes, "packed", biggest)
        size = target.stat().st_size
        _check_size(size, limits.packed_bytes, "packed", biggest)
    except BaseException as error:
        target.unlink(missing_ok=True)
        if isinstance(error, OSError | RuntimeError):
            raise BundleError(f"cannot pack {folder}: {error}") from error
        raise
    return PackedBundle(
        digest=digest_of(target), size_bytes=size, files=len(sources), unpacked_bytes=unpacked
    )


def verify(zip_path: Path, limits: BundleLimits = DEFAULT_LIMITS) -> PackedBundle:
    """Read a bundle to its last byte without writing anything.  Raises BundleError when it is not acceptable."""
    with _errors():
        return _read_all(zip_path, limits, lambda _info: contextlib.nullcontext())


def unpack(zip_path: Path, folder: Path, limits: BundleLimits = DEFAULT_LIMITS) -> PackedBundle:
    """Write the bundle's files to `folder`, which must not exist or be empty; it appears complete or not at all.

    Raises BundleError when the bundle is not acceptable or the disk does not take it.
    """
    with _errors():
        folder.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
        try:
            packed = _read_all(zip_path, limits, lambda info: _writer(partial, info))
            partial.chmod(0o755)
            partial.replace(folder)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
    return packed


def _entry(name: str, is_executable: bool) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name, _EPOCH)
    entry.create_system = 3  # Unix, wherever it is packed
    entry.external_attr = (stat.S_IFREG | (0o755 if is_executable else 0o644)) << 16
    entry.compress_type = zipfile.ZIP_DEFLATED
    return entry


def _open_plain(path: Path, name: str) -> IO[bytes]:
    """Open a regular file; never a link or a pipe that took its place since the folder was read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise BundleError(f"cannot read {name}: {error.strerror}") from error
    file = os.fdopen(descriptor, "rb")
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        file.close()
        raise BundleError(f"{name} is no file any more; it changed while it was packed")
    return file


def _chunks(file: IO[bytes]) -> Iterator[bytes]:
    while chunk := file.read(_CHUNK):
        yield chunk


def _biggest(sizes: dict[str, int]) -> str:
    names = heapq.nlargest(10, sizes, key=lambda name: sizes[name])
    return ", ".join(f"{name} ({format_size(sizes[name])})" for name in names)


def _check_size(size: int, limit: int, what: str, biggest: str) -> None:
    if size > limit:
        raise BundleError(
            f"the code is bigger than {format_size(limit)} {what}; add what is no code to .remoraignore;"
            f" the biggest files are {biggest}"
        )


def _check_name(name: str, limits: BundleLimits) -> None:
    """Refuse every name that could mean another place, or that another machine could not write."""
    shown = ascii(name if len(name) <= 120 else name[:120] + "...")
    try:
        encoded = name.encode()
    except UnicodeEncodeError:
        raise BundleError(f"the name {shown} is not UTF-8; rename the file") from None
    parts = name.rstrip("/").split("/")
    if len(encoded) > limits.path_bytes or any(len(part.encode()) > 255 for part in parts):
        raise BundleError(f"the name {shown} is too long; {limits.path_bytes} bytes are allowed")
    if name.startswith("/") or ".." in parts or "." in parts or "" in parts:
        raise BundleError(f"the name {shown} is not a plain relative path")
    if "\\" in name or (len(name) > 1 and name[1] == ":") or any(ord(one) < 32 for one in name):
        raise BundleError(
            f"the name {shown} holds a backslash, a drive letter or a control character; rename it"
        )


@contextlib.contextmanager
def _errors() -> Iterator[None]:
    """Turn any error of a broken archive or a full disk into one sentence."""
    try:
        yield
    except (
        zipfile.BadZipFile,
        zlib.error,
        EOFError,
        struct.error,
        NotImplementedError,
        RuntimeError,
    ) as error:
        raise BundleError(f"the bundle is damaged or no zip file: {error}") from error
    except (OSError, ValueError) as error:
        raise BundleError(f"the bundle cannot be read or unpacked: {error}") from error


def _read_all(
    zip_path: Path,
    limits: BundleLimits,
    writer: Callable[[zipfile.ZipInfo], contextlib.AbstractContextManager[IO[bytes] | None]],
) -> PackedBundle:
    size = zip_path.stat().st_size
    if size > limits.packed_bytes:
        raise BundleError(f"the bundle is bigger than {format_size(limits.packed_bytes)} packed")
    with zip_path.open("rb") as file:
        _check_directory(file, size, limits)
        with zipfile.ZipFile(file) as archive:
            entries = archive.infolist()
            _check_entries(entries, limits)
            unpacked = 0
            for entry in entries:
                with archive.open(entry) as reader, writer(entry) as out:
                    for chunk in _chunks(reader):
                        unpacked += len(chunk)
                        if unpacked > limits.unpacked_bytes:
                            limit = format_size(limits.unpacked_bytes)
                            raise BundleError(f"the bundle is bigger than {limit} unpacked")
                        if out is not None:
                            out.write(chunk)
    files = sum(not entry.is_dir() for entry in entries)
    return PackedBundle(digest=digest_of(zip_path), size_bytes=size, files=files, unpacked_bytes=unpacked)


def _check_directory(file: IO[bytes], size: int, limits: BundleLimits) -> None:
    """Refuse a table of contents that would fill the memory before its entries could be counted."""
    tail_bytes = min(size, 98)  # two records of zip64 (56 and 20 bytes) and the end record (22 bytes)
    file.seek(size - tail_bytes)
    tail = file.read(tail_bytes)
    end = tail[-22:]
    if len(end) < 22 or not end.startswith(b"PK\x05\x06") or end[20:] != b"\0\0":
        raise BundleError("the bundle is no zip file, or it ends in a comment or other bytes")
    directory_bytes = struct.unpack("<I", end[12:16])[0]
    if tail[-42:-38] == b"PK\x06\x07" and len(tail) == 98:
        directory_bytes = max(directory_bytes, struct.unpack("<Q", tail[40:48])[0])
    if directory_bytes > max(limits.files, 64) * _DIRECTORY_BYTES_PER_FILE:
        raise BundleError(f"the bundle holds more than {limits.files} files, or names that are too long")


def _check_entries(entries: list[zipfile.ZipInfo], limits: BundleLimits) -> None:
    if len(entries) > limits.files:
        raise BundleError(f"the bundle holds {len(entries)} files, the limit is {limits.files}")
    files: set[str] = set()
    folders: set[str] = set()
    for entry in entries:
        name = entry.filename
        if "\0" in entry.orig_filename:
            raise BundleError(f"the name {name[:120]!a} holds a null character")
        _check_name(name, limits)
        kind = stat.S_IFMT(entry.external_attr >> 16)
        if kind not in (0, stat.S_IFDIR if entry.is_dir() else stat.S_IFREG):
            raise BundleError(f"{name} is a link or a device; a bundle holds only files and folders")
        if entry.flag_bits & 0x1:
            raise BundleError(f"{name} is encrypted; a bundle must be readable")
        if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise BundleError(f"{name} is compressed in another way than deflate")
        if entry.is_dir() and entry.file_size:
            raise BundleError(f"{name} is a folder with content")
        key = name.rstrip("/")
        if key in files or (key in folders and not entry.is_dir()):
            raise BundleError(f"the name {name} is there twice")
        (folders if entry.is_dir() else files).add(key)
        parents = [key[:at] for at, one in enumerate(key) if one == "/"]
        folders.update(parents)
    clash = next(iter(sorted(files & folders)), None)
    if clash is not None:
        raise BundleError(f"{clash} is a file and a folder at once")


@contextlib.contextmanager
def _writer(folder: Path, entry: zipfile.ZipInfo) -> Iterator[IO[bytes] | None]:
    path = folder / entry.filename
    if entry.is_dir():
        path.mkdir(parents=True, exist_ok=True)
        yield None
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    mode = 0o755 if (entry.external_attr >> 16) & 0o111 else 0o644
    with path.open("xb") as file:
        yield file
    path.chmod(mode)
