"""The outputs folder of one rank: filled with what the job has, and watched for what its script writes there."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from trainers.outputs.catalog import OutputsCatalog
from trainers.outputs.manifest import Changes, OutputFile
from trainers.storage import StorageError
from trainers.supervisor.environment import Place

#: Seconds between two looks into the folder while the script runs.
_EVERY_S = 10.0
#: Seconds since its last change after which a file is taken for complete while its script runs, or was killed.
_SETTLED_S = 2.0
#: Files of one rank; more of them belong into an archive.
MAX_FILES = 5_000

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
        self._wake = threading.Event()
        self._is_over = False
        self._thread = threading.Thread(target=self._watch, name="outputs", daemon=True)

    def fill(self, files: Mapping[str, OutputFile], outputs: Iterable[str]) -> None:
        """Make the folder, with the job's files and a folder for each named output.  Raises StorageError."""
        self.folder.mkdir(exist_ok=True)
        self._catalog.fetch(files.values(), self.folder)
        for name in outputs:
            (self.folder / name).mkdir(exist_ok=True)
        self._known = {name: _trace(path) for name, path in self._files()}

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
        if self.folder.is_dir():
            self._collect(_SETTLED_S if was_killed else 0.0)

    def _watch(self) -> None:
        while not self._is_over:
            self._wake.wait(_EVERY_S)
            self._wake.clear()
            if not self._is_over:
                self._collect(_SETTLED_S)

    def _collect(self, settled_s: float) -> None:
        """Store files that changed and were left alone for so many seconds, and tell."""
        place, written, present = self._place(), [], set()
        settled_ns = time.time_ns() - int(settled_s * 1e9)
        for name, path in self._files():
            present.add(name)
            try:
                trace = _trace(path)
                if self._known.get(name) == trace or (settled_s and trace[1] > settled_ns):
                    continue
                file = self._catalog.put(path, name, place)
            except (StorageError, OSError) as error:
                self._complain_once(f"the output {name} could not be stored: {error}")
                continue
            if file is not None:
                self._known[name] = trace
                written.append(file)
        removed = tuple(sorted(self._known.keys() - present))
        for name in removed:
            del self._known[name]
        if written or removed:
            group = (place.attempt, place.generation)
            self._tell(Changes(rank=place.rank, group=group, written=tuple(written), removed=removed))

    def _files(self) -> Iterator[tuple[str, Path]]:
        """Files below the folder by their names; links and what is no file are left out."""
        count = 0
        for path in sorted(self.folder.rglob("*")):
            if path.is_symlink() or not path.is_file():
                continue
            name = path.relative_to(self.folder).as_posix()
            count += 1
            if count > MAX_FILES:
                self._complain_once(
                    f"more than {MAX_FILES} files are in the outputs folder; put them into an archive"
                )
                return
            if not name.isprintable() or len(name) > 500:
                self._complain_once(
                    f"the output {name[:100]!a} is not kept: its name has to be short and printable"
                )
                continue
            yield name, path

    def _complain_once(self, sentence: str) -> None:
        if sentence not in self._complained:
            self._complained.add(sentence)
            self._complain(sentence)


def _trace(path: Path) -> _Trace:
    status = path.stat()
    return status.st_size, status.st_mtime_ns
