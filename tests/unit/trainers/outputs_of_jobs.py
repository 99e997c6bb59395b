"""Puts files into a storage as the outputs of a job."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from trainers.outputs.catalog import OutputsCatalog
from trainers.outputs.manifest import OutputFile
from trainers.outputs.versions import OutputHistory, Version
from trainers.storage import Storage


def put_outputs(storage: Path, job_id: str, files: Mapping[str, str]) -> None:
    """Write them, each in a folder of its own version as a supervisor does, and the list of them."""
    catalog = OutputsCatalog(Storage(storage), job_id)
    found = {}
    for number, (name, text) in enumerate(files.items()):
        stored = f"{number:032x}/{name}"
        Storage(storage).write_bytes(f"{catalog.folder}/{stored}", text.encode())
        digest = hashlib.sha256(text.encode()).hexdigest()
        found[name] = OutputFile(
            name=name, size_bytes=len(text), sha256=digest, stored=stored, rank=0, attempt=1, generation=1
        )
    catalog.commit(OutputHistory(newest=Version(number=1, files=found)), 1, 0.0)
