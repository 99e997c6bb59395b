"""Decides when what several workers wrote into an output becomes one version of it (pure; time is an argument).

The driver asks all workers to scan their folders, round after round.  A worker answers, for each output, how often it
has found it changed, and whether anything in it is being written or is not stored yet.  An output that a worker reports
as at rest before a round begins, and again in that round, unchanged, was at rest at the instant in which the round
began.  When all workers that are needed report so, the files at that instant are one state, and become a version.

Needed are the workers that wrote to the output now and those that wrote to its newest version; all workers while it has
none.  A lost worker never answers again, so nothing that it took part in becomes a version without it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from trainers.outputs.manifest import (
    Changes,
    End,
    OutputFile,
    folders_of,
    is_log,
    merge,
    output_of,
    without_clashes,
    without_folders,
)
from trainers.outputs.versions import is_commit

#: Seconds that an output at rest waits for a worker that wrote to such a folder before and has not written to this one,
#: and for the others when no worker has written to such a folder before.
LATE_S, FIRST_S = 60.0, 15.0
#: Folders that differ in numbers alone are alike: `checkpoint-20`, `checkpoint-40`.
_NUMBER = re.compile(r"[0-9]+")

Group = tuple[int, int]


@dataclass
class _Pending:
    """What one worker did to one output since its newest version."""

    written: dict[str, OutputFile] = field(default_factory=dict)
    removed: set[str] = field(default_factory=set)
    removed_folders: set[str] = field(default_factory=set)

    @property
    def touched(self) -> set[str]:
        """Folders of the written files, apart from logs."""
        return {_folder(file.name) for file in self.written.values() if not _is_log(file)}

    def without(self, folders: Collection[str]) -> tuple[tuple[OutputFile, ...], _Pending]:
        """The files outside these folders, and those inside."""
        written = tuple(file for name, file in self.written.items() if _folder(name) not in folders)
        inside = {name: file for name, file in self.written.items() if _folder(name) in folders}
        return written, _Pending(written=inside)

    def write(self, file: OutputFile) -> str | None:
        """Take a stored file; returns the folder in the storage of the one that it replaces."""
        before = self.written.get(file.name)
        self.written[file.name] = file
        self.removed.discard(file.name)
        self.removed_folders.difference_update(folders_of(file.name))
        return before.folder if before is not None else None

    def remove(self, name: str) -> str | None:
        before = self.written.pop(name, None)
        self.removed.add(name)
        return before.folder if before is not None else None


@dataclass
class _Worker:
    """What one worker has reported."""

    group: Group
    #: Number of the newest round in which it looked.
    round: int = -1
    change_counts: Mapping[str, int] = field(default_factory=dict)
    busy: frozenset[str] = frozenset()
    #: Outputs that it reported as at rest before the newest round began, with how often they had changed by then.
    rested: dict[str, int] = field(default_factory=dict)
    end: End | None = None
    #: Bytes of its folder when they are more than the job may keep, else 0.
    excess_bytes: int = 0
    pending: dict[str, _Pending] = field(default_factory=dict)
    #: Outputs whose state was shared with a worker that was lost, as often as they had changed by then.
    tainted: dict[str, int] = field(default_factory=dict)

    def change_count(self, output: str) -> int:
        return self.change_counts.get(output, 0)

    @property
    def folders(self) -> set[str]:
        return {file.folder for pending in self.pending.values() for file in pending.written.values()}


@dataclass(frozen=True)
class Agreed:
    """The outputs with what became one version of them."""

    files: dict[str, OutputFile]
    #: Folders in the storage of files that were stored for it and are not in it.
    loose: frozenset[str]


class Rounds:
    """The reports of one attempt's workers on their outputs folders, by slot."""

    def __init__(self, outputs: Collection[str], commits: Mapping[str, str]) -> None:
        """`outputs` are the names of the job's outputs, `commits` names of files that are written last, by output."""
        self._outputs = frozenset(outputs)
        self._commits = dict(commits)
        self._workers: dict[int, _Worker] = {}
        #: Rank of each slot in the worker group, also of those that are lost until another group follows.
        self._ranks: dict[int, int] = {}
        #: The first group that these processes were in.
        self._first: Group = (0, 0)
        #: Number of the newest round.
        self.number = 0
        #: Since when an output waits for a late worker.
        self._late_since: dict[str, float] = {}
        #: Ranks that wrote to the newest version of each output, and of the newest of folders that are alike.
        self._writers: dict[str, frozenset[int]] = {}
        self._usual: dict[str, frozenset[int]] = {}
        #: The numbers of the newest of folders that are alike to which rank 0 wrote, and all folders of the outputs.
        self._led: dict[str, tuple[int, ...]] = {}
        self._folders: frozenset[str] = frozenset()

    @property
    def has_pending(self) -> bool:
        """True while some worker of the group has reported changes that are in no version."""
        return any(self._workers[slot].pending for slot in self._ranks)

    @property
    def excess(self) -> tuple[int, int] | None:
        """The lowest rank that stores nothing new, because its folder has more bytes than allowed, and how many."""
        return min(
            (
                (rank, self._workers[slot].excess_bytes)
                for slot, rank in self._ranks.items()
                if self._workers[slot].excess_bytes
            ),
            default=None,
        )

    @property
    def is_waiting(self) -> bool:
        """True while time alone may make something a version."""
        return bool(self._late_since)

    @property
    def is_done(self) -> bool:
        """True when the command of every worker returned 0."""
        return bool(self._ranks) and all(self._workers[slot].end == "clean" for slot in self._ranks)

    @property
    def wants_another(self) -> bool:
        """True when another round can make something a version that is at rest as far as is known."""
        return any(self._is_unconfirmed(output) for output in self._pending_outputs())

    def _is_unconfirmed(self, output: str) -> bool:
        needed = [self._workers[slot] for slot in self._needed(output)]
        if any(
            output in worker.busy or worker.change_count(output) == worker.tainted.get(output)
            for worker in needed
        ):
            return False
        return any(
            worker.end is None and worker.rested.get(output) != worker.change_count(output)
            for worker in needed
        )

    def know(self, files: Mapping[str, OutputFile]) -> None:
        """Take these as the current outputs."""
        saved = [file for file in files.values() if not _is_log(file)]
        self._writers = _newest_ranks((output_of(file.name, self._outputs), file) for file in saved)
        self._usual = _newest_ranks((_alike(_folder(file.name)), file) for file in saved)
        self._led = _newest_numbers(_folder(file.name) for file in saved if file.rank == 0)
        self._folders = frozenset(_folder(name) for name in files)

    def begin(self, ranks: Mapping[int, int], group: Group) -> set[str]:
        """A worker group of new processes begins; returns folders of what became no version."""
        loose = set[str]().union(*(worker.folders for worker in self._workers.values()))
        self._workers = {slot: _Worker(group) for slot in ranks}
        self._ranks, self._first = dict(ranks), group
        self._late_since.clear()
        return loose

    def follow(self, ranks: Mapping[int, int]) -> set[str]:
        """The same processes have other ranks, some went, some came; returns folders of what became no version.

        What others share with one that went stays no version until they have changed it again.
        """
        loose: set[str] = set()
        gone = {slot for slot in self._ranks if slot not in ranks}
        for output in self._pending_outputs():
            if any(self._workers[slot].end is None for slot in self._needed(output) & gone):
                for worker in self._workers.values():
                    if output in worker.pending:
                        worker.tainted[output] = worker.change_count(output)
        for slot in gone:
            loose |= self._workers.pop(slot).folders
        for slot in ranks:
            self._workers.setdefault(slot, _Worker(self._first))
        self._ranks = dict(ranks)
        return loose

    def open(self) -> int:
        """Begin the next round; returns its number, which every worker has to be asked with."""
        self.number += 1
        for worker in self._workers.values():
            worker.rested = {
                output: worker.change_count(output)
                for output in (*self._outputs, "")
                if output not in worker.busy
            }
            if worker.round < 0 and worker.end is None:
                worker.rested.clear()
        return self.number

    def receive(self, slot: int, changes: Changes) -> set[str]:
        """Take a worker's report; returns folders of files in the storage that are not needed any more."""
        if changes.group < self._first:
            return {file.folder for file in changes.written}
        # One that is about to join has no rank yet.
        worker = self._workers.setdefault(slot, _Worker(changes.group))
        worker.group = changes.group
        worker.round = max(worker.round, changes.round)
        worker.change_counts, worker.busy = dict(changes.change_counts), changes.busy
        worker.end, worker.excess_bytes = changes.end, changes.excess_bytes
        for output in changes.busy:
            self._late_since.pop(output, None)
        replaced: set[str | None] = set()
        for name in changes.removed:
            replaced.add(self._pending(worker, name).remove(name))
        for folder in changes.removed_folders:
            self._pending(worker, f"{folder}/").removed_folders.add(folder)
        for file in changes.written:
            replaced.add(self._pending(worker, file.name).write(file))
        return {folder for folder in replaced if folder is not None}

    def _pending(self, worker: _Worker, name: str) -> _Pending:
        return worker.pending.setdefault(output_of(name, self._outputs), _Pending())

    def agree(self, files: Mapping[str, OutputFile], now: float) -> Agreed | None:
        """The outputs after everything that has become one state of an output; None when nothing has.

        The caller that commits them as a version calls `know`.
        `files` are what the worker group began with or agreed on last; `now` is seconds on a clock that never jumps.
        """
        whole = [output for output in self._pending_outputs() if self._is_whole(output, now)]
        if not whole:
            return None
        held = {output: self._held(output) for output in whole}
        merged, loose = dict(files), set[str]()
        removed: dict[str, tuple[int, Group]] = {}
        for slot in sorted(self._ranks, key=lambda slot: self._ranks[slot]):
            worker, rank = self._workers[slot], self._ranks[slot]
            for output in whole:
                pending = worker.pending.pop(output, None)
                worker.tainted.pop(output, None)
                if pending is None:
                    continue
                written, left = pending.without(held[output])
                if left.written:
                    worker.pending[output] = left
                loose |= {file.folder for file in written}
                gone = tuple(pending.removed)
                merged = merge(merged, Changes(rank=rank, group=worker.group, written=written, removed=gone))
                for folder in pending.removed_folders:
                    removed.setdefault(folder, (rank, worker.group))
        for output in whole:
            self._late_since.pop(output, None)
        merged = without_clashes(without_folders(merged, removed))
        return Agreed(merged, frozenset(loose - {file.folder for file in merged.values()}))

    def _pending_outputs(self) -> list[str]:
        found = {output for slot in self._ranks for output in self._workers[slot].pending}
        return sorted(output for output in found if self.is_done or self._has_more(output))

    def _has_more(self, output: str) -> bool:
        """True when something is pending besides what is held back."""
        held = self._held(output)
        return not held or any(
            pending.removed or pending.removed_folders or pending.without(held)[0]
            for slot in self._ranks
            if (pending := self._workers[slot].pending.get(output)) is not None
        )

    def _touched(self, output: str) -> dict[str, set[int]]:
        """Folders of an output to which there is something pending, with the ranks that wrote it."""
        touched: dict[str, set[int]] = {}
        for slot, rank in self._ranks.items():
            if (pending := self._workers[slot].pending.get(output)) is not None:
                for folder in pending.touched:
                    touched.setdefault(folder, set()).add(rank)
        return touched

    def _held(self, output: str) -> set[str]:
        """Folders that rank 0 has left out, or removed before it was asked: it wrote to a later one of their kind.

        What others wrote into them is no version as long as any command runs.
        """
        if self.is_done or 0 not in self._ranks.values():
            return set()
        touched = self._touched(output)
        led = _newest_numbers(folder for folder, ranks in touched.items() if 0 in ranks)
        return {
            folder
            for folder, ranks in touched.items()
            if 0 not in ranks
            and folder not in self._folders
            and _numbers(folder) < max(led.get(_alike(folder), ()), self._led.get(_alike(folder), ()))
        }

    def _needed(self, output: str) -> set[int]:
        """Slots whose reports a version of this output needs."""
        writers = self._writers.get(output, frozenset())
        known = {slot for slot, rank in self._ranks.items() if rank in writers}
        if not known:
            return set(self._ranks)
        return known | {slot for slot in self._ranks if output in self._workers[slot].pending}

    def _is_whole(self, output: str, now: float) -> bool:
        if self.is_done:
            # No worker group goes on from here: the present state is the result.
            return True
        needed = [self._workers[slot] for slot in self._needed(output)]
        if any(output in worker.busy for worker in needed):
            return False
        if any(worker.tainted.get(output) == worker.change_count(output) for worker in needed):
            return False
        if not all(worker.end is not None for worker in needed) and not all(
            worker.rested.get(output) == worker.change_count(output)
            and (worker.end is not None or worker.round >= self.number)
            for worker in needed
        ):
            return False
        return self._is_committed(output, needed) and not self._is_late(output, now)

    def _is_committed(self, output: str, needed: Iterable[_Worker]) -> bool:
        """True when the file that the script writes last is there, if it has named one."""
        commit = self._commits.get(output)
        return commit is None or any(
            is_commit(name, commit)
            for worker in needed
            if output in worker.pending
            for name in worker.pending[output].written
        )

    def _is_late(self, output: str, now: float) -> bool:
        """True while a worker that has to be expected to write to a folder as the others did has not, and may still."""
        held = self._held(output)
        touched = {folder: ranks for folder, ranks in self._touched(output).items() if folder not in held}
        running = {rank for slot, rank in self._ranks.items() if self._workers[slot].end is None}
        patience_s = 0.0
        for folder, ranks in touched.items():
            usual = self._usual.get(_alike(folder), frozenset()) & set(self._ranks.values())
            if (usual or running) & running - ranks:
                patience_s = max(patience_s, LATE_S if usual else FIRST_S)
        if not patience_s:
            return False
        return now - self._late_since.setdefault(output, now) < patience_s


def _is_log(file: OutputFile) -> bool:
    return file.is_grown or is_log(file.name)


def _folder(name: str) -> str:
    return name.rpartition("/")[0]


def _alike(folder: str) -> str:
    return _NUMBER.sub("0", folder)


def _numbers(folder: str) -> tuple[int, ...]:
    return tuple(int(number[:18]) for number in _NUMBER.findall(folder))


def _newest_numbers(folders: Iterable[str]) -> dict[str, tuple[int, ...]]:
    """The highest numbers in names of folders that are alike."""
    newest: dict[str, tuple[int, ...]] = {}
    for folder in folders:
        alike = _alike(folder)
        newest[alike] = max(newest.get(alike, ()), _numbers(folder))
    return newest


def _newest_ranks(files: Iterable[tuple[str, OutputFile]]) -> dict[str, frozenset[int]]:
    """Under each key, the ranks that wrote files of its newest version."""
    newest: dict[str, tuple[int, set[int]]] = {}
    for key, file in files:
        version, ranks = newest.get(key, (-1, set()))
        if file.version > version:
            newest[key] = (file.version, {file.rank})
        elif file.version == version:
            ranks.add(file.rank)
    return {key: frozenset(ranks) for key, (_, ranks) in newest.items()}
