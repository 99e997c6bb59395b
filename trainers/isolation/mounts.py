"""Decides what a confined command sees of its node's files (pure).

A folder into which other users may not look hides what lies in it.  Where the command needs something below such a
folder, the topmost one is covered by an empty one, in which only what is needed is shown; so nothing has to be opened
to others for a job's sake.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Shown:
    """A folder or file of the node that the command sees."""

    source: Path
    #: Its path for the command.
    target: Path
    is_read_only: bool = True
    #: The user that its files belong to on disk, where the command is to see them as its own; None: as they are.
    owner: int | None = None


@dataclass(frozen=True, kw_only=True)
class MountStep:
    """One mount: what is shown at `target`; None: an empty folder, which covers what was there."""

    source: Path | None
    target: Path
    is_read_only: bool = False
    #: See `Shown`.
    owner: int | None = None


def mount_steps(
    shown: Iterable[Shown],
    hidden: Iterable[Path],
    is_closed: Callable[[Path], bool],
    *,
    rest_is_read_only: bool = False,
) -> tuple[MountStep, ...]:
    """The mounts in the order in which they are made; all paths are absolute and without links.

    `hidden` are covered whatever they allow; `is_closed` says of a folder whether other users may not look into it.
    What is neither covered nor shown stays as it is on the node: there the rights of its files count, and nothing can
    be changed if `rest_is_read_only`.
    """
    by_target: dict[Path, Shown] = {}
    for one in shown:
        before = by_target.get(one.target)
        # What may be written to stays so, however often it is named.
        if before is None or before.is_read_only:
            by_target[one.target] = one
    covers = set(hidden)
    for one in by_target.values():
        covers.update(_closed_above(one.target, is_closed))
    # One that is replaced is not covered as well, and one right below another cover is gone with that.
    places = {*covers, *by_target}
    covers = {
        one
        for one in covers
        if one not in by_target
        and one != Path("/")
        and _nearest(one, places) not in covers - by_target.keys()
    }
    steps = [MountStep(source=None, target=one) for one in covers]
    steps += [
        MountStep(source=one.source, target=one.target, is_read_only=one.is_read_only, owner=one.owner)
        for one in by_target.values()
        if not _is_seen_anyway(one, by_target, covers, rest_is_read_only=rest_is_read_only)
    ]
    return tuple(sorted(steps, key=lambda step: (len(step.target.parts), str(step.target))))


def _closed_above(path: Path, is_closed: Callable[[Path], bool]) -> list[Path]:
    """The topmost folder above a path into which others may not look; [] where there is none."""
    return next(([above] for above in reversed(path.parents) if is_closed(above)), [])


def _nearest(path: Path, places: set[Path]) -> Path | None:
    return next((above for above in path.parents if above in places), None)


def _is_seen_anyway(
    one: Shown, by_target: dict[Path, Shown], covers: set[Path], *, rest_is_read_only: bool
) -> bool:
    """True for what is shown at its own path by the nearest folder above it that is shown in the same way.

    Where the rights of files count, what may only be read is kept by them in a folder that may be written to.
    """
    if one.source != one.target:
        return False
    for above in one.target.parents:
        if above in covers:
            return False
        if above in by_target:
            nearest = by_target[above]
            return nearest.source == nearest.target and (
                nearest.is_read_only == one.is_read_only or (one.is_read_only and not rest_is_read_only)
            )
    # Nothing covers it: its own rights count.
    return one.is_read_only or not rest_is_read_only
