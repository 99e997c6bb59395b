"""The manifest of a checkpoint: written last, it says which files make it complete (pure).

Layout below a job's checkpoint storage:

    jobs/<job id>/checkpoints/<step, 12 digits>-<attempt>-<generation>/<files of all ranks>
    jobs/<job id>/checkpoints/<step, 12 digits>-<attempt>-<generation>/remora-manifest.json

A worker group that comes to a step again, after it went back, writes its second checkpoint of that step into
`<step>-<attempt>-<generation>-2`, and so on: files of a committed checkpoint are never written again.

A folder without a manifest is not a checkpoint, whatever lies in it; neither is one whose manifest does not fit its
checksum, or is of another folder.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass

from trainers.checksums import checked, with_checksum
from trainers.confined_folders import OutsideFolder, parts_of

MANIFEST_NAME = "remora-manifest.json"
#: Of what is written; manifests of version 1, which have no checksum, are still read.
_VERSION, _WITHOUT_CHECKSUM = 2, 1
_FOLDER = re.compile(r"(\d{12})-(\d+)-(\d+)(?:-([1-9]\d*))?")


@dataclass(frozen=True, kw_only=True)
class ShardFile:
    """One file of a checkpoint."""

    #: Relative POSIX name, unique among all ranks.
    name: str
    size_bytes: int
    #: Hexadecimal SHA-256 of the content.
    sha256: str
    #: The rank that wrote it.
    rank: int


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What a complete checkpoint consists of."""

    job_id: str
    step: int
    attempt: int
    #: Number of the worker group within the attempt, from 1.
    generation: int
    world_size: int
    committed_at: float
    files: tuple[ShardFile, ...]
    #: Value at this step of the metric by which the job's best checkpoint is chosen; None: there is none.
    score: float | None = None
    #: 1 for the worker group's first checkpoint of the step, 2 for the next one, ...
    take: int = 1

    @property
    def folder(self) -> str:
        """Name of its folder in the job's checkpoint storage."""
        return folder_name(self.step, self.attempt, self.generation, self.take)

    @property
    def size_bytes(self) -> int:
        """Size of all its files."""
        return sum(file.size_bytes for file in self.files)

    def to_json(self) -> bytes:
        """The manifest as it is stored."""
        fields = asdict(self)
        if self.take == 1:
            # As older versions read it.
            del fields["take"]
        return with_checksum({"version": _VERSION, **fields})

    @classmethod
    def from_json(cls, content: bytes) -> Manifest:
        """Parse a stored manifest; ValueError when it is not one."""
        try:
            fields = json.loads(content)
            version = fields["version"]
            if version == _VERSION:
                fields = checked(content)
            elif version != _WITHOUT_CHECKSUM:
                raise ValueError(f"its version is {version!r:.20}, which this version cannot read")  # noqa: TRY301
            del fields["version"]
            files = tuple(ShardFile(**file) for file in fields.pop("files"))
            for file in files:
                parts_of(file.name)
            return cls(files=files, **fields)
        except (TypeError, KeyError, AttributeError, ValueError, RecursionError, OutsideFolder) as error:
            raise ValueError(f"not a checkpoint manifest: {error}"[:300]) from error


def job_folder(job_id: str) -> str:
    """Name of the folder of all checkpoints of a job."""
    return f"jobs/{job_id}/checkpoints"


def folder_name(step: int, attempt: int, generation: int, take: int = 1) -> str:
    """Name of a checkpoint's folder; sorts by step, then by attempt only up to 9, so parse before comparing."""
    return f"{step:012d}-{attempt}-{generation}" + (f"-{take}" if take > 1 else "")


def parse_folder_name(name: str) -> tuple[int, int, int, int] | None:
    """Step, attempt, generation and take of a checkpoint's folder, or None for another folder."""
    match = _FOLDER.fullmatch(name)
    if match is None:
        return None
    found = int(match[1]), int(match[2]), int(match[3]), int(match[4] or 1)
    return found if folder_name(*found) == name else None


def doubled_names(files: tuple[ShardFile, ...]) -> list[str]:
    """Names that more than one rank wrote."""
    seen: set[str] = set()
    doubled: set[str] = set()
    for file in files:
        (doubled if file.name in seen else seen).add(file.name)
    return sorted(doubled)
