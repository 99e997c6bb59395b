"""Where an input of a job lies (pure)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class InputFile:
    """A file of an input: its name there, its name in the storage, its size and what changes with its content."""

    name: str
    stored: str
    size_bytes: int
    tag: str


@dataclass(frozen=True, kw_only=True)
class InputSource:
    """Where an input of a job lies."""

    #: URL of its storage.
    url: str
    #: Folder or file below it; "": the storage as a whole.
    path: str = ""
    #: The job whose output it is, and the name of that output ("": all of them); None: it lies at `path`.
    job_id: str | None = None
    output: str = ""
    #: Other storages that the outputs of that job may be in.
    also: tuple[str, ...] = ()
    #: No copy: the folder itself where the storage is one of the node, else files are fetched as they are read.
    is_mounted: bool = False
