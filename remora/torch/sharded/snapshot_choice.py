"""Which snapshot a new group goes on from; pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class SnapshotId:
    """One snapshot of the whole state: the step after which, and the group in which it was taken."""

    step: int
    generation: int


@dataclass(frozen=True)
class HeldShards:
    """Shards of one snapshot in one worker's memory."""

    snapshot_id: SnapshotId
    #: Number of shards of the whole snapshot, and which of them are here.
    shard_count: int
    here: tuple[int, ...]


@dataclass(frozen=True)
class SnapshotSource:
    """A complete snapshot, and the rank that sends each of its shards."""

    snapshot_id: SnapshotId
    holders: dict[int, int]


def newest_complete(held: Sequence[Iterable[HeldShards]]) -> SnapshotSource | None:
    """The newest snapshot of which the ranks together have every shard; None when there is none.

    Shards of different groups are never mixed.  A shard comes from the rank that has the fewest to send so far.
    """
    found: dict[SnapshotId, tuple[int, dict[int, list[int]]]] = {}
    for rank, all_ in enumerate(held):
        for one in all_:
            _, ranks = found.setdefault(one.snapshot_id, (one.shard_count, {}))
            for shard in one.here:
                ranks.setdefault(shard, []).append(rank)
    whole = [snapshot_id for snapshot_id, (count, ranks) in found.items() if len(ranks) == count]
    if not whole:
        return None
    count, ranks = found[max(whole)]
    load: dict[int, int] = {}
    holders = {}
    for shard in range(count):
        rank = min(ranks[shard], key=lambda one: (load.get(one, 0), one))
        load[rank] = load.get(rank, 0) + 1
        holders[shard] = rank
    return SnapshotSource(max(whole), holders)


def missing_shards(held: Sequence[Iterable[HeldShards]]) -> tuple[SnapshotId, list[int]] | None:
    """The newest snapshot of which any shard is there, and its shards that no rank has."""
    everything = [one for all_ in held for one in all_]
    if not everything:
        return None
    snapshot_id = max(one.snapshot_id for one in everything)
    same = [one for one in everything if one.snapshot_id == snapshot_id]
    there = {shard for one in same for shard in one.here}
    return snapshot_id, [shard for shard in range(same[0].shard_count) if shard not in there]
