"""Copies what workers report as a checkpoint into one of the job, and keeps this worker's last one for the script."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from remora import training


def names_in(folder: Path) -> frozenset[str]:
    """Paths of all files below a folder, relative to it, with `/` between their parts."""
    return frozenset(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def own_names(given: Sequence[Collection[str] | None], rank: int) -> frozenset[str]:
    """The files that a rank stores: where several have one of a name, the lowest of them stores it.

    `given`: names of each rank's files; None for ranks without a checkpoint.
    """
    lower = {name for names in given[:rank] for name in names or ()}
    return frozenset(given[rank] or ()) - lower


class Saver:
    """Stores checkpoints, and has the last one of this worker in a folder."""

    def __init__(self) -> None:
        #: With all files that this worker has reported last; None before that.
        self.last: Path | None = None

    def store(self, step: int, source: Path | None, own: Iterable[str]) -> None:
        """Hand over this worker's files of the checkpoint of `step`; every worker calls it, also without files.

        `own`: those of the files in `source` that this worker stores.  Raises OSError where they cannot be copied.
        """
        with training.checkpoint(step) as folder:
            if source is not None:
                for name in sorted(own):
                    (folder / name).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(source / name, folder / name)
                self._keep(source, folder)

    def _keep(self, source: Path, stored: Path) -> None:
        """Have all files of `source` in a folder of ours; those that were stored become links, which take no space."""
        kept = Path(tempfile.mkdtemp(prefix="reported-", dir=os.environ.get("REMORA_SCRATCH_DIR")))
        for name in names_in(source):
            (kept / name).parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link(stored / name, kept / name)
            except OSError:
                shutil.copyfile(source / name, kept / name)
        before, self.last = self.last, kept
        if before is not None:
            shutil.rmtree(before, ignore_errors=True)
