"""How committed checkpoints appear in records, and which of them are listed (pure)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from trainers.checkpoints.manifest import Manifest
from trainers.checkpoints.retention import age


def description(manifest: Manifest, location: str) -> dict[str, Any]:
    """The body of a `checkpoint` record; a `checkpoints` record has one of these for each."""
    return {
        "step": manifest.step,
        "attempt": manifest.attempt,
        "world_size": manifest.world_size,
        "size_bytes": manifest.size_bytes,
        "location": location,
        "files": {file.name: file.size_bytes for file in manifest.files},
        "committed_at": manifest.committed_at,
    }


def youngest_of_each_step(manifests: Iterable[Manifest]) -> dict[int, Manifest]:
    """One checkpoint of each step, the one that was begun last."""
    found: dict[int, Manifest] = {}
    for manifest in manifests:
        other = found.get(manifest.step)
        if other is None or age(manifest) > age(other):
            found[manifest.step] = manifest
    return found
