"""How often workers compute, who keeps whose snapshot, and which snapshot a group goes on from."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remora.torch.neighbours import neighbours
from remora.torch.order import shard_size, shards_of
from remora.torch.sharded.reshard_plan import passes
from remora.torch.sharded.snapshot_choice import HeldShards, SnapshotId, missing_shards, newest_complete

counts = st.integers(1, 7)


@given(st.integers(1, 40), counts, st.integers(0, 5), st.none() | st.integers(1, 5))
def test_all_ranks_make_as_many_passes_as_the_busiest(
    total: int, world_size: int, more: int, micro: int | None
) -> None:
    shards = world_size + more
    own = []
    for rank in range(world_size):
        samples = [shard_size(total, shard, shards) for shard in shards_of(rank, world_size, shards)]
        own.append(sum(len(range(0, size, micro or size)) for size in samples if size))
    assert passes(total, world_size, shards, micro) == max(own)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=12))
def test_a_snapshot_is_kept_on_another_node_where_that_is_possible(nodes: list[int]) -> None:
    backup = neighbours(nodes)
    assert sorted(backup) == list(range(len(nodes))), "every rank keeps one"
    if len(nodes) > 1:
        assert all(backup[rank] != rank for rank in range(len(nodes)))
    if max(nodes.count(node) for node in nodes) * 2 <= len(nodes):
        assert all(nodes[backup[rank]] != nodes[rank] for rank in range(len(nodes)))


@given(st.lists(st.integers(0, 3), min_size=2, max_size=8), st.integers(0, 3), st.integers(0, 2))
def test_the_loss_of_one_node_leaves_a_whole_snapshot(nodes: list[int], lost: int, late: int) -> None:
    """Every rank has its own chunks of the last two snapshots; the newest exchange may not have ended."""
    if max(nodes.count(node) for node in nodes) * 2 > len(nodes) or set(nodes) == {lost}:
        return
    backup, parts = neighbours(nodes), len(nodes)
    held = []
    for rank, node in enumerate(nodes):
        kept = backup.index(rank)
        newest = (rank,) if rank % 3 == late else tuple(sorted((rank, kept)))
        here = [
            HeldShards(SnapshotId(6, 1), parts, newest),
            HeldShards(SnapshotId(5, 1), parts, tuple(sorted((rank, kept)))),
        ]
        held.append([] if node == lost else here)
    source = newest_complete(held)
    assert source is not None
    assert source.snapshot_id in (SnapshotId(5, 1), SnapshotId(6, 1))
    for part, rank in source.holders.items():
        assert any(part in one.here for one in held[rank] if one.snapshot_id == source.snapshot_id)


labels = st.builds(SnapshotId, st.integers(0, 4), st.integers(1, 3))
chunks = st.lists(st.tuples(labels, st.sets(st.integers(0, 2))), max_size=4)


@given(st.lists(chunks, min_size=1, max_size=4))
def test_the_newest_whole_snapshot_is_taken_and_groups_are_not_mixed(
    reported: list[list[tuple[SnapshotId, set[int]]]],
) -> None:
    held = [[HeldShards(label, 3, tuple(sorted(here))) for label, here in all_] for all_ in reported]
    there: dict[SnapshotId, set[int]] = {}
    for label, here in (one for all_ in reported for one in all_):
        there.setdefault(label, set()).update(here)
    whole = [label for label, here in there.items() if here == {0, 1, 2}]
    source = newest_complete(held)
    assert (source.snapshot_id if source else None) == (max(whole) if whole else None)
    if source is not None:
        assert sorted(source.holders) == [0, 1, 2]


def test_what_is_missing_is_named() -> None:
    held = [[HeldShards(SnapshotId(5, 1), 4, (0, 3))], [HeldShards(SnapshotId(5, 1), 4, (2, 3))]]
    assert newest_complete(held) is None
    assert missing_shards(held) == (SnapshotId(5, 1), [1])
    assert missing_shards([[], []]) is None


@pytest.mark.parametrize(
    ("nodes", "backup"), [([0, 1, 2], [1, 2, 0]), ([0, 0, 1, 1], [2, 3, 0, 1]), ([0], [0])]
)
def test_backups_of_usual_groups(nodes: list[int], backup: list[int]) -> None:
    assert neighbours(nodes) == backup
