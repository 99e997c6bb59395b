"""Which snapshot a new group goes on from; pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class Label:
    """One snapshot of the whole state: the step after which, and the group in which it was taken."""

    step: int
    generation: int


@dataclass(frozen=True)
class Held:
    """Pieces of one snapshot in one worker's memory."""

    label: Label
    #: Number of pieces of the whole snapshot, and which of them are here.
    parts: int
    here: tuple[int, ...]


@dataclass(frozen=True)
class Source:
    """A snapshot that is whole, and the rank that gives each of its pieces."""

    label: Label
    holders: dict[int, int]


def newest_whole(held: Sequence[Iterable[Held]]) -> Source | None:
    """The newest snapshot of which the ranks together have every piece; None when there is none.

    Pieces of different groups are never mixed.  A piece comes from the rank that has the fewest to give so far.
    """
    found: dict[Label, tuple[int, dict[int, list[int]]]] = {}
    for rank, all_ in enumerate(held):
        for one in all_:
            _, places = found.setdefault(one.label, (one.parts, {}))
            for part in one.here:
                places.setdefault(part, []).append(rank)
    whole = [label for label, (parts, places) in found.items() if len(places) == parts]
    if not whole:
        return None
    parts, places = found[max(whole)]
    burden: dict[int, int] = {}
    holders = {}
    for part in range(parts):
        rank = min(places[part], key=lambda one: (burden.get(one, 0), one))
        burden[rank] = burden.get(rank, 0) + 1
        holders[part] = rank
    return Source(max(whole), holders)


def missing_parts(held: Sequence[Iterable[Held]]) -> tuple[Label, list[int]] | None:
    """The newest snapshot of which anything is there, and its pieces that nobody has."""
    everything = [one for all_ in held for one in all_]
    if not everything:
        return None
    label = max(one.label for one in everything)
    same = [one for one in everything if one.label == label]
    there = {part for one in same for part in one.here}
    return label, [part for part in range(same[0].parts) if part not in there]
