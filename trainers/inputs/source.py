"""Where an input of a job lies (pure)."""

from __future__ import annotations

from dataclasses import dataclass


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
    #: The folder itself in place of a copy; for storages that are folders of the node.
    is_mounted: bool = False
