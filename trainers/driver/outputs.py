"""The outputs of an attempt's workers, put together and committed beside the training that goes on.

Which of them are one version is decided in `trainers.outputs.rounds`, what is kept in `trainers.outputs.versions`.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping
from typing import Any

from remora.spec.quantities import format_size
from trainers.checkpoints.catalog import Catalog
from trainers.driver.account import Account
from trainers.outputs.catalog import OutputsCatalog, OutputsDamaged
from trainers.outputs.manifest import Changes, OutputFile
from trainers.outputs.rounds import Agreed, Rounds
from trainers.outputs.versions import OutputHistory, Version, is_save
from trainers.plan import AttemptPlan
from trainers.storage import StorageError

#: Seconds between two rounds; while a machine is about to go; and before the one that confirms what was stored: the
#: sooner, the shorter a rest is enough.
_ROUND_S, _HURRY_S, _CONFIRM_S = 10.0, 2.0, 0.2
#: Workers that are asked in a second, at most: in rounds that nothing hurries, and in others.
_LOOKS_PER_S, _HURRIED_LOOKS_PER_S = 128.0, 1024.0
#: Seconds between two looks at what only waits for a worker that is late.
_LATE_LOOK_S = 1.0
#: Seconds that the last commit may take at the end of an attempt.
_FINISH_S = 60.0
#: Seconds before a refused commit is tried again at the end: at first, and at most.
_PAUSE_S, _MAX_PAUSE_S = 0.25, 8.0
#: Names of outputs in an event, at most.
_NAMES = 100


class Outputs:
    """What the job's outputs are now; `open` is called by the controller's thread before any worker starts."""

    def __init__(
        self,
        plan: AttemptPlan,
        account: Account,
        now: Callable[[], float] = time.time,
        ask: Callable[[dict[str, Any]], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`now` is the time of day, `clock` one that never jumps; `ask` sends an instruction to all workers."""
        self._plan = plan
        self._account = account
        self._now = now
        self._ask = ask
        self._clock = clock
        self._catalog: OutputsCatalog
        self._checkpoints: Catalog
        #: What is to be kept, and what is committed.
        self._kept = OutputHistory()
        self._committed = OutputHistory()
        self._rounds = Rounds(plan.outputs, plan.output_commits)
        self._world_size = 0
        self._asked_at = clock()
        self._goes_soon = False
        self._has_news = False
        self._wants_another = False
        self._agreed_at = clock()
        #: The files that the present worker group began with, and what it agreed on since.
        self._present: Mapping[str, OutputFile] = {}
        #: True when it found files.
        self._has_found = False
        #: True once the present worker group has left something that another one can start from.
        self._has_saved = False
        #: Folders of versions that the next list leaves out.
        self._loose: set[str] = set()
        #: Numbers of reported lists, each with folders that it and all later ones leave out.
        self._replaced: list[tuple[int, frozenset[str]]] = []
        #: Names that workers of this group could not store at their end, with the lowest rank of these.
        self._unstored: dict[str, int] = {}
        self._unstored_by: tuple[int, int] = (0, 0)
        self._under_way: asyncio.Task[None] | None = None
        self._removal: asyncio.Task[None] | None = None
        self._is_refused = False
        #: True once it was reported that the outputs are too large, until they are not.
        self._is_excess_reported = False
        self._is_fenced = False
        self._is_ending = False

    def open(self, catalog: OutputsCatalog, checkpoints: Catalog) -> str | None:
        """Begin with what earlier attempts left; returns why it cannot be read, if so.  Raises StorageError.

        The list is reported again: an attempt that vanished may have committed it and not reported it.
        """
        self._catalog, self._checkpoints = catalog, checkpoints
        damage = None
        try:
            self._kept = self._committed = catalog.newest()
        except OutputsDamaged as error:
            damage = str(error)
            catalog.set_aside(self._plan.attempt)
        catalog.take_over(self._kept, self._plan.attempt, self._now())
        left = catalog.unnamed(self._kept)
        if self.files or left:
            self._report(self._kept, left)
        return damage

    @property
    def files(self) -> Mapping[str, OutputFile]:
        """The newest files by name."""
        return self._kept.newest.files

    @property
    def start(self) -> Version:
        """What a worker that starts now begins with."""
        return self._kept.start

    @property
    def fallen_back(self) -> tuple[Version, Version] | None:
        """The newest version and the older one that workers start with, while these are not the same."""
        return (self._kept.newest, self._kept.start) if self._kept.is_fallen_back else None

    @property
    def is_complete(self) -> bool:
        """True when everything that the newest worker group wrote is in the list that is committed."""
        return (
            self._is_committed
            and not self._rounds.has_pending
            and not self._misses_some
            and not self._is_too_large
            and self._rounds.excess is None
        )

    @property
    def _misses_some(self) -> bool:
        """True when the storage did not take a file that counts: of one name, only the lowest rank's does."""
        found = ((rank, self.files.get(name)) for name, rank in self._unstored.items())
        return any(
            file is None or (file.group, -file.rank) <= (self._unstored_by, -rank) for rank, file in found
        )

    @property
    def _is_committed(self) -> bool:
        return self._kept == self._committed

    def begin_group(self, ranks: Mapping[int, int], generation: int) -> None:
        """A worker group of new processes starts; `ranks` by slot."""
        self._world_size = len(ranks)
        self._loose |= self._rounds.begin(ranks, (self._plan.attempt, generation))
        self._loose |= {file.folder for file in self._present.values()} - self._kept.folders
        self._present = self._kept.start.files
        self._rounds.know(self._present)
        self._has_found = bool(self._kept.newest.files)
        self._has_saved = self._goes_soon = self._is_ending = False

    def follow_group(self, ranks: Mapping[int, int]) -> None:
        """The processes go on in place, with other ranks."""
        self._world_size = len(ranks)
        self._loose |= self._rounds.follow(ranks)
        self._goes_soon = False

    def hurry(self) -> None:
        """A machine is about to go: look now, and often."""
        self._goes_soon = True
        self._ask_for_a_look()

    def receive(self, slot: int, changes: Changes) -> None:
        """A worker has looked into its folder, or could not store some of it."""
        self._note_unstored(changes)
        self._loose |= self._rounds.receive(slot, changes)
        self._has_news = True

    def agree(self) -> None:
        """Make a version of what has become one state of an output, and begin to commit it."""
        self._has_news, self._agreed_at = False, self._clock()
        held = self._present
        if (excess := self._rounds.excess) is not None:
            # Of a rank's folder only what is gone would be reported, not what replaced it.
            self._wants_another = False
            self._report_excess(f"Rank {excess[0]} has", excess[1])
            return
        agreed = self._rounds.agree(self._present, self._agreed_at)
        # Asked once for all messages: it costs a look at every file that waits.
        self._wants_another = self._rounds.wants_another
        if agreed is None:
            self._is_excess_reported = self._is_excess_reported and self._is_too_large
            return
        if _size_of(agreed.files) > self._plan.max_output_bytes:
            self._put_off(agreed)
            return
        self._is_excess_reported = False
        saves = is_save(self._present, agreed.files, self._plan.output_commits)
        before, self._present = self._kept, agreed.files
        self._loose |= agreed.loose
        self._rounds.know(self._present)
        if self._kept.is_fallen_back and not saves and not self._rounds.is_done:
            # What a start that may fail leaves behind does not replace the newest version.
            return
        self._has_saved = self._has_saved or saves
        self._kept = before.follow(agreed.files, is_save=saves)
        self._present = self._kept.newest.files
        self._rounds.know(self._present)
        self._loose |= before.folders - self._kept.folders
        # What was too large waits in no version.
        needed = self._kept.folders | {file.folder for file in self._present.values()}
        self._loose |= {file.folder for file in held.values()} - needed
        self._begin_commit()

    @property
    def _is_too_large(self) -> bool:
        return _size_of(self._present) > self._plan.max_output_bytes

    def _put_off(self, agreed: Agreed) -> None:
        """Publish nothing of outputs that are too large; when some of it is gone, the rest becomes the next version."""
        before, self._present = self._present, agreed.files
        needed = self._kept.folders | {file.folder for file in agreed.files.values()}
        self._loose |= agreed.loose | ({file.folder for file in before.values()} - needed)
        self._rounds.know(self._present)
        self._report_excess(f"{len(agreed.files)} files of the outputs have", _size_of(agreed.files))
        if self._is_committed and self._loose:
            # No new list will be reported, after which they would go.
            self._report(self._kept, frozenset(self._loose))
            self._loose.clear()

    def _report_excess(self, who_has: str, size_bytes: int) -> None:
        # The start from what was there has not failed.
        self._has_saved = True
        if self._is_excess_reported:
            return
        self._is_excess_reported = True
        limit = self._plan.max_output_bytes
        text = (
            f"{who_has} {format_size(size_bytes)} ({size_bytes} bytes), and the outputs of a job may have"
            f" {format_size(limit)} ({limit} bytes, {self._plan.output_limit}): the job goes on and keeps the version"
            " before, until files are removed from REMORA_OUTPUTS_DIR or operators allow more."
        )
        self._account.event("attempt.outputs_too_large", text, size_bytes=size_bytes, limit_bytes=limit)

    def _ask_for_a_look(self) -> None:
        self._asked_at = self._clock()
        self._ask({"type": "look", "round": self._rounds.open()})

    def _ask_in_time(self) -> None:
        pause_s = max(_ROUND_S, self._world_size / _LOOKS_PER_S)
        if self._goes_soon or self._wants_another:
            least_s = _CONFIRM_S if self._wants_another else _HURRY_S
            pause_s = max(least_s, self._world_size / _HURRIED_LOOKS_PER_S)
        if self._clock() - self._asked_at >= pause_s:
            self._ask_for_a_look()

    def _note_unstored(self, changes: Changes) -> None:
        if changes.group > self._unstored_by:
            # What an earlier group could not leave, this one did not find, and has written again if it matters.
            self._unstored, self._unstored_by = {}, changes.group
        if changes.group < self._unstored_by or not changes.unstored:
            return
        for name in changes.unstored:
            self._unstored[name] = min(changes.rank, self._unstored.get(name, changes.rank))
        some = ", ".join(changes.unstored[:5]) + (", ..." if len(changes.unstored) > 5 else "")
        text = (
            f"Rank {changes.rank} ended, and the storage did not take {len(changes.unstored)} of its outputs ({some});"
            " what the job has of them is older, or nothing."
        )
        names = list(changes.unstored[:_NAMES])
        self._account.event("attempt.outputs_unstored", text[:1000], rank=changes.rank, names=names)

    def tick(self) -> None:
        """Ask for looks, agree on what was reported, and remove versions that the service does not list any more."""
        if self._is_ending:
            return
        self._ask_in_time()
        if self._has_news or (self._rounds.is_waiting and self._clock() - self._agreed_at >= _LATE_LOOK_S):
            self.agree()
        if self._removal is not None and not self._removal.done():
            return
        stored = [folders for seq, folders in self._replaced if self._account.is_stored(seq)]
        if stored:
            del self._replaced[: len(stored)]
            folders = frozenset[str]().union(*stored) - self._kept.folders - self._committed.folders
            self._removal = asyncio.ensure_future(asyncio.to_thread(self._remove, folders))

    async def finish(self, within_s: float = _FINISH_S, *, has_failed: bool = False) -> None:
        """Commit what is not committed yet, again and again for that many seconds; nothing is removed from now on.

        With `has_failed` the command failed by itself and had reported no step.
        """
        self._is_ending = True
        self.agree()
        if has_failed and self._has_found and not self._has_saved:
            self._kept = self._kept.fail()
            self._begin_commit()
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
        while self._kept != self._committed:
            kept, loose = self._kept, frozenset(self._loose)
            try:
                self._is_fenced = not await asyncio.to_thread(self._write, kept)
            except (StorageError, OSError) as error:
                self._report_refused(error)
                return
            if self._is_fenced:
                return
            self._is_refused = False
            self._committed = kept
            self._loose -= loose
            self._report(kept, loose)

    def _write(self, kept: OutputHistory) -> bool:
        """Commit them; False when a newer attempt writes now."""
        if self._checkpoints.is_fenced(self._plan.attempt):
            return False
        self._catalog.commit(kept, self._plan.attempt, self._now())
        return True

    def _remove(self, folders: frozenset[str]) -> None:
        # What the storage does not remove now, the next attempt does.
        with contextlib.suppress(StorageError, OSError):
            if not self._checkpoints.is_fenced(self._plan.attempt):
                self._catalog.forget(folders)

    def _report_refused(self, error: Exception) -> None:
        if not self._is_refused:
            self._is_refused = True
            text = f"The outputs were not stored: {error}."
            self._account.event("attempt.outputs_refused", text[:1000])

    def _report(self, kept: OutputHistory, without: frozenset[str]) -> None:
        """Report the list, and remember what to remove when it has replaced the one before."""
        body = {
            "location": self._catalog.location,
            "committed_at": self._now(),
            "files": {
                file.name: {"size_bytes": file.size_bytes, "sha256": file.sha256, "stored": file.stored}
                for file in kept.newest.files.values()
            },
        }
        seq = self._account.put_whole("output", body)
        if seq is None:
            return
        # What lists before this one left out may go when this one is stored: those may never be.
        loose = without.union(*(folders for _, folders in self._replaced))
        self._replaced = [(seq, loose)] if loose else []


def _size_of(files: Mapping[str, OutputFile]) -> int:
    """Bytes of these files."""
    return sum(file.size_bytes for file in files.values())
