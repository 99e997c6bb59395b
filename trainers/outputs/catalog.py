"""The outputs of one job in its storage: put, commit, fetch."""

from __future__ import annotations

import contextlib
import hashlib
import os
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path

from trainers.outputs.manifest import (
    DAMAGED_PREFIX,
    OutputFile,
    attempt_of,
    from_json,
    manifest_name,
    outputs_folder,
    to_json,
    without_clashes,
)
from trainers.storage import Storage, StorageError
from trainers.supervisor.environment import Place


class OutputsDamaged(Exception):
    """The list of a job's outputs cannot be read; the message says why."""


class OutputsCatalog:
    """Outputs of one job.  One driver commits; supervisors of its ranks write files."""

    def __init__(self, storage: Storage, job_id: str) -> None:
        self._storage = storage
        self._job_id = job_id
        self._folder = outputs_folder(job_id)

    @property
    def location(self) -> str:
        """How the files are found: a path on a local disk, else a URL; `OutputFile.stored` is relative to it."""
        return self._storage.location(self._folder)

    def put(self, path: Path, name: str, place: Place) -> OutputFile | None:
        """Store a file that a worker wrote; None when it was written to, or went, meanwhile.  Raises StorageError."""
        version, file = uuid.uuid4().hex, None
        try:
            file = self._copy(path, name, f"{version}/{name}", place)
        except (FileNotFoundError, NotADirectoryError):
            return None
        finally:
            if file is None:
                # A full storage stays full when torn copies pile up in it.
                with contextlib.suppress(StorageError):
                    self._storage.delete(f"{self._folder}/{version}")
        return file

    def _copy(self, path: Path, name: str, stored: str, place: Place) -> OutputFile | None:
        before = path.stat()
        with path.open("rb") as opened:
            digest = hashlib.file_digest(opened, "sha256").hexdigest()
        self._storage.write_file(f"{self._folder}/{stored}", path)
        if _trace(before) != _trace(path.stat()):
            return None
        return OutputFile(
            name=name,
            size_bytes=before.st_size,
            sha256=digest,
            stored=stored,
            rank=place.rank,
            attempt=place.attempt,
            generation=place.generation,
        )

    def newest(self) -> dict[str, OutputFile]:
        """The committed files by name.  Raises OutputsDamaged for a manifest that cannot be read, and StorageError."""
        seen = None
        while (name := self._newest_manifest()) is not None:
            try:
                return without_clashes(from_json(self._storage.read_bytes(f"{self._folder}/{name}")))
            except FileNotFoundError:
                # A newer attempt has just written its own and removed this one.
                if name == seen:
                    raise StorageError(f"the storage names {name} and does not have it") from None
                seen = name
            except ValueError as error:
                raise OutputsDamaged(str(error)) from error
        return {}

    def commit(self, files: Mapping[str, OutputFile], attempt: int, now: float) -> None:
        """Make these files the job's outputs, unless a newer attempt has committed.  Raises StorageError."""
        content = to_json(self._job_id, attempt, now, files.values())
        self._storage.write_bytes(f"{self._folder}/{manifest_name(attempt)}", content)

    def take_over(self, files: Mapping[str, OutputFile], attempt: int, now: float) -> None:
        """Commit what earlier attempts left, so that nothing that these still write counts.  Raises StorageError."""
        if not files and not self._manifests():
            return
        self.commit(files, attempt, now)
        with contextlib.suppress(StorageError):
            for before, name in self._manifests().items():
                if before < attempt:
                    self._storage.delete(f"{self._folder}/{name}")

    def set_aside(self, attempt: int) -> None:
        """Give a manifest that cannot be read another name, so that the next commit does not replace it."""
        name = f"{self._folder}/{self._newest_manifest()}"
        self._storage.write_bytes(f"{self._folder}/{DAMAGED_PREFIX}{attempt}", self._storage.read_bytes(name))
        self._storage.delete(name)

    def _manifests(self) -> dict[int, str]:
        """Names of manifests by attempt."""
        named = {attempt_of(name): name for name in self._storage.names(self._folder)}
        return {attempt: name for attempt, name in named.items() if attempt is not None}

    def _newest_manifest(self) -> str | None:
        manifests = self._manifests()
        return manifests[max(manifests)] if manifests else None

    def unnamed(self, files: Mapping[str, OutputFile]) -> frozenset[str]:
        """What lies there besides these files, asked while no worker runs; nothing beside a damaged manifest."""
        names = frozenset(self._storage.names(self._folder))
        if any(name.startswith(DAMAGED_PREFIX) for name in names):
            return frozenset()
        manifests = {name for name in names if attempt_of(name) is not None}
        return names - {file.folder for file in files.values()} - manifests

    def forget(self, folders: Iterable[str]) -> None:
        """Remove folders of versions that nobody names any more.  Raises StorageError."""
        for folder in folders:
            self._storage.delete(f"{self._folder}/{folder}")

    def fetch(self, files: Iterable[OutputFile], target: Path) -> None:
        """Copy files into a folder of the local disk.  Raises StorageError, and FileNotFoundError for a lost one."""
        for file in files:
            self._storage.read_file(f"{self._folder}/{file.stored}", target / file.name)


def _trace(status: os.stat_result) -> tuple[int, int, int]:
    """What changes when somebody writes to a file."""
    return status.st_ino, status.st_size, status.st_mtime_ns
