"""Takes the folders that a script hands over; it may hand over those only that lie in the rooms it was given.

What a script says is input: a path in it is a name inside one of its rooms, opened without following links, and nothing
but what was moved into a folder of the supervisor's own is ever deleted.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from trainers.confined_folders import ConfinedFolder, OutsideFolder
from trainers.supervisor.snapshots import SnapshotSpace

#: Folders of one worker on their way to the storage at the same time; a script that hands over more has to wait.
MAX_UNDER_WAY = 64
#: The greatest step that the store can hold.
_MAX_STEP = 2**53
#: Steps whose checkpoints are counted.
_STEPS_KEPT = 10_000


@dataclass(frozen=True, kw_only=True)
class Offer:
    """A script says that a folder holds this rank's files of a checkpoint."""

    step: int
    #: The worker group whose state it is.
    generation: int
    #: Name of the room, and of the folder in it; libraries that know no rooms say a whole path.
    room: str
    folder: str
    #: The checkpoint was asked for.
    asked: bool

    @classmethod
    def told_by(cls, message: Mapping[str, Any], generation: int) -> Offer:
        """What a `checkpoint` message says while the worker group of that number is the present one.

        Raises KeyError, TypeError, ValueError or OverflowError for one that cannot be meant.
        """
        step, of_group = int(message["step"]), int(message.get("generation", generation))
        room, folder = message.get("room", "scratch"), message["folder"]
        if not 0 <= step <= _MAX_STEP:
            raise ValueError(f"there is no such step: {step}")
        if not 0 <= of_group <= generation:
            raise ValueError(f"there is no worker group {of_group} yet")
        if not isinstance(room, str) or not isinstance(folder, str):
            raise TypeError("room and folder are names")
        return cls(step=step, generation=of_group, room=room, folder=folder, asked=bool(message.get("asked")))


class Takes:
    """Counts the checkpoints of a step that a worker group made: after going back it comes to steps again.

    Every rank makes the same ones, so all count alike.
    """

    def __init__(self) -> None:
        self._counts: dict[tuple[int, int], int] = {}

    def count(self, step: int, generation: int) -> int:
        """One more checkpoint of that step in the worker group of that number; the how manieth it is."""
        key = generation, step
        # The oldest are forgotten: nobody goes back that far.
        number = self._counts[key] = self._counts.pop(key, 0) + 1
        if len(self._counts) > _STEPS_KEPT:
            del self._counts[next(iter(self._counts))]
        return number


@dataclass(frozen=True)
class Taken:
    """A folder that is the supervisor's now."""

    folder: ConfinedFolder
    _staging: ConfinedFolder
    _name: str

    def discard(self) -> None:
        """Remove it."""
        self.folder.close()
        with contextlib.suppress(OSError):
            self._staging.remove(self._name)


class Taking:
    """The rooms of one worker's script, and beside each of them, on the same file system, where taken folders go."""

    def __init__(self, scratch: Path, staging: Path, memory: SnapshotSpace | None) -> None:
        """Open them; call it before the script runs."""
        self._rooms = {"scratch": (ConfinedFolder(scratch), ConfinedFolder(staging))}
        if memory is not None:
            self._rooms["memory"] = (ConfinedFolder(memory.folder), ConfinedFolder(memory.staging))
        self._count = 0

    def close(self) -> None:
        """Let the rooms go."""
        for pair in self._rooms.values():
            for room in pair:
                room.close()

    def take(self, offer: Offer) -> Taken:
        """Take an offered folder.  Raises OSError, whose text is for people."""
        room, name = self._place_of(offer)
        source, staging = self._rooms[room]
        self._count += 1
        try:
            return Taken(source.move(name, staging, str(self._count)), staging, str(self._count))
        except FileNotFoundError:
            raise OutsideFolder(
                f"there is no folder {name[:200]!a} in the {room} folder of this worker"
            ) from None

    def _place_of(self, offer: Offer) -> tuple[str, str]:
        """Name of the room, and of the folder in it."""
        if not offer.folder.startswith("/"):
            if offer.room not in self._rooms:
                raise OutsideFolder(f"this worker was given no room called {offer.room[:80]!a}")
            return offer.room, offer.folder
        for room, (opened, _) in self._rooms.items():
            # By its text alone: what the text leads to is looked at part by part when it is opened.
            with contextlib.suppress(ValueError):
                return room, PurePosixPath(offer.folder).relative_to(opened.path).as_posix()
        raise OutsideFolder(
            f"{offer.folder[:200]!a} does not lie in a folder that this worker was given for checkpoints; write them"
            " into the folder that training.checkpoint() yields"
        )
