"""The newest version of a job's outputs, those before its newest saves, and which of them a worker starts with (pure).

A *save* is a change that a script could start from again: a file is new or was replaced that is no log and is not much
smaller than the largest one.  Before each save the version that it follows is kept, so that a start that fails with
the newest one can fall back.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from trainers.checksums import checked, with_checksum
from trainers.confined_folders import OutsideFolder, parts_of
from trainers.outputs.manifest import OutputFile, is_log, output_of, without_clashes

#: Versions kept for falling back, and so how often in a row a start falls back.
FALL_BACKS = 2
#: A file counts as a save from this part of the largest one on: settings and lists of metrics do not.
_SAVE_PART = 4
#: Bytes of the largest file up to which all of them count.
_SMALL_BYTES = 64 << 10

Files = Mapping[str, OutputFile]


@dataclass(frozen=True, kw_only=True)
class Version:
    """All files of a job's outputs as they were at one instant."""

    number: int = 0
    files: Files = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class OutputHistory:
    """The versions that the storage keeps of a job's outputs, and how many starts failed with the newest."""

    newest: Version = Version()
    #: Versions that saves followed, newest first.
    before: tuple[Version, ...] = ()
    #: Starts in a row that failed before anything was saved.
    failed_starts: int = 0

    @property
    def start(self) -> Version:
        """The version that a worker group starts with."""
        return self.newest if self._steps_back == 0 else self.before[self._steps_back - 1]

    @property
    def is_fallen_back(self) -> bool:
        """True while worker groups start with an older version than the newest one."""
        return self._steps_back > 0

    @property
    def _steps_back(self) -> int:
        # When the older ones fail as well they are not the cause, and the newest one holds the most.
        return self.failed_starts if self.failed_starts <= len(self.before) else 0

    @property
    def folders(self) -> frozenset[str]:
        """Folders of the storage that these versions need."""
        versions = (self.newest, *self.before)
        return frozenset(file.folder for version in versions for file in version.files.values())

    def follow(self, files: Files, *, is_save: bool) -> OutputHistory:
        """These files, which began with `start`, are the newest version from now on."""
        number = self.newest.number + 1
        start = self.start
        numbered = {
            name: file if start.files.get(name) == file else replace(file, version=number)
            for name, file in files.items()
        }
        newest = Version(number=number, files=numbered)
        if not is_save:
            return replace(self, newest=newest)
        before = (start, *self.before[self._steps_back :])[:FALL_BACKS]
        return OutputHistory(newest=newest, before=before)

    def fail(self) -> OutputHistory:
        """A worker group that started with `start` failed before it saved anything."""
        return replace(self, failed_starts=self.failed_starts + 1)


def is_save(before: Files, after: Files, commits: Mapping[str, str]) -> bool:
    """True when a script can start from what is new; `commits` are the files written last, by output."""
    fresh = [file for name, file in after.items() if name not in before or before[name].sha256 != file.sha256]
    most = max(
        (file.size_bytes for file in (*before.values(), *after.values()) if not is_log(file.name)), default=0
    )
    enough = most // _SAVE_PART if most > _SMALL_BYTES else 0
    for file in fresh:
        commit = commits.get(output_of(file.name, commits))
        if commit is not None:
            if is_commit(file.name, commit):
                return True
        elif not is_log(file.name) and not file.is_grown and file.size_bytes >= enough:
            return True
    return False


def is_commit(name: str, commit: str) -> bool:
    """True when the file of an output is the one that is written last, in whatever folder of the output."""
    return f"/{name}".endswith(f"/{commit}")


def to_json(job_id: str, attempt: int, committed_at: float, history: OutputHistory) -> bytes:
    """The manifest as it is stored: every file once, with the versions that it is in."""
    inside: dict[tuple[str, str], tuple[OutputFile, list[int]]] = {}
    versions = (history.newest, *history.before)
    for place, version in enumerate(versions):
        for name, file in version.files.items():
            inside.setdefault((name, file.stored), (file, []))[1].append(place)
    fields = {
        "job_id": job_id,
        "attempt": attempt,
        "committed_at": committed_at,
        "failed_starts": history.failed_starts,
        "versions": [version.number for version in versions],
        "files": [{**asdict(file), "in": places} for _, (file, places) in sorted(inside.items())],
    }
    return with_checksum({"version": 2, **fields})


def from_json(content: bytes) -> OutputHistory:
    """Parse a stored manifest; ValueError when it is not one."""
    try:
        fields = json.loads(content)
        if fields["version"] == 1:
            # From before outputs had versions: the list of files alone.
            files = {file["name"]: _file(file) for file in fields["files"]}
            return OutputHistory(newest=Version(files=without_clashes(files)))
        if fields["version"] != 2:
            raise ValueError(f"version {fields['version']} cannot be read by this version")
        fields = checked(content)
        versions = _versions(fields)
        return OutputHistory(
            newest=versions[0], before=tuple(versions[1:]), failed_starts=int(fields["failed_starts"])
        )
    except (
        *(TypeError, KeyError, IndexError, AttributeError, ValueError, OverflowError, RecursionError),
        OutsideFolder,
    ) as error:
        raise ValueError(f"not a manifest of outputs: {error}"[:300]) from error


def _versions(fields: dict[str, Any]) -> list[Version]:
    maps: list[dict[str, OutputFile]] = [{} for _ in fields["versions"]]
    for entry in fields["files"]:
        places = entry.pop("in")
        file = _file(entry)
        for place in places:
            maps[place][file.name] = file
    numbers = [int(number) for number in fields["versions"]]
    return [
        Version(number=number, files=without_clashes(files))
        for number, files in zip(numbers, maps, strict=True)
    ]


def _file(fields: dict[str, Any]) -> OutputFile:
    """A file of a manifest; OutsideFolder when it would lie outside of its folder, here or in the storage."""
    file = OutputFile(**fields)
    parts_of(file.name)
    parts_of(file.stored)
    return file
