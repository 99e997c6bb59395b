"""Which format a file has, and several files as one trace."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from cluster.traces.lines import read_lines
from cluster.traces.philly import read_philly
from cluster.traces.skypilot import read_skypilot
from cluster.traces.trace import Trace, TraceError, merged


@dataclass(frozen=True, kw_only=True)
class TraceFile:
    """The text of a file."""

    #: For messages.
    name: str
    text: str
    #: Id of the offering whose availability it has; only for SkyPilot's format.
    offering: str | None = None


def read_files(files: Iterable[TraceFile]) -> Trace:
    """One trace of all files.  Raises TraceError in one sentence that names the file and the line."""
    return merged(_read(file) for file in files)


def _read(file: TraceFile) -> Trace:
    if file.offering is not None:
        return read_skypilot(file.text, file.offering, file.name)
    begin = file.text.lstrip()[:1]
    if begin == "[":
        return read_philly(file.text, file.name)
    first = file.text.lstrip().partition("\n")[0]
    if '"metadata"' in first + file.text[:4096] and '"kind"' not in first:
        raise TraceError(
            f"{file.name}: it has spot availability and does not say of what: name it OFFERING={file.name}"
        )
    return read_lines(file.text, file.name)
