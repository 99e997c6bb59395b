"""Which files a job's outputs consist of, and which of several workers' files count (pure).

Layout below a job's checkpoint storage:

    jobs/<job id>/outputs/<unique>/<name of the file>
    jobs/<job id>/outputs/remora-outputs-<attempt>.json

Every version of a file lies under a name of its own, so that what a manifest names is complete at any time.  So does
the manifest of every attempt, and that of the newest one counts: what an attempt writes that was replaced without
knowing it has no effect.  Its format is in `trainers.outputs.versions`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Literal

#: A manifest, with the attempt that wrote it; without one it was written before they had numbers.
_MANIFEST = re.compile(r"remora-outputs(?:-([1-9][0-9]{0,8}))?\.json")
#: Prefix to which a manifest that cannot be read is renamed; the number of the attempt that found it follows.
DAMAGED_PREFIX = "remora-outputs.json.damaged-"


@dataclass(frozen=True, kw_only=True)
class OutputFile:
    """One file of a job's outputs."""

    #: Relative POSIX name in the outputs folder.
    name: str
    size_bytes: int
    #: Hexadecimal SHA-256 of the content.
    sha256: str
    #: Where it lies, relative to the folder of the job's outputs.
    stored: str
    #: Who wrote it, in which worker group.
    rank: int
    attempt: int
    generation: int
    #: Number of the version of the outputs that it came with; 0: of none yet.
    version: int = 0
    #: True when it began with all that it held before and is longer: a log.
    is_grown: bool = False

    @property
    def folder(self) -> str:
        """The folder of this version alone, relative to the folder of the job's outputs."""
        return self.stored.partition("/")[0]

    @property
    def group(self) -> tuple[int, int]:
        """The worker group that wrote it; later ones are greater."""
        return self.attempt, self.generation


#: How a worker's command ended: with exit code 0, with another one, or by a signal.
End = Literal["clean", "failed", "killed"]


@dataclass(frozen=True, kw_only=True)
class Changes:
    """What one worker did in its outputs folder since its last report, and the state of the folder now."""

    rank: int
    #: The attempt and the worker group that it belonged to.
    group: tuple[int, int]
    written: tuple[OutputFile, ...] = ()
    #: Names that were there and are not any more.
    removed: tuple[str, ...] = ()
    #: Folders that were there, with files, and are not any more.
    removed_folders: tuple[str, ...] = ()
    #: Names that the storage did not take although the worker ends: what it has of them is older, or nothing.
    unstored: tuple[str, ...] = ()
    #: Number of the newest round that it knew when it began to scan.
    round: int = 0
    #: For each output how often it has been found changed.
    change_counts: Mapping[str, int] = field(default_factory=dict)
    #: Outputs in which something is being written, or was not stored yet.
    busy: frozenset[str] = frozenset()
    #: Bytes of its folder when they are more than the job may keep, so that nothing new of it was stored; else 0.
    excess_bytes: int = 0
    #: None while its command runs.
    end: End | None = None


def output_of(name: str, outputs: Collection[str]) -> str:
    """The output that a file belongs to; "" for files outside the named ones, which are one output together."""
    first = name.partition("/")[0]
    return first if first in outputs else ""


def is_log(name: str) -> bool:
    """True for files of MLflow, W&B and TensorBoard: they change at any time, and no script starts from them."""
    # Without a path object: it is asked for every file in every round.
    return name.partition("/")[0] in ("mlruns", "wandb") or name.rpartition("/")[2].startswith(
        "events.out.tfevents."
    )


def merge(files: Mapping[str, OutputFile], changes: Changes) -> dict[str, OutputFile]:
    """The outputs after one worker's changes.

    A name that several workers of a group write is the lowest rank's, and what a later group wrote stays.  A worker
    takes back what it wrote, and rank 0 whatever it saw.  Of a file and a folder of one name, the same rules decide.
    """
    merged = dict(files)
    for name in changes.removed:
        present = merged.get(name)
        if present is not None and present.group <= changes.group and changes.rank in (0, present.rank):
            del merged[name]
    for file in changes.written:
        present = merged.get(file.name)
        if present is None or _weight(file) >= _weight(present):
            merged[file.name] = file
    return merged


def without_folders(
    files: Mapping[str, OutputFile], removed: Mapping[str, tuple[int, tuple[int, int]]]
) -> dict[str, OutputFile]:
    """The outputs after whole folders went, each with the rank that removed it and that worker's group.

    Such a folder goes with what others wrote into it when rank 0 removed it, or the lowest rank that wrote to it.
    """
    if not removed:
        return dict(files)
    lowest: dict[str, int] = {}
    inside: dict[str, list[str]] = {}
    for name, file in files.items():
        for folder in folders_of(name):
            if folder in removed:
                inside[name] = [*inside.get(name, []), folder]
                lowest[folder] = min(file.rank, lowest.get(folder, file.rank))
    gone = {
        name
        for name, folders in inside.items()
        for folder in folders
        if files[name].group <= removed[folder][1] and removed[folder][0] in (0, lowest[folder])
    }
    return {name: file for name, file in files.items() if name not in gone}


def without_clashes(files: Mapping[str, OutputFile]) -> dict[str, OutputFile]:
    """The files that can lie in one folder: where one name is a folder of another one, the weightier file stays."""
    if not any(above in files for name in files for above in folders_of(name)):
        return dict(files)
    kept: dict[str, OutputFile] = {}
    folders: set[str] = set()
    for file in sorted(files.values(), key=_weight, reverse=True):
        above = folders_of(file.name)
        if file.name not in folders and not any(name in kept for name in above):
            kept[file.name] = file
            folders.update(above)
    return {name: kept[name] for name in files if name in kept}


def folders_of(name: str) -> list[str]:
    """The folders in which a file of that name lies, the nearest first."""
    return [str(above) for above in PurePosixPath(name).parents][:-1]


def _weight(file: OutputFile) -> tuple[tuple[int, int], int]:
    return file.group, -file.rank


def manifest_name(attempt: int) -> str:
    """Name of an attempt's manifest in the folder of a job's outputs."""
    return f"remora-outputs-{attempt}.json"


def attempt_of(name: str) -> int | None:
    """The attempt whose manifest has this name; None for the name of anything else."""
    found = _MANIFEST.fullmatch(name)
    return int(found.group(1) or 0) if found else None


def outputs_folder(job_id: str) -> str:
    """Name of the folder of a job's outputs."""
    return f"jobs/{job_id}/outputs"
