"""The outputs folder of one rank: filled with what the job has, and watched for what its script writes there."""

from __future__ import annotations

import logging
import os
import stat
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from trainers.outputs.catalog import OutputsCatalog, OutputsDamaged
from trainers.outputs.manifest import Changes, OutputFile
from trainers.storage import StorageError
from trainers.supervisor.environment import Place

log = logging.getLogger(__name__)

#: Seconds between two looks into the folder while the script runs.
_EVERY_S = 10.0
#: Seconds since its last change after which a file is taken for complete while its script runs, or was killed.
_SETTLED_S = 2.0
#: Seconds before each further try to store what the storage did not take when the worker ends.
_PAUSES_S = (0.5, 2.0)
#: Files of one rank; more of them belong into an archive.
MAX_FILES = 5_000
#: Characters of a file's name at most.
_NAME_LENGTH = 500

#: What changes when a file is written: its size in bytes and its time in nanoseconds.
_Trace = tuple[int, int]


class Collecting:
    """Puts what is new in a rank's outputs folder into the storage, and tells what it put there."""

    def __init__(
        self,
        folder: Path,
        catalog: OutputsCatalog,
        place: Callable[[], Place],
        tell: Callable[[Changes], None],
        complain: Callable[[str], None],
    ) -> None:
        """`tell` hears what is stored, `complain` one sentence on what cannot be; both from another thread."""
        self.folder = folder
        self._catalog = catalog
        self._place = place
        self._tell = tell
        self._complain = complain
        self._known: dict[str, _Trace] = {}
        self._complained: set[str] = set()
        #: Names that the storage did not take in the newest round.
        self._unstored: set[str] = set()
        self._wake = threading.Event()
        self._is_over = False
        self._thread = threading.Thread(target=self._watch, name="outputs", daemon=True)

    def fill(self, files: Mapping[str, OutputFile], outputs: Iterable[str]) -> None:
        """Make the folder, with the job's files and a folder for each named output.  Raises StorageError."""
        self.folder.mkdir(exist_ok=True)
        self._fetch(files)
        for name in outputs:
            try:
                (self.folder / name).mkdir(exist_ok=True)
            except FileExistsError:
                self._complain_once(f"the output {name} is a file: a script put it where its folder was")
        self._known = {name: trace for name, _, trace in self._files()}

    def _fetch(self, files: Mapping[str, OutputFile]) -> None:
        """Copy the job's files; of one that was replaced since the list was made, the version that replaced it."""
        newest: Mapping[str, OutputFile] | None = None
        for name, file in files.items():
            try:
                self._catalog.fetch((file,), self.folder)
            except FileNotFoundError:
                newest = self._newest() if newest is None else newest
                self._fetch_again(file, newest.get(name))

    def _newest(self) -> Mapping[str, OutputFile]:
        try:
            return self._catalog.newest()
        except OutputsDamaged as error:
            raise StorageError(f"the list of the job's outputs cannot be read: {error}") from error

    def _fetch_again(self, old: OutputFile, new: OutputFile | None) -> None:
        if new is None:
            return
        try:
            self._catalog.fetch((new,), self.folder)
        except FileNotFoundError as error:
            raise StorageError(f"the output {old.name} is not in the storage any more") from error

    def start(self) -> None:
        """Begin to look into the folder now and then."""
        self._thread.start()

    def hurry(self) -> None:
        """Look into it now: the machine goes."""
        self._wake.set()

    def finish(self, *, was_killed: bool) -> None:
        """Take what is there at the end; of a killed script only what it had finished writing."""
        self._is_over = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()
        settled_s = _SETTLED_S if was_killed else 0.0
        self._look(settled_s)
        for pause_s in _PAUSES_S:
            if self._unstored:
                time.sleep(pause_s)
                self._look(settled_s)
        if self._unstored:
            self._tell(self._changes(self._place(), unstored=tuple(sorted(self._unstored))))

    def _watch(self) -> None:
        while not self._is_over:
            self._wake.wait(_EVERY_S)
            self._wake.clear()
            if not self._is_over:
                self._look(_SETTLED_S)

    def _look(self, settled_s: float) -> None:
        """One round; whatever a script does to its folder meanwhile, the next round comes."""
        try:
            if self.folder.is_dir():
                self._collect(settled_s)
        except Exception as error:
            log.exception("looking into %s failed", self.folder)
            self._complain_once(f"the outputs folder could not be looked through: {error!r}"[:1000])

    def _collect(self, settled_s: float) -> None:
        """Store files that changed and were left alone for so many seconds, and tell."""
        place, written, fresh = self._place(), [], {}
        settled_ns = time.time_ns() - int(settled_s * 1e9)
        self._unstored.clear()
        for name, path, trace in self._files():
            if self._known.get(name) == trace or (settled_s and trace[1] > settled_ns):
                continue
            try:
                file = self._catalog.put(path, name, place)
            except (StorageError, OSError) as error:
                self._complain_once(f"the output {name} could not be stored: {error}")
                self._unstored.add(name)
                continue
            if file is not None:
                fresh[name] = trace
                written.append(file)
        # Not seen is not gone: the walk may have been cut, or a folder not readable for a moment.
        removed = tuple(sorted(name for name in self._known if _is_gone(self.folder / name)))
        if written or removed:
            self._tell(self._changes(place, written=tuple(written), removed=removed))
        self._known |= fresh
        for name in removed:
            self._known.pop(name, None)

    def _changes(self, place: Place, **names: Any) -> Changes:
        return Changes(rank=place.rank, group=(place.attempt, place.generation), **names)

    def _files(self) -> list[tuple[str, Path, _Trace]]:
        """Files below the folder by their names; links, what is no file and what is too much are left out."""
        files = sorted(self._walk())
        if len(files) > MAX_FILES:
            self._complain_once(
                f"more than {MAX_FILES} files are in the outputs folder; put them into an archive"
            )
            # What is stored already keeps its place: else new files would push out the ones before.
            files.sort(key=lambda file: file[0] not in self._known)
        return files[:MAX_FILES]

    def _walk(self) -> Iterator[tuple[str, Path, _Trace]]:
        """What is there; a folder or file that vanishes meanwhile is passed over."""
        for folder, folders, names in os.walk(self.folder):
            if len(folder) - len(str(self.folder)) > _NAME_LENGTH:
                folders.clear()
            for path in (Path(folder, name) for name in names):
                name = path.relative_to(self.folder).as_posix()
                trace = _trace(path)
                if trace is None:
                    continue
                if name.isprintable() and len(name) <= _NAME_LENGTH:
                    yield name, path, trace
                else:
                    self._complain_once(
                        f"the output {name[:100]!a} is not kept: its name has to be short and printable"
                    )

    def _complain_once(self, sentence: str) -> None:
        if sentence not in self._complained:
            self._complained.add(sentence)
            self._complain(sentence)


def _trace(path: Path) -> _Trace | None:
    """How the file is now; None when it is none, or cannot be looked at."""
    try:
        status = path.lstat()
    except OSError:
        return None
    return (status.st_size, status.st_mtime_ns) if stat.S_ISREG(status.st_mode) else None


def _is_gone(path: Path) -> bool:
    try:
        return not stat.S_ISREG(path.lstat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
