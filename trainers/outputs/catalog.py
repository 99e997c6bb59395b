"""The outputs of one job in its storage: put, commit, fetch."""

from __future__ import annotations

import contextlib
import hashlib
import os
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import IO

from trainers.confined_folders import ConfinedFolder, OutsideFolder
from trainers.outputs.manifest import (
    DAMAGED_PREFIX,
    OutputFile,
    attempt_of,
    manifest_name,
    outputs_folder,
)
from trainers.outputs.versions import OutputHistory, from_json, to_json
from trainers.storage import NotReadable, Storage, StorageError
from trainers.worker_identity import WorkerIdentity

#: Bytes read at once.
_CHUNK = 1 << 20
#: Bytes of a list: some hundred for each file of each version.
MAX_LIST_BYTES = 256 * 2**20


class OutputsDamaged(Exception):
    """The list of a job's outputs cannot be read; the message says why."""


class OutputsCatalog:
    """Outputs of one job.  One driver commits; supervisors of its ranks write files."""

    def __init__(self, storage: Storage, job_id: str) -> None:
        self._storage = storage
        self._job_id = job_id
        self._folder = outputs_folder(job_id)

    @property
    def folder(self) -> str:
        """The folder of the files in the storage, to which `OutputFile.stored` is relative."""
        return self._folder

    @property
    def location(self) -> str:
        """How the files are found: a path on a local disk, else a URL; `OutputFile.stored` is relative to it."""
        return self._storage.location(self._folder)

    def put(
        self,
        folder: ConfinedFolder,
        path: str,
        name: str,
        identity: WorkerIdentity,
        before: OutputFile | None = None,
    ) -> OutputFile | None:
        """Store the file `path` of a folder as `name`; None when it was written to, or went, meanwhile.

        `before` is what this worker knew under that name last.  Raises StorageError.
        """
        version, file = uuid.uuid4().hex, None
        try:
            with folder.open_file(path) as opened:
                file = self._copy(opened, f"{version}/{name}", identity, before)
        except (FileNotFoundError, NotADirectoryError, OutsideFolder):
            return None
        finally:
            if file is None:
                # A full storage stays full when partial copies pile up in it.
                with contextlib.suppress(StorageError):
                    self._storage.delete(f"{self._folder}/{version}")
        return file

    def _copy(
        self, opened: IO[bytes], stored: str, identity: WorkerIdentity, before: OutputFile | None
    ) -> OutputFile | None:
        status = os.fstat(opened.fileno())
        digest, is_grown = _digest(opened, status.st_size, before)
        if _trace(status) != _trace(os.fstat(opened.fileno())):
            return None
        self._storage.write_open(f"{self._folder}/{stored}", opened)
        if _trace(status) != _trace(os.fstat(opened.fileno())):
            return None
        return OutputFile(
            name=stored.partition("/")[2],
            size_bytes=status.st_size,
            sha256=digest,
            stored=stored,
            rank=identity.rank,
            attempt=identity.attempt,
            generation=identity.generation,
            is_grown=is_grown,
        )

    def newest(self) -> OutputHistory:
        """What is committed.  Raises OutputsDamaged for a manifest that cannot be read, and StorageError."""
        seen = None
        while (name := self._newest_manifest()) is not None:
            try:
                return from_json(self._storage.read_bytes(f"{self._folder}/{name}", MAX_LIST_BYTES))
            except FileNotFoundError:
                # A newer attempt has just written its own and removed this one.
                if name == seen:
                    raise StorageError(f"the storage names {name} and does not have it") from None
                seen = name
            except (ValueError, NotReadable) as error:
                raise OutputsDamaged(str(error)) from error
        return OutputHistory()

    def commit(self, history: OutputHistory, attempt: int, now: float) -> None:
        """Make these the job's outputs, unless a newer attempt has committed.  Raises StorageError."""
        content = to_json(self._job_id, attempt, now, history)
        if len(content) > MAX_LIST_BYTES:
            raise StorageError(f"their list would have {len(content)} bytes, more than {MAX_LIST_BYTES}")
        self._storage.write_bytes(f"{self._folder}/{manifest_name(attempt)}", content)

    def take_over(self, history: OutputHistory, attempt: int, now: float) -> None:
        """Commit what earlier attempts left, so that what these still write does not count.  Raises StorageError."""
        if history == OutputHistory() and not self._manifests():
            return
        self.commit(history, attempt, now)
        with contextlib.suppress(StorageError):
            for before, name in self._manifests().items():
                if before < attempt:
                    self._storage.delete(f"{self._folder}/{name}")

    def set_aside(self, attempt: int) -> None:
        """Give a manifest that cannot be read another name, so that the next commit does not replace it."""
        name, aside = self._newest_manifest(), f"{self._folder}/{DAMAGED_PREFIX}{attempt}"
        # Left by a driver of this attempt that died before it was done.
        self._storage.delete(aside)
        self._storage.rename(f"{self._folder}/{name}", aside)

    def _manifests(self) -> dict[int, str]:
        """Names of manifests by attempt."""
        named = {attempt_of(name): name for name in self._storage.names(self._folder)}
        return {attempt: name for attempt, name in named.items() if attempt is not None}

    def _newest_manifest(self) -> str | None:
        manifests = self._manifests()
        return manifests[max(manifests)] if manifests else None

    def unnamed(self, history: OutputHistory) -> frozenset[str]:
        """What lies there besides these versions, asked while no worker runs; nothing beside a damaged manifest."""
        names = frozenset(self._storage.names(self._folder))
        if any(name.startswith(DAMAGED_PREFIX) for name in names):
            return frozenset()
        manifests = {name for name in names if attempt_of(name) is not None}
        return names - history.folders - manifests

    def forget(self, folders: Iterable[str]) -> None:
        """Remove folders of versions that no manifest names any more.  Raises StorageError."""
        for folder in folders:
            self._storage.delete(f"{self._folder}/{folder}")

    def fetch(self, files: Iterable[OutputFile], target: Path) -> None:
        """Copy files into a folder of the local disk.  Raises StorageError, and FileNotFoundError for a lost one."""
        for file in files:
            self._storage.read_file(f"{self._folder}/{file.stored}", target / file.name)


def _trace(status: os.stat_result) -> tuple[int, int, int]:
    """What changes when a file is written to."""
    return status.st_ino, status.st_size, status.st_mtime_ns


def _digest(opened: IO[bytes], size: int, before: OutputFile | None) -> tuple[str, bool]:
    """SHA-256 of `size` bytes of a file, and whether they are a longer version of what the file held before."""
    digest, is_grown, at = hashlib.sha256(), False, 0
    if before is not None and 0 < before.size_bytes <= size:
        at = _feed(digest, opened, before.size_bytes)
        is_grown = at == before.size_bytes and digest.hexdigest() == before.sha256
    _feed(digest, opened, size - at)
    return digest.hexdigest(), is_grown and size > at


def _feed(digest: hashlib._Hash, opened: IO[bytes], count: int) -> int:
    """Feed at most `count` bytes of a file, which may be growing, to a digest; returns how many there were."""
    left = count
    while left and (chunk := opened.read(min(left, _CHUNK))):
        digest.update(chunk)
        left -= len(chunk)
    return count - left
