"""Which committed checkpoints are kept and which are listed, and how they appear in records (pure)."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, Literal

from trainers.checkpoints.manifest import Manifest

#: Whether the best value of a metric is its smallest or its greatest.
Mode = Literal["min", "max"]


def age(manifest: Manifest) -> tuple[int, int, int, int]:
    """Sorts checkpoints by when they were begun: a group that resumed below the newest step writes younger ones."""
    return manifest.attempt, manifest.generation, manifest.step, manifest.take


def best_of(manifests: Iterable[Manifest], mode: Mode) -> Manifest | None:
    """The checkpoint with the best score, of equal ones the youngest; None when none has a score."""
    scored = [(one.score, age(one), one) for one in manifests if one.score is not None]
    sign = -1.0 if mode == "min" else 1.0
    return max(scored, key=lambda one: (sign * one[0], one[1]))[2] if scored else None


def surplus(
    manifests: Iterable[Manifest], keep: int, mode: Mode | None = None, damaged: Collection[Manifest] = ()
) -> list[Manifest]:
    """Checkpoints to delete, youngest first: all but the `keep` youngest (at least one) and, with a mode, the best.

    Damaged ones do not count: `keep` whole ones stay, and everything that is younger than the oldest of them.
    """
    by_age = sorted(manifests, key=age, reverse=True)
    whole = [one for one in by_age if one not in damaged]
    if len(whole) <= max(1, keep):
        return []
    best = best_of(whole, mode) if mode is not None else None
    oldest = age(whole[max(1, keep) - 1])
    return [one for one in by_age if age(one) < oldest and one is not best]


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
