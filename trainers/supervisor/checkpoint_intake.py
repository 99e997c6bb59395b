"""Takes over the checkpoint folders that a script hands over, which have to lie in the folders that it was given.

A script's message is untrusted input: a path in it is a name below one of these folders and is opened without following
links, and nothing is ever deleted but what was moved into a folder of the supervisor's own.
"""

from __future__ import annotations

import contextlib
import errno
import shutil
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from trainers.confined_folders import ConfinedFolder, OutsideFolder
from trainers.supervisor.snapshot_memory import SnapshotSpace

#: Folders of one worker on their way to the storage at the same time; a script that hands over more has to wait.
MAX_UNDER_WAY = 64
#: Bytes that are copied at once.
_CHUNK = 1 << 20
#: The greatest step that the store can hold.
_MAX_STEP = 2**53
#: Steps whose checkpoints are counted.
_STEPS_KEPT = 10_000


@dataclass(frozen=True, kw_only=True)
class CheckpointOffer:
    """A script says that a folder holds this rank's files of a checkpoint."""

    step: int
    #: The worker group whose state it is.
    generation: int
    #: "scratch" or "memory", and the name of the folder below it; older libraries send an absolute path.
    root: str
    folder: str
    #: The checkpoint was asked for.
    asked: bool
    #: By which agreement, where the script says so.
    token: int | None = None

    @classmethod
    def from_message(cls, message: Mapping[str, Any], generation: int) -> CheckpointOffer:
        """The offer in a `checkpoint` message that arrives while `generation` is the current worker group.

        Raises KeyError, TypeError, ValueError or OverflowError for a malformed message.
        """
        step, of_group = int(message["step"]), int(message.get("generation", generation))
        root, folder = message.get("room", "scratch"), message["folder"]
        if not 0 <= step <= _MAX_STEP:
            raise ValueError(f"there is no such step: {step}")
        if not 0 <= of_group <= generation:
            raise ValueError(f"there is no worker group {of_group} yet")
        if not isinstance(root, str) or not isinstance(folder, str):
            raise TypeError("room and folder are names")
        token = None if message.get("token") is None else int(message["token"])
        asked = bool(message.get("asked"))
        return cls(step=step, generation=of_group, root=root, folder=folder, asked=asked, token=token)


class TakeCounter:
    """Counts the checkpoints of a step that a worker group made: after going back it repeats steps.

    Every rank makes the same ones, so all count alike.
    """

    def __init__(self) -> None:
        self._counts: dict[tuple[int, int], int] = {}

    def count(self, step: int, generation: int) -> int:
        """Count one more checkpoint of that step in that worker group; returns its number, from 1."""
        key = generation, step
        # The oldest are forgotten: no worker group goes back that far.
        number = self._counts[key] = self._counts.pop(key, 0) + 1
        if len(self._counts) > _STEPS_KEPT:
            del self._counts[next(iter(self._counts))]
        return number


@dataclass(frozen=True)
class TakenFolder:
    """A folder that now belongs to the supervisor."""

    folder: ConfinedFolder
    #: "scratch" or "memory": where the script has written it.
    root: str
    _staging: ConfinedFolder
    _name: str

    def move(self, target: ConfinedFolder, name: str) -> None:
        """Move it into another folder of the node, copied where that is another file system.  Raises OSError."""
        try:
            self._staging.move(self._name, target, name).close()
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            self._copy(target, name)

    def _copy(self, target: ConfinedFolder, name: str) -> None:
        draft = f"{name}.{uuid.uuid4().hex}.tmp"
        try:
            target.make_folder(draft)
            for file, _ in self.folder.files():
                new = f"{draft}/{file}"
                with self.folder.open_file(file) as source, target.open_to_write(new, is_new=True) as copy:
                    shutil.copyfileobj(source, copy, _CHUNK)
            target.move(draft, target, name).close()
        finally:
            target.remove(draft)

    def discard(self) -> None:
        """Remove it."""
        self.folder.close()
        with contextlib.suppress(OSError):
            self._staging.remove(self._name)


class CheckpointIntake:
    """The folders that one worker's script may hand over from, each with a staging folder on the same file system."""

    def __init__(self, scratch: Path, staging: Path, memory: SnapshotSpace | None) -> None:
        """Open them; call it before the script runs."""
        self._folders = {"scratch": (ConfinedFolder(scratch), ConfinedFolder(staging))}
        if memory is not None:
            self._folders["memory"] = (ConfinedFolder(memory.folder), ConfinedFolder(memory.staging))
        self._count = 0

    def close(self) -> None:
        """Close the folders."""
        for pair in self._folders.values():
            for root in pair:
                root.close()

    def take(self, offer: CheckpointOffer) -> TakenFolder:
        """Take an offered folder.  Raises OSError, whose text is for people."""
        root, name = self._locate(offer)
        source, staging = self._folders[root]
        self._count += 1
        try:
            number = str(self._count)
            return TakenFolder(source.move(name, staging, number), root, staging, number)
        except FileNotFoundError:
            raise OutsideFolder(
                f"there is no folder {name[:200]!a} in the {root} folder of this worker"
            ) from None

    def _locate(self, offer: CheckpointOffer) -> tuple[str, str]:
        """The key ("scratch" or "memory") and the name of the folder below it."""
        if not offer.folder.startswith("/"):
            if offer.root not in self._folders:
                raise OutsideFolder(f"this worker was given no folder called {offer.root[:80]!a}")
            return offer.root, offer.folder
        for root, (opened, _) in self._folders.items():
            # By its text alone: what the text leads to is looked at part by part when it is opened.
            with contextlib.suppress(ValueError):
                return root, PurePosixPath(offer.folder).relative_to(opened.path).as_posix()
        raise OutsideFolder(
            f"{offer.folder[:200]!a} does not lie in a folder that this worker was given for checkpoints; write them"
            " into the folder that training.checkpoint() yields"
        )
