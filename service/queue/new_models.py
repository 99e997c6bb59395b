"""Which models a job leaves behind when it succeeds (pure)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from service.queue.rows import JobRow


@dataclass(frozen=True, kw_only=True)
class NewModel:
    """A model without a version yet."""

    name: str
    #: The output of the job that it is made of.
    output: str
    #: `sha256:...` of the names, sizes and digests of its files.
    digest: str
    #: By the name inside the output, as the outputs have them.
    files: dict[str, dict[str, Any]]


def models_of(job: JobRow, files: Mapping[str, dict[str, Any]]) -> Iterator[NewModel]:
    """A model for each output that asks for one; `files` are all outputs of the job by their names."""
    outputs: Mapping[str, Mapping[str, Any]] = job.spec.get("outputs") or {}
    for output, wanted in sorted(outputs.items()):
        if (name := wanted.get("model")) is not None:
            prefix = f"{output}/"
            own = {path.removeprefix(prefix): file for path, file in files.items() if path.startswith(prefix)}
            yield NewModel(name=name, output=output, digest=digest_of(own), files=own)


def digest_of(files: Mapping[str, Mapping[str, Any]]) -> str:
    """The same for the same names and contents, wherever they lie."""
    lines = (f"{file['sha256']} {file['size_bytes']} {name}\n" for name, file in sorted(files.items()))
    return "sha256:" + hashlib.sha256("".join(lines).encode("utf-8", "surrogatepass")).hexdigest()
