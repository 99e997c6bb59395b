"""Writes down beside a finished environment on its node that it is complete, and how it was made.

The record lies outside of the environment, whose files commands of the job have written.
"""

from __future__ import annotations

import json
import os
import uuid
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class EnvironmentRecord:
    """What is known of a finished environment."""

    #: How many packages were installed in it.
    packages: int
    #: 16 hexadecimal digits that differ between two builds.
    build_id: str
    #: Version of its Python.
    version: tuple[int, int]
    #: The folder of the Python below it, which has `bin` and `lib`.
    base: Path


def made_environment(folder: Path) -> EnvironmentRecord:
    """The record of an environment that uv has just made, and in which nothing of a job has run.

    Raises ValueError where there is no interpreter in it.
    """
    (own,) = folder.glob("lib/python3.*")
    major, minor = own.name.removeprefix("python").split(".")
    base = (folder / "bin" / "python").resolve().parent.parent
    return EnvironmentRecord(
        packages=0, build_id=uuid.uuid4().hex[:16], version=(int(major), int(minor)), base=base
    )


def write_record(folder: Path, record: EnvironmentRecord) -> None:
    """Say that the environment in this folder is complete.  Raises OSError."""
    fields = {
        "packages": record.packages,
        "build_id": record.build_id,
        "version": list(record.version),
        "base": str(record.base),
    }
    new = _file(folder).with_suffix(".new")
    new.write_text(json.dumps(fields))
    new.replace(_file(folder))


def read_record(folder: Path) -> EnvironmentRecord | None:
    """What is known of the environment in this folder; None: it is not complete."""
    try:
        fields = json.loads(_file(folder).read_text())
        major, minor = fields["version"]
        return EnvironmentRecord(
            packages=int(fields["packages"]),
            build_id=str(fields["build_id"]),
            version=(int(major), int(minor)),
            base=Path(fields["base"]),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def remove_record(folder: Path) -> None:
    """Say that it is not complete any more; fine when it never was.  Raises OSError."""
    _file(folder).unlink(missing_ok=True)


def touch_record(folder: Path) -> None:
    """Say that it is used now.  Raises OSError."""
    os.utime(_file(folder))


def used_at(folder: Path) -> float:
    """When it was last used, in seconds since 1970; 0: it is not complete."""
    try:
        return _file(folder).stat().st_mtime
    except OSError:
        return 0.0


def _file(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.json")
