"""The checkpoints of one job in its storage: commit, find the newest complete one, retain, fetch."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
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
from trainers.checkpoints.selection import Mode, age, surplus, youngest_of_each_step
from trainers.confined_folders import ConfinedFolder
from trainers.storage import NotReadable, Storage, StorageError

_CHUNK = 1 << 20
#: Files of a checkpoint that a node fetches at the same time.
_AT_ONCE = 8
#: Bytes of a manifest: some hundred for each file.
MAX_MANIFEST_BYTES = 32 * 2**20
#: The parsed name of a folder that is no checkpoint.
_NO_FOLDER = (0, 0, 0, 0)
#: Has a file of the checkpoint in a folder of this name at a path of the local disk, without the storage; False: it has
#: not.  Whether the content is the right one is not its affair.
Near = Callable[[str, ShardFile, Path], bool]
#: Number of an attempt, as a name.
_NUMBER = re.compile(r"[1-9][0-9]{0,8}")


class CheckpointDamaged(Exception):
    """A checkpoint that is fetched cannot be used; the message is a clause that says why."""

    def __init__(self, folder: str, file: str, why: str) -> None:
        super().__init__(why)
        self.folder, self.file = folder, file


class Fenced(Exception):
    """A newer attempt of the job writes now; this one may not commit any more."""


@dataclass(frozen=True)
class Damage:
    """A checkpoint that cannot be used although it has a manifest."""

    step: int
    folder: str
    #: One sentence for people.
    why: str
    #: True when its manifest cannot be read, or a file is missing or has another size: `listed` leaves it out.
    is_incomplete: bool = True


@dataclass(frozen=True, kw_only=True)
class Retained:
    """The result of a retention."""

    deleted: tuple[Manifest, ...] = ()
    #: Those that are still there.
    kept: tuple[Manifest, ...] = ()
    #: What cannot be used, and so does not count among those that are kept.
    damaged: tuple[Damage, ...] = ()
    #: Why something that had to go is still there, if so.
    failure: str | None = None


class Catalog:
    """Checkpoints of one job.  One driver commits and retains; supervisors of its ranks write files."""

    def __init__(self, storage: Storage, job_id: str) -> None:
        self._storage = storage
        self._job_id = job_id
        self._folder = job_folder(job_id)
        #: States of files, by name, in which their content was verified.
        self._right: dict[str, str] = {}
        #: Why checkpoints cannot be used although their files are there, by their folders.
        self._refused: dict[str, str] = {}
        #: Folders that lost their manifest to a retention, and are still there.
        self._leftovers: set[str] = set()

    def fence(self, attempt: int) -> None:
        """Forbid commits of lower attempts from now on.  Raises StorageError."""
        if attempt <= self._fence():
            return
        # The number is the file's name: an interrupted write cannot leave another number.
        self._storage.write_bytes(f"{self._fences}/{attempt}", b"")
        # Drivers that an older version started look here.
        try:
            self._storage.write_bytes(self._fence_name, str(attempt).encode())
        except StorageError:
            # A folder cannot be replaced by a file.
            self._storage.delete(self._fence_name)
            self._storage.write_bytes(self._fence_name, str(attempt).encode())
        with contextlib.suppress(StorageError):
            for lower in self._fenced():
                if lower < attempt:
                    self._storage.delete(f"{self._fences}/{lower}")

    def is_fenced(self, attempt: int) -> bool:
        """True when a newer attempt has begun."""
        return self._fence() > attempt

    def put(
        self,
        source: ConfinedFolder,
        step: int,
        attempt: int,
        generation: int,
        rank: int,
        take: int = 1,
        *,
        consume: bool = True,
    ) -> tuple[ShardFile, ...]:
        """Put every file of `source` into the checkpoint's folder; returns them with sizes and digests.

        Unless `consume` is False each is removed from `source` as soon as it is stored.
        Raises StorageError, also when that checkpoint is committed already, and OSError.
        """
        target = f"{self._folder}/{folder_name(step, attempt, generation, take)}"
        if self._storage.exists(f"{target}/{MANIFEST_NAME}"):
            raise StorageError(
                f"the checkpoint of step {step} is committed already, and is not written again"
            )
        files: list[ShardFile] = []
        for name, _ in source.files():
            with source.open_file(name) as opened:
                digest = hashlib.file_digest(opened, "sha256").hexdigest()
                size_bytes = os.fstat(opened.fileno()).st_size
                self._storage.write_open(f"{target}/{name}", opened, share=True)
            if consume:
                source.remove(name)
            files.append(ShardFile(name=name, size_bytes=size_bytes, sha256=digest, rank=rank))
        return tuple(files)

    def commit(self, manifest: Manifest) -> str:
        """Make a checkpoint visible; returns its location.

        Raises Fenced when a newer attempt has begun, StorageError when the storage fails.
        """
        if self.is_fenced(manifest.attempt):
            raise Fenced(f"attempt {manifest.attempt} of {self._job_id} was replaced by a newer one")
        folder = f"{self._folder}/{manifest.folder}"
        content = manifest.to_json()
        if len(content) > MAX_MANIFEST_BYTES:
            raise StorageError(
                f"its manifest would have {len(content)} bytes, more than {MAX_MANIFEST_BYTES}: save fewer files"
            )
        self._storage.write_bytes(f"{folder}/{MANIFEST_NAME}", content)
        # It is committed, whatever fails from here on.
        with contextlib.suppress(StorageError, FileNotFoundError):
            for file in manifest.files:
                name = f"{folder}/{file.name}"
                self._right[name] = self._storage.state(name)
        return self.location(manifest)

    def refuse_if_damaged(self, folder: str, file: str) -> bool:
        """Look at a file that a worker could not use: False when it is right here, so that the worker's node is not.

        `newest` passes over the checkpoint from now on where it is not.  Raises StorageError.
        """
        if parse_folder_name(folder) is None:
            return False
        manifest = self._read_manifest(folder)
        if not isinstance(manifest, Manifest):
            # `newest` finds that by itself.
            return True
        for one in manifest.files:
            if one.name == file:
                name = f"{self._folder}/{folder}/{file}"
                self._right.pop(name, None)
                if (why := self._fault(name, one)) is not None:
                    self._refused[folder] = why
                return why is not None
        return False

    def vouch(self, manifest: Manifest) -> None:
        """Workers have fetched a checkpoint, and its content is right.  Raises StorageError, FileNotFoundError."""
        for file in manifest.files:
            name = f"{self._folder}/{manifest.folder}/{file.name}"
            self._right[name] = self._storage.state(name)

    def newest(self) -> tuple[Manifest | None, list[Damage]]:
        """The newest checkpoint whose files are all there with their sizes, and newer ones that were passed over.

        Nothing is read but manifests: who fetches it looks at its content.
        """
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

    def listed(self) -> list[Manifest]:
        """Of each step the youngest checkpoint whose files are all there with their sizes, newest step first.

        This is what jobs' lists of checkpoints show.  Nothing is read but manifests.  Raises StorageError.
        """
        whole = [one for one in self.manifests() if not self._is_incomplete(one)]
        return sorted(youngest_of_each_step(whole).values(), key=lambda one: -one.step)

    def location(self, manifest: Manifest) -> str:
        """How a person finds a checkpoint."""
        return self._storage.location(f"{self._folder}/{manifest.folder}")

    def _is_incomplete(self, manifest: Manifest) -> bool:
        return self._why_incomplete(manifest) is not None

    def fetch(
        self,
        manifest: Manifest,
        target: Path,
        check: Callable[[], None] = lambda: None,
        near: Near = lambda _folder, _file, _target: False,
    ) -> Path:
        """`target`, a folder of the local disk, with the checkpoint's files: a script does not reach the storage.

        Several files are fetched at a time, and the content of each is compared with its digest; `check` is called
        before each of them, and may raise.  The storage is read where `near` has no file with that content.
        Raises CheckpointDamaged for a file that is missing or is another one.
        """

        def fetch_one(file: ShardFile) -> None:
            check()
            here = target / file.name
            if near(manifest.folder, file, here):
                if _digest_of(here) == file.sha256:
                    return
                here.unlink()
            try:
                self._storage.link_file(f"{self._folder}/{manifest.folder}/{file.name}", here)
            except FileNotFoundError:
                raise CheckpointDamaged(manifest.folder, file.name, f"{file.name} is missing") from None
            except NotReadable as error:
                raise CheckpointDamaged(manifest.folder, file.name, str(error)) from None
            if _digest_of(here) != file.sha256:
                raise CheckpointDamaged(manifest.folder, file.name, f"{file.name} is corrupted")

        with ThreadPoolExecutor(_AT_ONCE) as pool:
            under_way = [pool.submit(fetch_one, file) for file in manifest.files]
            try:
                for one in under_way:
                    one.result()
            finally:
                pool.shutdown(wait=True, cancel_futures=True)
        return target

    def retain(self, keep: int, mode: Mode | None = None) -> Retained:
        """Delete all but the `keep` youngest whole checkpoints and the best one, and older leftovers.

        What cannot be deleted is tried again by the next call.  Raises StorageError when the storage cannot be read.
        """
        manifests = self.manifests()
        damages = self._damages(manifests) if len(manifests) > keep else {}
        deleted: list[Manifest] = []
        failures: list[StorageError] = []
        for manifest in surplus(manifests, keep, mode, damages.keys()):
            try:
                # Without its manifest a half-deleted folder is no checkpoint.
                self._storage.delete(f"{self._folder}/{manifest.folder}/{MANIFEST_NAME}")
            except StorageError as error:
                failures.append(error)
            else:
                deleted.append(manifest)
                self._leftovers.add(manifest.folder)
        if manifests:
            self._leftovers |= self._unfinished(max(manifests, key=age))
        failures += self._sweep()
        present = [damage for manifest, damage in damages.items() if manifest not in deleted]
        failure = str(failures[0]) if failures else None
        kept = tuple(one for one in manifests if one not in deleted)
        return Retained(deleted=tuple(deleted), kept=kept, damaged=tuple(present), failure=failure)

    def _damages(self, manifests: list[Manifest]) -> dict[Manifest, Damage]:
        """Those that cannot be used, by names and sizes; content is compared until one is known to be right.

        Younger ones come first, so that nothing is read where the youngest one was committed here.  What was known to
        be right and has changed since is read in any case.
        """
        found: dict[Manifest, Damage] = {}
        is_one_right = False
        for manifest in sorted(manifests, key=age, reverse=True):
            why = self._refused.get(manifest.folder)
            why = why or self._why_incomplete(manifest) or self._why_damaged(manifest, known=is_one_right)
            if why is None:
                is_one_right = True
            else:
                found[manifest] = self._damage(manifest, why)
        return found

    def _unfinished(self, newest: Manifest) -> set[str]:
        """Older worker groups' folders without a manifest; the present group may still write one."""
        found = set()
        for folder in self._folders():
            _, attempt, generation, _ = parse_folder_name(folder) or _NO_FOLDER
            is_older = (attempt, generation) < (newest.attempt, newest.generation)
            if is_older and not isinstance(self._read_manifest(folder), Manifest):
                found.add(folder)
        return found

    def _sweep(self) -> list[StorageError]:
        """Delete leftovers; returns what went wrong."""
        failures = []
        for folder in sorted(self._leftovers):
            try:
                if not isinstance(self._read_manifest(folder), Manifest):
                    self._storage.delete(f"{self._folder}/{folder}")
            except StorageError as error:
                failures.append(error)
            else:
                self._leftovers.discard(folder)
                for name in [
                    name for name in list(self._right) if name.startswith(f"{self._folder}/{folder}/")
                ]:
                    self._right.pop(name, None)
        return failures

    @property
    def _fence_name(self) -> str:
        return f"jobs/{self._job_id}/fence"

    @property
    def _fences(self) -> str:
        return f"jobs/{self._job_id}/fences"

    def _fence(self) -> int:
        """The newest attempt that has begun; 0 when none has."""
        return max((*self._fenced(), self._fence_before()))

    def _fenced(self) -> list[int]:
        return [int(name) for name in self._storage.names(self._fences) if _NUMBER.fullmatch(name)]

    def _fence_before(self) -> int:
        """The number in the file that older versions wrote; 0 when there is none."""
        try:
            return int(self._storage.read_bytes(self._fence_name))
        except FileNotFoundError:
            return 0
        except (ValueError, NotReadable):
            # Written in part. Its attempt was at least as high as that of any checkpoint.
            return max((parse_folder_name(folder) or _NO_FOLDER)[1] for folder in ("", *self._folders()))

    def _folders(self) -> list[str]:
        """Names of checkpoint folders, newest step first."""
        parsed = [(parse_folder_name(name), name) for name in self._storage.names(self._folder)]
        return [name for key, name in sorted(((k, n) for k, n in parsed if k), reverse=True)]

    def _read_manifest(self, folder: str) -> Manifest | Damage | None:
        step = (parse_folder_name(folder) or _NO_FOLDER)[0]
        try:
            name = f"{self._folder}/{folder}/{MANIFEST_NAME}"
            manifest = Manifest.from_json(self._storage.read_bytes(name, MAX_MANIFEST_BYTES))
        except FileNotFoundError:
            return None
        except (ValueError, NotReadable) as error:
            return Damage(step, folder, str(error))
        if (manifest.job_id, manifest.folder) != (self._job_id, folder):
            return Damage(step, folder, "its manifest is of another checkpoint")
        return manifest

    def _inspect(self, folder: str) -> tuple[Manifest | None, Damage | None]:
        manifest = self._read_manifest(folder)
        if not isinstance(manifest, Manifest):
            return None, manifest
        why = self._refused.get(folder) or self._why_incomplete(manifest)
        return (manifest, None) if why is None else (None, self._damage(manifest, why))

    def _why_incomplete(self, manifest: Manifest) -> str | None:
        """Which file is missing or has another size, in one question however many there are; None: none."""
        sizes = self._storage.sizes(f"{self._folder}/{manifest.folder}")
        for file in manifest.files:
            size = sizes.get(file.name)
            if size is None:
                return f"{file.name} is missing"
            if size != file.size_bytes:
                return f"{file.name} has {size} bytes instead of {file.size_bytes}"
        return None

    def _damage(self, manifest: Manifest, why: str) -> Damage:
        return Damage(manifest.step, manifest.folder, why, self._is_incomplete(manifest))

    def _why_damaged(self, manifest: Manifest, *, known: bool) -> str | None:
        """Why it cannot be used, if so, by the content of its files; `known`: of those that were verified once."""
        for file in manifest.files:
            name = f"{self._folder}/{manifest.folder}/{file.name}"
            if known and name not in self._right:
                continue
            why = self._fault(name, file)
            if why is not None:
                return why
        return None

    def _fault(self, name: str, file: ShardFile) -> str | None:
        try:
            state = self._storage.state(name)
            if self._right.get(name) == state:
                return None
            if (size := self._storage.size(name)) != file.size_bytes:
                return f"{file.name} has {size} bytes instead of {file.size_bytes}"
            digest = hashlib.sha256()
            with self._storage.open_read(name) as stream:
                while chunk := stream.read(_CHUNK):
                    digest.update(chunk)
        except FileNotFoundError:
            return f"{file.name} is missing"
        except NotReadable as error:
            return str(error)
        if digest.hexdigest() != file.sha256:
            return f"{file.name} is corrupted"
        self._right[name] = state
        return None


def _digest_of(path: Path) -> str:
    with path.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
