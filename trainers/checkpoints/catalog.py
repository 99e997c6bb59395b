"""The checkpoints of one job in its storage: commit, find the newest complete one, retain, fetch."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from trainers.checkpoints.manifest import (
    MANIFEST_NAME,
    Manifest,
    ShardFile,
    folder_name,
    job_folder,
    parse_folder_name,
)
from trainers.checkpoints.retention import Mode, age, surplus
from trainers.storage import Storage, StorageError

_CHUNK = 1 << 20


class Fenced(Exception):
    """A newer attempt of the job writes now; this one may not commit any more."""


@dataclass(frozen=True)
class Damage:
    """A checkpoint that cannot be used although it has a manifest."""

    step: int
    folder: str
    #: One sentence for people.
    why: str


class Catalog:
    """Checkpoints of one job.  One driver commits; supervisors of its ranks write files."""

    def __init__(self, storage: Storage, job_id: str) -> None:
        self._storage = storage
        self._job_id = job_id
        self._folder = job_folder(job_id)

    def fence(self, attempt: int) -> None:
        """Forbid commits of lower attempts from now on."""
        if attempt > self._fence():
            self._storage.write_bytes(self._fence_name, str(attempt).encode())

    def is_fenced(self, attempt: int) -> bool:
        """True when a newer attempt has begun."""
        return self._fence() > attempt

    def put(self, source: Path, step: int, attempt: int, generation: int, rank: int) -> tuple[ShardFile, ...]:
        """Move every file below `source` into the checkpoint's folder; returns them with sizes and digests."""
        target = f"{self._folder}/{folder_name(step, attempt, generation)}"
        files: list[ShardFile] = []
        for path in sorted(source.rglob("*")):
            if path.is_symlink() or not path.is_file():
                continue
            name = path.relative_to(source).as_posix()
            file = ShardFile(name=name, size_bytes=path.stat().st_size, sha256=_digest_of(path), rank=rank)
            self._storage.write_file(f"{target}/{name}", path, move=True)
            files.append(file)
        return tuple(files)

    def commit(self, manifest: Manifest) -> str:
        """Make a checkpoint visible; returns its location.

        Raises Fenced when a newer attempt has begun, StorageError when the storage fails.
        """
        if self.is_fenced(manifest.attempt):
            raise Fenced(f"attempt {manifest.attempt} of {self._job_id} was replaced by a newer one")
        folder = f"{self._folder}/{manifest.folder}"
        self._storage.write_bytes(f"{folder}/{MANIFEST_NAME}", manifest.to_json())
        return self._storage.location(folder)

    def newest(self) -> tuple[Manifest | None, list[Damage]]:
        """The newest complete checkpoint, and the newer ones that had to be passed over."""
        damages: list[Damage] = []
        for folder in self._folders():
            manifest, damage = self._inspect(folder)
            if damage is not None:
                damages.append(damage)
            elif manifest is not None:
                return manifest, damages
        return None, damages

    def manifests(self) -> list[Manifest]:
        """Every committed checkpoint whose manifest can be read, newest first; files are not looked at."""
        found = [self._read_manifest(folder) for folder in self._folders()]
        return [manifest for manifest in found if isinstance(manifest, Manifest)]

    def fetch(self, manifest: Manifest, target: Path) -> Path:
        """A local folder with the checkpoint's files: the storage's own when it is a local one, else `target`."""
        folder = f"{self._folder}/{manifest.folder}"
        if self._storage.local_root is not None:
            return Path(self._storage.path(folder))
        for file in manifest.files:
            self._storage.read_file(f"{folder}/{file.name}", target / file.name)
        return target

    def retain(self, keep: int, mode: Mode | None = None) -> list[Manifest]:
        """Delete all but the `keep` youngest checkpoints and the best one, and older leftovers; returns the deleted."""
        manifests = self.manifests()
        deleted = surplus(manifests, keep, mode)
        for manifest in deleted:
            folder = f"{self._folder}/{manifest.folder}"
            # Without its manifest a half-deleted folder is no checkpoint.
            self._storage.delete(f"{folder}/{MANIFEST_NAME}")
            self._storage.delete(folder)
        if manifests:
            self._sweep(max(manifests, key=age))
        return deleted

    def _sweep(self, newest: Manifest) -> None:
        """Remove older worker groups' folders without a manifest; the present group may still write one."""
        for folder in self._folders():
            _, attempt, generation = parse_folder_name(folder) or (0, 0, 0)
            is_older = (attempt, generation) < (newest.attempt, newest.generation)
            if is_older and not isinstance(self._read_manifest(folder), Manifest):
                self._storage.delete(f"{self._folder}/{folder}")

    @property
    def _fence_name(self) -> str:
        return f"jobs/{self._job_id}/fence"

    def _fence(self) -> int:
        try:
            return int(self._storage.read_bytes(self._fence_name))
        except FileNotFoundError:
            return 0
        except ValueError as error:
            raise StorageError(f"the file {self._fence_name} is damaged; delete it") from error

    def _folders(self) -> list[str]:
        """Names of checkpoint folders, newest step first."""
        parsed = [(parse_folder_name(name), name) for name in self._storage.names(self._folder)]
        return [name for key, name in sorted(((k, n) for k, n in parsed if k), reverse=True)]

    def _read_manifest(self, folder: str) -> Manifest | Damage | None:
        step = (parse_folder_name(folder) or (0, 0, 0))[0]
        try:
            return Manifest.from_json(self._storage.read_bytes(f"{self._folder}/{folder}/{MANIFEST_NAME}"))
        except FileNotFoundError:
            return None
        except ValueError as error:
            return Damage(step, folder, str(error))

    def _inspect(self, folder: str) -> tuple[Manifest | None, Damage | None]:
        manifest = self._read_manifest(folder)
        if not isinstance(manifest, Manifest):
            return None, manifest
        for file in manifest.files:
            why = self._fault(f"{self._folder}/{folder}/{file.name}", file)
            if why is not None:
                return None, Damage(manifest.step, folder, why)
        return manifest, None

    def _fault(self, name: str, file: ShardFile) -> str | None:
        try:
            if (size := self._storage.size(name)) != file.size_bytes:
                return f"{file.name} has {size} bytes instead of {file.size_bytes}"
            digest = hashlib.sha256()
            with self._storage.open_read(name) as stream:
                while chunk := stream.read(_CHUNK):
                    digest.update(chunk)
        except FileNotFoundError:
            return f"{file.name} is missing"
        return None if digest.hexdigest() == file.sha256 else f"{file.name} is corrupted"


def _digest_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
