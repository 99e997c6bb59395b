"""Puts the inputs of a job onto its node: folders and files of named stores, and outputs of other jobs.

A node downloads each state of an input once, for all workers and jobs that ask for it: the names, sizes and tags of its
files name the folder.  A lock is shared by all that use the folder and held alone to fill or remove it; a record, which
is written last, says that it is complete.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from remora.spec.quantities import format_size
from trainers.confined_folders import OutsideFolder, parts_of, remove_tree
from trainers.inputs.source import InputSource
from trainers.node_folders import make_once, open_lock, work_root
from trainers.outputs.catalog import OutputsCatalog, OutputsDamaged
from trainers.storage import Storage, StorageError

#: Inputs that a node keeps; of the others those that were used longest ago are removed.
MOST_KEPT = 8
#: Files that are downloaded at the same time.
_AT_ONCE = 8
#: Files of one input.
MOST_FILES = 100_000


Opened = Callable[[str], Storage]


class InputMissing(Exception):
    """An input is not there, or cannot be had in this way; the message is one sentence."""


@dataclass(frozen=True)
class _File:
    """A file of an input: its name there, its name in the storage, its size and what changes with its content."""

    name: str
    stored: str
    size_bytes: int
    tag: str


@contextlib.contextmanager
def fetched(
    inputs: Mapping[str, InputSource],
    say: Callable[[str], None],
    show: Callable[[str], None] = lambda _: None,
    root: Path | None = None,
    stop: threading.Event | None = None,
    opened: Opened = Storage,
) -> Iterator[dict[str, Path]]:
    """The folder or file of each input on this node, by name; they stay as long as the context is open.

    `say` is called with lines for the job's log, `show` with how far a download is, which ends when
    `stop` is set.  `opened` opens a storage by its URL.
    Raises InputMissing, StorageError, OSError.
    """
    root = root or work_root() / "inputs"
    with contextlib.ExitStack() as in_use:
        found = {}
        for name, source in inputs.items():
            try:
                found[name] = _here(name, source, root, in_use, say, show, stop or threading.Event(), opened)
            except (InputMissing, OutsideFolder, FileNotFoundError) as error:
                raise InputMissing(f"inputs.{name}: {error}") from error
        yield found


def _here(
    name: str,
    source: InputSource,
    root: Path,
    in_use: contextlib.ExitStack,
    say: Callable[[str], None],
    show: Callable[[str], None],
    stop: threading.Event,
    opened: Opened,
) -> Path:
    storage = opened(source.url)
    if source.is_mounted:
        return _mounted(storage, source)
    if source.job_id is not None:
        storage, base, files = _files_of_output(source, source.job_id, opened)
    else:
        base, files = _files_at(storage, source)
    if len(files) > MOST_FILES:
        raise InputMissing(
            f"it has {len(files)} files, and an input has {MOST_FILES} at most; pack them together"
        )
    digest = _digest(storage.location(base or "jobs"), files)
    root.mkdir(exist_ok=True, mode=0o700)
    folder, record = root / digest, root / f"{digest}.json"
    lock = in_use.enter_context(open_lock(root / f"{digest}.lock"))

    def check() -> None:
        if stop.is_set():
            raise InputMissing("its job is being stopped")

    def make() -> None:
        _download(name, storage, files, folder, say, show, check)
        record.write_text(json.dumps({"files": len(files), "bytes": sum(one.size_bytes for one in files)}))

    make_once(lock, record.exists, make, check)
    os.utime(record)
    prune(root)
    is_file = len(files) == 1 and source.job_id is None and files[0].stored == source.path
    return folder / files[0].name if is_file else folder


def _mounted(storage: Storage, source: InputSource) -> Path:
    if storage.local_root is None or source.job_id is not None:
        raise InputMissing(
            "mode mount is for a path in a store that is a folder of the nodes; write download"
        )
    path = storage.local_root.joinpath(*parts_of(source.path)) if source.path else storage.local_root
    if not path.exists():
        raise InputMissing(f"there is no {source.path!r} in its store on this node")
    return path


def _files_at(storage: Storage, source: InputSource) -> tuple[str, list[_File]]:
    """The files of a folder of a store, or one file."""
    base = source.path.strip("/")
    files = [
        # The path of a file is that file alone; a folder may hold a file of its own name.
        _File(name or base.rpartition("/")[2], "/".join(filter(None, (base, name))), size, tag)
        for name, (size, tag) in storage.entries(base).items()
    ]
    if not files:
        raise InputMissing(f"there is no file at {source.path!r} in its store")
    return base, sorted(files, key=lambda one: one.name)


def _files_of_output(source: InputSource, job_id: str, opened: Opened) -> tuple[Storage, str, list[_File]]:
    """The files of another job's outputs as they are now, with the storage that they are in."""
    prefix = f"{source.output}/" if source.output else ""
    for url in (source.url, *source.also):
        storage = opened(url)
        catalog = OutputsCatalog(storage, job_id)
        try:
            newest = catalog.newest().newest
        except OutputsDamaged as error:
            raise InputMissing(f"the outputs of {job_id} cannot be read: {error}") from error
        files = [
            _File(
                file.name.removeprefix(prefix),
                f"{catalog.folder}/{file.stored}",
                file.size_bytes,
                file.sha256,
            )
            for file in newest.files.values()
            if file.name.startswith(prefix)
        ]
        if files:
            return storage, catalog.folder, sorted(files, key=lambda one: one.name)
    what = f"no output {source.output!r}" if source.output else "no outputs"
    raise InputMissing(f"the job {job_id} has {what}")


def _digest(location: str, files: list[_File]) -> str:
    found = hashlib.sha256(location.encode())
    for file in files:
        found.update(f"{file.name}\0{file.stored}\0{file.size_bytes}\0{file.tag}\n".encode())
    return found.hexdigest()[:32]


def _download(
    name: str,
    storage: Storage,
    files: list[_File],
    folder: Path,
    say: Callable[[str], None],
    show: Callable[[str], None],
    check: Callable[[], None],
) -> None:
    began = time.monotonic()
    size = format_size(sum(file.size_bytes for file in files))
    say(f"input {name}: downloading {len(files)} files, {size}")
    if folder.exists():
        remove_tree(folder)
    folder.mkdir()

    def one(file: _File) -> None:
        check()
        target = folder.joinpath(*parts_of(file.name))
        storage.read_file(file.stored, target)
        if target.stat().st_size != file.size_bytes:
            raise StorageError(f"{file.name!r} of the input {name} was written to while it was downloaded")
        target.chmod(0o444)

    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="input") as pool:
        for count, _ in enumerate(pool.map(one, files), 1):
            if count == len(files) or count % 100 == 0:
                show(f"{count} of {len(files)} files of the input {name}, {size}")
    say(f"input {name}: it is here after {time.monotonic() - began:.1f} s")


def prune(root: Path, most: int = MOST_KEPT) -> list[str]:
    """Remove inputs that nothing uses, those used longest ago first, until `most` are left; returns digests."""
    records = sorted(root.glob("*.json"), key=_used_at, reverse=True)
    # What a killed download has left has no record.
    known = {record.stem for record in records}
    halves = [
        path.with_suffix(".json") for path in root.iterdir() if path.is_dir() and path.name not in known
    ]
    removed = []
    for record in [*records[most:], *halves]:
        with contextlib.suppress(OSError), open_lock(root / f"{record.stem}.lock") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # First, so that half of it is never taken for an input.
            record.unlink(missing_ok=True)
            shutil.rmtree(root / record.stem, ignore_errors=True)
            removed.append(record.stem)
    return removed


def _used_at(record: Path) -> float:
    try:
        return record.stat().st_mtime
    except OSError:
        return 0.0
