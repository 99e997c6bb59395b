"""Which files a job's outputs consist of, and whose count (pure).

Layout below a job's checkpoint storage:

    jobs/<job id>/outputs/<unique>/<name of the file>
    jobs/<job id>/outputs/remora-outputs-<attempt>.json

Every version of a file lies under a name of its own, so that what a manifest names is complete at any time.  So does
the manifest of every attempt, and that of the newest one counts: whatever an attempt writes that was replaced without
knowing it, changes nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import PurePosixPath

#: A manifest, with the attempt that wrote it; without one it was written before they had numbers.
_MANIFEST = re.compile(r"remora-outputs(?:-([1-9][0-9]{0,8}))?\.json")
#: What a manifest that cannot be read is called from then on, before the number of the attempt that met it.
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

    @property
    def folder(self) -> str:
        """The folder of this version alone, relative to the folder of the job's outputs."""
        return self.stored.partition("/")[0]

    @property
    def group(self) -> tuple[int, int]:
        """The worker group that wrote it; later ones are greater."""
        return self.attempt, self.generation


@dataclass(frozen=True, kw_only=True)
class Changes:
    """What one worker did in its outputs folder since it told the last time."""

    rank: int
    #: The attempt and the worker group that it belonged to.
    group: tuple[int, int]
    written: tuple[OutputFile, ...] = ()
    #: Names that were there and are not any more.
    removed: tuple[str, ...] = ()
    #: Names that the storage did not take although the worker ends: what it has of them is older, or nothing.
    unstored: tuple[str, ...] = ()


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
    return without_clashes(merged)


def without_clashes(files: Mapping[str, OutputFile]) -> dict[str, OutputFile]:
    """The files that can lie in one folder: where one name is a folder of another one, the weightier file stays."""
    if not any(above in files for name in files for above in _folders(name)):
        return dict(files)
    kept: dict[str, OutputFile] = {}
    folders: set[str] = set()
    for file in sorted(files.values(), key=_weight, reverse=True):
        above = _folders(file.name)
        if file.name not in folders and not any(name in kept for name in above):
            kept[file.name] = file
            folders.update(above)
    return {name: kept[name] for name in files if name in kept}


def _folders(name: str) -> list[str]:
    return [str(above) for above in PurePosixPath(name).parents][:-1]


def _weight(file: OutputFile) -> tuple[tuple[int, int], int]:
    return file.group, -file.rank


def to_json(job_id: str, attempt: int, committed_at: float, files: Iterable[OutputFile]) -> bytes:
    """The manifest as it is stored."""
    listed = [asdict(file) for file in sorted(files, key=lambda file: file.name)]
    fields = {"job_id": job_id, "attempt": attempt, "committed_at": committed_at, "files": listed}
    return json.dumps({"version": 1, **fields}, indent=1).encode()


def from_json(content: bytes) -> dict[str, OutputFile]:
    """Files of a stored manifest by name; ValueError when it is not one."""
    try:
        fields = json.loads(content)
        if fields["version"] != 1:
            raise ValueError(f"version {fields['version']} cannot be read by this version")  # noqa: TRY301
        return {file["name"]: OutputFile(**file) for file in fields["files"]}
    except (TypeError, KeyError, AttributeError, ValueError) as error:
        raise ValueError(f"not a manifest of outputs: {error}") from error


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
