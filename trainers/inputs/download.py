"""Puts the inputs of a job onto its node: folders and files of named stores, and outputs of other jobs.

An input that is mounted is fetched as it is read (`trainers.inputs.mounts`); any other one is downloaded:

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

from remora.private_files import open_lock
from remora.spec.quantities import format_size
from trainers.confined_folders import OutsideFolder, parts_of, remove_tree
from trainers.granted_blobs import Ask
from trainers.input_source import InputFile, InputSource
from trainers.inputs.mounts.mounting import MountedInput, NotMounted, mounted
from trainers.job_storage import no_service
from trainers.node_folders import make_once, work_root
from trainers.outputs.catalog import OutputsCatalog, OutputsDamaged
from trainers.storage import Storage, StorageError

#: Inputs that a node keeps; of the others those that were used longest ago are removed.
MOST_KEPT = 8
#: Files that are downloaded at the same time.
_AT_ONCE = 8
#: Bytes that the process of a mount keeps in memory, unless the service says more.
MOUNT_CACHE_BYTES = 256 * 2**20
#: Files of one input.
MOST_FILES = 100_000


Opened = Callable[[str], Storage]


class InputMissing(Exception):
    """An input is not there, or cannot be had in this way; the message is one sentence."""


@contextlib.contextmanager
def fetched(
    inputs: Mapping[str, InputSource],
    say: Callable[[str], None],
    show: Callable[[str], None] = lambda _: None,
    root: Path | None = None,
    stop: threading.Event | None = None,
    opened: Opened = Storage,
    ask: Ask = no_service,
    mount_cache_bytes: int = MOUNT_CACHE_BYTES,
) -> Iterator[dict[str, Path]]:
    """The folder or file of each input on this node, by name; they stay as long as the context is open.

    `say` is called with lines for the job's log, `show` with how far a download is, which ends when
    `stop` is set.  `opened` opens a storage by its URL, `ask` gets grants for what is
    mounted, of which `mount_cache_bytes` are kept in memory.
    Raises InputMissing, StorageError, OSError.
    """
    stopping = stop or threading.Event()

    def check() -> None:
        if stopping.is_set():
            raise InputMissing("its job is being stopped")

    with contextlib.ExitStack() as in_use:
        fetching = _Fetching(
            root or work_root() / "inputs", in_use, say, show, check, opened, ask, mount_cache_bytes
        )
        found = {}
        for name, source in inputs.items():
            try:
                found[name] = _here(name, source, fetching)
            except (InputMissing, NotMounted, OutsideFolder, FileNotFoundError) as error:
                raise InputMissing(f"inputs.{name}: {error}") from error
        yield found


@dataclass(frozen=True)
class _Fetching:
    """How the inputs of one job come onto this node; see `fetched`."""

    root: Path
    in_use: contextlib.ExitStack
    say: Callable[[str], None]
    show: Callable[[str], None]
    check: Callable[[], None]
    opened: Opened
    ask: Ask
    mount_cache_bytes: int


def _here(name: str, source: InputSource, fetching: _Fetching) -> Path:
    storage = fetching.opened(source.url)
    if source.is_mounted and storage.local_root is not None:
        return _folder_itself(storage.local_root, source)
    if source.job_id is not None:
        storage, base, files = _files_of_output(source, source.job_id, fetching.opened)
    else:
        base, files = _files_at(storage, source)
    if len(files) > MOST_FILES:
        raise InputMissing(
            f"it has {len(files)} files, and an input has {MOST_FILES} at most; pack them together"
        )
    digest = _digest(storage.location(base or "jobs"), files)
    if source.is_mounted:
        one = MountedInput(
            name=name,
            digest=digest,
            url=source.url,
            base=base,
            files=files,
            cache_bytes=fetching.mount_cache_bytes,
        )
        mounts = fetching.root.with_name("mounts")
        mount = mounted(one, fetching.ask, fetching.say, fetching.check, mounts)
        folder = fetching.in_use.enter_context(mount)
    else:
        folder = _downloaded(name, storage, files, digest, fetching)
    is_file = len(files) == 1 and source.job_id is None and files[0].stored == source.path
    return folder / files[0].name if is_file else folder


def _downloaded(
    name: str, storage: Storage, files: list[InputFile], digest: str, fetching: _Fetching
) -> Path:
    root = fetching.root
    root.mkdir(exist_ok=True, mode=0o700)
    folder, record = root / digest, root / f"{digest}.json"
    lock = fetching.in_use.enter_context(open_lock(root / f"{digest}.lock"))

    def make() -> None:
        _download(name, storage, files, folder, fetching)
        record.write_text(json.dumps({"files": len(files), "bytes": sum(one.size_bytes for one in files)}))

    make_once(lock, record.exists, make, fetching.check)
    os.utime(record)
    prune(root)
    return folder


def _folder_itself(root: Path, source: InputSource) -> Path:
    path = root.joinpath(*parts_of(source.path)) if source.path else root
    if not path.exists():
        raise InputMissing(f"there is no {source.path!r} in its store on this node")
    return path


def _files_at(storage: Storage, source: InputSource) -> tuple[str, list[InputFile]]:
    """The files of a folder of a store, or one file."""
    base = source.path.strip("/")
    files = [
        # The path of a file is that file alone; a folder may hold a file of its own name.
        InputFile(name or base.rpartition("/")[2], "/".join(filter(None, (base, name))), size, tag)
        for name, (size, tag) in storage.entries(base).items()
    ]
    if not files:
        raise InputMissing(f"there is no file at {source.path!r} in its store")
    return base, sorted(files, key=lambda one: one.name)


def _files_of_output(
    source: InputSource, job_id: str, opened: Opened
) -> tuple[Storage, str, list[InputFile]]:
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
            InputFile(
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


def _digest(location: str, files: list[InputFile]) -> str:
    found = hashlib.sha256(location.encode())
    for file in files:
        found.update(f"{file.name}\0{file.stored}\0{file.size_bytes}\0{file.tag}\n".encode())
    return found.hexdigest()[:32]


def _download(name: str, storage: Storage, files: list[InputFile], folder: Path, fetching: _Fetching) -> None:
    say, show, check = fetching.say, fetching.show, fetching.check
    began = time.monotonic()
    size = format_size(sum(file.size_bytes for file in files))
    say(f"input {name}: downloading {len(files)} files, {size}")
    if folder.exists():
        remove_tree(folder)
    folder.mkdir()

    def one(file: InputFile) -> None:
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
