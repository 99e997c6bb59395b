"""The outputs of an attempt's workers, put together and committed beside the training that goes on."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable

from trainers.checkpoints.catalog import Catalog
from trainers.driver.account import Account
from trainers.outputs.catalog import OutputsCatalog, OutputsDamaged
from trainers.outputs.manifest import Changes, OutputFile, merge
from trainers.plan import AttemptPlan
from trainers.storage import StorageError

#: Seconds that the last commit may take at the end of an attempt.
_FINISH_S = 60.0
#: Seconds before a refused commit is tried again at the end: at first, and at most.
_PAUSE_S, _MAX_PAUSE_S = 0.25, 8.0
#: Names of outputs in an event, at most.
_NAMES = 100


class Outputs:
    """What the job's outputs are now; `open` is called by the controller's thread before any worker starts."""

    def __init__(self, plan: AttemptPlan, account: Account, now: Callable[[], float] = time.time) -> None:
        self._plan = plan
        self._account = account
        self._now = now
        self._catalog: OutputsCatalog
        self._checkpoints: Catalog
        #: The newest files by name, and those that are committed.
        self.files: dict[str, OutputFile] = {}
        self._committed: dict[str, OutputFile] = {}
        #: Folders of versions that the next list leaves out.
        self._loose: set[str] = set()
        #: Numbers of told lists, each with folders that it and all later ones leave out.
        self._replaced: list[tuple[int, frozenset[str]]] = []
        #: Names that the workers of this group could not store at their end.
        self._unstored: set[str] = set()
        self._unstored_by: tuple[int, int] = (0, 0)
        self._under_way: asyncio.Task[None] | None = None
        self._removal: asyncio.Task[None] | None = None
        self._is_refused = False
        self._is_fenced = False
        self._is_ending = False

    def open(self, catalog: OutputsCatalog, checkpoints: Catalog) -> str | None:
        """Begin with what earlier attempts left; returns why it cannot be read, if so.  Raises StorageError.

        The list is told once more: an attempt that vanished may have committed it and not told it.
        """
        self._catalog, self._checkpoints = catalog, checkpoints
        damage = None
        try:
            self.files = self._committed = catalog.newest()
        except OutputsDamaged as error:
            damage = str(error)
            catalog.set_aside(self._plan.attempt)
        catalog.take_over(self.files, self._plan.attempt, self._now())
        left = catalog.unnamed(self.files)
        if self.files or left:
            self._tell(self.files, left)
        return damage

    @property
    def is_complete(self) -> bool:
        """True when everything that the newest worker group wrote is in the list that is committed."""
        return self._is_committed and not self._unstored

    @property
    def _is_committed(self) -> bool:
        return self.files == self._committed

    def hear(self, changes: Changes) -> None:
        """A worker has stored or removed files, or could not store some."""
        self._note_unstored(changes)
        before = self.files
        self.files = merge(before, changes)
        known = {file.folder for file in (*before.values(), *changes.written)}
        self._loose |= known - {file.folder for file in self.files.values()}
        self._begin_commit()

    def _note_unstored(self, changes: Changes) -> None:
        if changes.group > self._unstored_by:
            # What an earlier group could not leave, this one did not find, and has written anew if it matters.
            self._unstored, self._unstored_by = set(), changes.group
        if changes.group < self._unstored_by or not changes.unstored:
            return
        # Of a name that several workers write, only the lowest rank's counts.
        present = {name: self.files.get(name) for name in changes.unstored}
        self._unstored |= {
            name
            for name, file in present.items()
            if file is None or (file.group, -file.rank) <= (changes.group, -changes.rank)
        }
        some = ", ".join(changes.unstored[:5]) + (", ..." if len(changes.unstored) > 5 else "")
        text = (
            f"Rank {changes.rank} ended, and the storage did not take {len(changes.unstored)} of its outputs ({some});"
            " what the job has of them is older, or nothing."
        )
        names = list(changes.unstored[:_NAMES])
        self._account.event("attempt.outputs_unstored", text[:1000], rank=changes.rank, names=names)

    def tick(self) -> None:
        """Remove versions that the service does not name any more either."""
        if self._is_ending or (self._removal is not None and not self._removal.done()):
            return
        stored = [folders for seq, folders in self._replaced if self._account.is_stored(seq)]
        if stored:
            del self._replaced[: len(stored)]
            folders = frozenset[str]().union(*stored) - {file.folder for file in self.files.values()}
            self._removal = asyncio.ensure_future(asyncio.to_thread(self._remove, folders))

    async def finish(self, within_s: float = _FINISH_S) -> None:
        """Commit what is not committed yet, over and over for so many seconds; nothing is removed from now on."""
        self._is_ending = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._commit_all()
        if not self._is_committed and not self._is_fenced:
            text = "The newest outputs could not be put into the job's list; it is the older one."
            self._account.event("attempt.outputs_incomplete", text)

    async def _commit_all(self) -> None:
        pause_s = _PAUSE_S
        while True:
            if self._under_way is not None and not self._under_way.done():
                # Waits without ending it: what is half written in a thread goes on anyway.
                await asyncio.wait({self._under_way})
            if self._is_committed or self._is_fenced:
                return
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _MAX_PAUSE_S)
            self._begin_commit()

    def _begin_commit(self) -> None:
        if self._under_way is None or self._under_way.done():
            self._under_way = asyncio.ensure_future(self._commit())

    async def _commit(self) -> None:
        while self.files != self._committed:
            files, loose = self.files, frozenset(self._loose)
            try:
                self._is_fenced = not await asyncio.to_thread(self._write, files)
            except (StorageError, OSError) as error:
                self._tell_refused(error)
                return
            if self._is_fenced:
                return
            self._is_refused = False
            self._committed = files
            self._loose -= loose
            self._tell(files, loose)

    def _write(self, files: dict[str, OutputFile]) -> bool:
        """Commit them; False when a newer attempt writes now."""
        if self._checkpoints.is_fenced(self._plan.attempt):
            return False
        self._catalog.commit(files, self._plan.attempt, self._now())
        return True

    def _remove(self, folders: frozenset[str]) -> None:
        # What the storage does not remove now, the next attempt does.
        with contextlib.suppress(StorageError, OSError):
            if not self._checkpoints.is_fenced(self._plan.attempt):
                self._catalog.forget(folders)

    def _tell_refused(self, error: Exception) -> None:
        if not self._is_refused:
            self._is_refused = True
            text = f"The outputs were not stored: {error}."
            self._account.event("attempt.outputs_refused", text[:1000])

    def _tell(self, files: dict[str, OutputFile], without: frozenset[str]) -> None:
        """Tell the list, and remember what to remove when it has replaced the one before."""
        body = {
            "location": self._catalog.location,
            "committed_at": self._now(),
            "files": {
                file.name: {"size_bytes": file.size_bytes, "sha256": file.sha256, "stored": file.stored}
                for file in files.values()
            },
        }
        seq = self._account.put_whole("output", body)
        if seq is None:
            return
        # What lists before this one left out may go when this one is stored: those may never be.
        loose = without.union(*(folders for _, folders in self._replaced))
        self._replaced = [(seq, loose)] if loose else []
