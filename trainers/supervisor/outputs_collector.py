"""The outputs folder of one rank: filled with the job's outputs, and scanned for files that its script writes."""

from __future__ import annotations

import itertools
import logging
import os
import shutil
import stat
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from trainers.confined_folders import MAX_DEPTH, ConfinedFolder
from trainers.outputs.catalog import OutputsCatalog, OutputsDamaged
from trainers.outputs.manifest import Changes, End, OutputFile, folders_of, is_log, output_of
from trainers.storage import StorageError
from trainers.worker_identity import WorkerIdentity

log = logging.getLogger(__name__)

#: Seconds between two scans of the folder while the script runs.
_EVERY_S = 10.0
#: Seconds since its last change after which a file is taken for complete while its script runs, or was killed.
_SETTLED_S = 2.0
#: Seconds before each further try to store what the storage did not take when the worker ends.
_PAUSES_S = (0.5, 2.0)
#: Files of one rank; more of them belong into an archive.
MAX_FILES = 5_000
#: Files, and folders, that one scan looks at.
_MAX_SEEN = 4 * MAX_FILES
#: Bytes stored after one scan while the script runs; the rest follows after the next one.
_SCAN_BYTES = 8 << 30
#: A file of at most _LOG_BYTES that changed in every scan for _RESTLESS_S seconds is a log: no version waits for it;
#: it is stored again after _LOG_EVERY_S seconds.
_LOG_BYTES, _RESTLESS_S, _LOG_EVERY_S = 64 << 20, 30.0, 60.0
#: Characters of a file's name at most.
_NAME_LENGTH = 500

#: What changes when a file is written: its inode, its size in bytes and its time in nanoseconds.
_Trace = tuple[int, int, int]


class OutputsCollector:
    """Stores what is new in a rank's outputs folder, and reports what it stored."""

    def __init__(
        self,
        folder: Path,
        catalog: OutputsCatalog,
        identity: Callable[[], WorkerIdentity],
        on_changes: Callable[[Changes], None],
        on_problem: Callable[[str], None],
        *,
        outputs: tuple[str, ...] = (),
        paths: Mapping[str, str] | None = None,
        most_bytes: int | None = None,
    ) -> None:
        """`on_changes` gets what was stored, `on_problem` a sentence on what cannot be; both from another thread.

        `outputs` are the names of the job's outputs; `paths` those that are one file of the working folder, by path.
        While the folder has more than `most_bytes` nothing new of it is stored.
        """
        self.folder = folder
        self._catalog = catalog
        self._identity = identity
        self._on_changes = on_changes
        self._on_problem = on_problem
        self._outputs = outputs
        #: Paths below the working folder, by the name of the file among the outputs.
        self._most_bytes = most_bytes
        #: Bytes in the folder when these are more than that, in the newest look that found something new; else 0.
        self._excess_bytes = 0
        self._paths = {f"{name}/{PurePosixPath(path).name}": path for path, name in (paths or {}).items()}
        #: The working folder, when this rank collects for its node what lies there.
        self._code: Path | None = None
        self._known: dict[str, _Trace] = {}
        #: What each name held when this rank found or stored it.
        self._held: dict[str, OutputFile] = {}
        #: How each file was in the newest look, and since when, on a clock that never jumps.
        self._seen: dict[str, tuple[_Trace, float]] = {}
        #: Since when a file has been found changed in every look, and when it was stored as a log.
        self._moving: dict[str, float] = {}
        self._logged: dict[str, float] = {}
        #: How often each output was found changed.
        self._change_counts: dict[str, int] = {}
        self._busy: frozenset[str] = frozenset()
        self._round = 0
        self._reported: set[str] = set()
        #: Names that the storage did not take in the newest look.
        self._unstored: set[str] = set()
        self._wake = threading.Event()
        #: When the script ended, seconds since 1970; None while it runs.
        self._ended_at: float | None = None
        self._is_over = False
        self._thread = threading.Thread(target=self._watch, name="outputs", daemon=True)

    def fill(self, files: Mapping[str, OutputFile]) -> None:
        """Make the folder, with the job's files and a folder for each named output.  Raises StorageError."""
        self.folder.mkdir(exist_ok=True)
        self._fetch(files)
        for name in self._outputs:
            try:
                (self.folder / name).mkdir(exist_ok=True)
            except FileExistsError:
                self._report_once(f"the output {name} is a file: a script put it where its folder was")
        self._known = {name: trace for name, _, trace in self._files()}
        now = time.monotonic()
        self._seen = {name: (trace, now) for name, trace in self._known.items()}

    def _fetch(self, files: Mapping[str, OutputFile]) -> None:
        """Copy the job's files; when one was replaced since the list was made, those of the newer version."""
        try:
            self._fetch_all(files)
        except FileNotFoundError:
            newest = self._newest()
            for name in files.keys() - newest.keys():
                (self._aside(name) / name).unlink(missing_ok=True)
            try:
                self._fetch_all(newest)
            except FileNotFoundError as error:
                raise StorageError(f"an output is not in the storage any more: {error}") from error

    def _fetch_all(self, files: Mapping[str, OutputFile]) -> None:
        for name, file in files.items():
            self._catalog.fetch((file,), self._aside(name))
        self._held = dict(files)

    def _aside(self, name: str) -> Path:
        """Where a file is copied to: the outputs folder, or beside it when it has its place in the working folder."""
        return self._fetched if name in self._paths else self.folder

    @property
    def _fetched(self) -> Path:
        return self.folder.with_name(f"{self.folder.name}-files")

    def _newest(self) -> Mapping[str, OutputFile]:
        try:
            return self._catalog.newest().start.files
        except OutputsDamaged as error:
            raise StorageError(f"the list of the job's outputs cannot be read: {error}") from error

    def place_files(self, code: Path, *, is_first: bool, collects: bool) -> None:
        """Put files whose place is in the working folder there: by the first worker of a node that comes.

        With `collects` this worker stores what the script makes of them.  Raises OSError.
        """
        if is_first:
            with ConfinedFolder(code) as opened:
                for name, path in self._paths.items():
                    fetched = self._fetched / name
                    if fetched.exists():
                        opened.remove(path)
                        with fetched.open("rb") as source, opened.open_to_write(path, is_new=True) as target:
                            shutil.copyfileobj(source, target)
        if collects:
            self._code = code
            for name, _, trace in self._beside():
                self._known[name], self._seen[name] = trace, (trace, time.monotonic())

    def start(self) -> None:
        """Begin to scan the folder periodically."""
        self._thread.start()

    def scan_now(self) -> None:
        """Scan it now: the machine is preempted."""
        self._wake.set()

    def scan(self, number: int) -> None:
        """Scan it now, for the driver's round of that number."""
        self._round = max(self._round, number)
        self._wake.set()

    def note_end(self) -> None:
        """The script has ended: nothing is written any more."""
        if self._ended_at is None:
            self._ended_at = time.time()

    def finish(self, *, end: End) -> None:
        """Take what is there at the end; of a killed script only what it had finished writing."""
        self.note_end()
        self._is_over = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()
        settled_s = _SETTLED_S if end == "killed" else 0.0
        self._scan(settled_s)
        for pause_s in _PAUSES_S:
            if self._unstored:
                time.sleep(pause_s)
                self._scan(settled_s)
        self._on_changes(self._changes(self._identity(), end=end, unstored=tuple(sorted(self._unstored))))

    def _watch(self) -> None:
        pause_s = _EVERY_S
        while not self._is_over:
            self._wake.wait(pause_s)
            self._wake.clear()
            if not self._is_over:
                self._scan(_SETTLED_S)
                # Once, for what was just written: a file that changes all the time is not looked at all the time.
                pause_s = _SETTLED_S if self._busy and pause_s != _SETTLED_S else _EVERY_S

    def _scan(self, settled_s: float) -> None:
        """Scan once; an error, whatever the script does to its folder, is reported and does not end the thread."""
        number = self._round
        try:
            if self.folder.is_dir():
                self._collect(settled_s, number)
        except Exception as error:
            log.exception("looking into %s failed", self.folder)
            # The state of the folder is unknown: until the next scan all outputs count as busy.
            self._busy = frozenset((*self._outputs, ""))
            self._report_once(f"the outputs folder could not be looked through: {error!r}"[:1000])

    def _collect(self, settled_s: float, number: int) -> None:
        """Store files that changed and were not changed for `settled_s` seconds, and report them."""
        identity, now = self._identity(), time.monotonic()
        found = self._files()
        self._compare({name: trace for name, _, trace in found}, now)
        fresh = [file for file in found if self._known.get(file[0]) != file[2]]
        busy = {
            output_of(name, self._outputs)
            for name, _, trace in fresh
            if settled_s and not self._is_log(name, trace, now) and not self._is_settled(name, trace, now)
        }
        # Checked before anything is copied: of a folder that is too large nothing is stored.
        size = sum(trace[1] for _, _, trace in found)
        self._excess_bytes = size if fresh and self._most_bytes is not None and size > self._most_bytes else 0
        if self._excess_bytes:
            busy.update(output_of(name, self._outputs) for name, _, _ in fresh)
        written = self._store(fresh, busy, identity, now, is_last=not settled_s or self._ended_at is not None)
        # A file that was not seen may still be there: the walk may have been cut, or a folder not readable.
        removed = tuple(sorted(name for name in self._known if _is_gone(self._path(name))))
        folders = sorted({folder for name in removed for folder in folders_of(name)})
        gone = tuple(folder for folder in folders if not os.path.lexists(self.folder / folder))
        for name in removed:
            self._known.pop(name, None)
        self._busy = frozenset(busy)
        changes = self._changes(
            identity, written=tuple(written), removed=removed, removed_folders=gone, number=number
        )
        if written or removed or number or self._change_counts:
            self._on_changes(changes)

    def _compare(self, traces: Mapping[str, _Trace], now: float) -> None:
        """Note which files have changed since the look before, and which outputs with them."""
        changed = {name for name, trace in traces.items() if self._seen.get(name, (None,))[0] != trace}
        changed |= {name for name in self._seen if name not in traces and _is_gone(self._path(name))}
        for name in changed:
            self._moving.setdefault(name, now)
        for name in self._moving.keys() - changed:
            del self._moving[name]
        turned = {
            output_of(name, self._outputs)
            for name in changed
            if name not in traces or not self._is_log(name, traces[name], now)
        }
        for output in turned:
            self._change_counts[output] = self._change_counts.get(output, 0) + 1
        self._seen = {
            name: (trace, now) if name in changed or name not in self._seen else self._seen[name]
            for name, trace in traces.items()
        }

    def _is_log(self, name: str, trace: _Trace, now: float) -> bool:
        """True for a file that is written to all the time: no version waits until it is at rest."""
        since = self._moving.get(name, now)
        return is_log(name) or (now - since >= _RESTLESS_S and trace[1] <= _LOG_BYTES)

    def _is_settled(self, name: str, trace: _Trace, now: float) -> bool:
        """True when the file was not changed for _SETTLED_S seconds while the script ran."""
        if self._ended_at is None and now - self._seen[name][1] >= _SETTLED_S:
            return True
        until = time.time() if self._ended_at is None else self._ended_at
        return trace[2] <= int((until - _SETTLED_S) * 1e9)

    def _store(
        self,
        fresh: list[tuple[str, Path, _Trace]],
        busy: set[str],
        identity: WorkerIdentity,
        now: float,
        *,
        is_last: bool,
    ) -> list[OutputFile]:
        """Store files of outputs that are at rest; one that cannot be stored yet makes its output busy."""
        written, left = [], _SCAN_BYTES
        self._unstored.clear()
        for name, path, trace in fresh:
            output, is_log_now = output_of(name, self._outputs), self._is_log(name, trace, now)
            if output in busy or (
                is_log_now and not is_last and now - self._logged.get(name, -1e9) < _LOG_EVERY_S
            ):
                continue
            if left <= 0 and not is_last:
                busy.add(output)
                continue
            left -= trace[1]
            try:
                file = self._put(name, path, identity)
            except (StorageError, OSError) as error:
                self._report_once(f"the output {name} could not be stored: {error}")
                self._unstored.add(name)
                busy.add(output)
                continue
            if file is not None:
                self._known[name], self._held[name] = trace, file
                self._logged[name] = now
                written.append(file)
            elif not is_log_now:
                busy.add(output)
        return written

    def _put(self, name: str, path: Path, identity: WorkerIdentity) -> OutputFile | None:
        root = self.folder if self._code is None or name not in self._paths else self._code
        with ConfinedFolder(root) as opened:
            relative = path.relative_to(root).as_posix()
            return self._catalog.put(opened, relative, name, identity, self._held.get(name))

    def _changes(self, identity: WorkerIdentity, *, number: int | None = None, **names: Any) -> Changes:
        return Changes(
            rank=identity.rank,
            group=(identity.attempt, identity.generation),
            round=self._round if number is None else number,
            change_counts=dict(self._change_counts),
            busy=self._busy,
            excess_bytes=self._excess_bytes,
            **names,
        )

    def _path(self, name: str) -> Path:
        """Where a file of that name lies."""
        if self._code is not None and name in self._paths:
            return self._code / self._paths[name]
        return self.folder / name

    def _files(self) -> list[tuple[str, Path, _Trace]]:
        """Files below the folder by their names; links, what is no file and what is too much are left out."""
        found = itertools.islice(self._walk(), _MAX_SEEN)
        files = sorted([*self._beside(), *(file for file in found if file[0] not in self._paths)])
        if len(files) > MAX_FILES:
            self._report_once(
                f"more than {MAX_FILES} files are in the outputs folder; put them into an archive"
            )
            # What is stored already keeps its place: else new files would push out the ones before.
            files.sort(key=lambda file: file[0] not in self._known)
        return files[:MAX_FILES]

    def _beside(self) -> Iterator[tuple[str, Path, _Trace]]:
        """Files that have their place in the working folder."""
        if self._code is None:
            return
        for name, path in self._paths.items():
            there = self._code / path
            if (trace := _trace(there)) is not None:
                yield name, there, trace
            elif there.is_dir():
                self._report_once(f"{path} is a folder and is not kept: its output has the path of a file")

    def _walk(self) -> Iterator[tuple[str, Path, _Trace]]:
        """What is there; a folder or file that vanishes meanwhile is passed over."""
        for count, (folder, folders, names) in enumerate(os.walk(self.folder)):
            if count >= _MAX_SEEN:
                self._report_once(
                    f"more than {_MAX_SEEN} folders are in the outputs folder: not all are kept"
                )
                return
            above = folder[len(str(self.folder)) :]
            if len(above) > _NAME_LENGTH or above.count("/") >= MAX_DEPTH:
                folders.clear()
            for path in (Path(folder, name) for name in names):
                name = path.relative_to(self.folder).as_posix()
                trace = _trace(path)
                if trace is None:
                    continue
                if not name.isprintable() or len(name) > _NAME_LENGTH:
                    self._report_once(
                        f"the output {name[:100]!a} is not kept: its name has to be short and printable"
                    )
                elif name.count("/") >= MAX_DEPTH:
                    self._report_once(
                        f"the output {name[:100]!a} is not kept: it lies in {MAX_DEPTH} folders or more"
                    )
                else:
                    yield name, path, trace

    def _report_once(self, sentence: str) -> None:
        if sentence not in self._reported:
            self._reported.add(sentence)
            self._on_problem(sentence)


def _trace(path: Path) -> _Trace | None:
    """Inode, size and time of a file; None when it is no regular file, or cannot be read."""
    try:
        status = path.lstat()
    except OSError:
        return None
    return (status.st_ino, status.st_size, status.st_mtime_ns) if stat.S_ISREG(status.st_mode) else None


def _is_gone(path: Path) -> bool:
    try:
        return not stat.S_ISREG(path.lstat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
