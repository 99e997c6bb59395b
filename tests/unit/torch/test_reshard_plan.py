"""How tensors are sharded, and which blocks travel when a group of another size shards them otherwise."""

from __future__ import annotations

import itertools
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.tensor._utils import _compute_local_shape_and_global_offset
from torch.distributed.tensor.placement_types import Replicate, Shard, _StridedShard

from remora.torch.sharded.grid import Grid, Parallel
from remora.torch.sharded.reshard_plan import (
    Split,
    Transfer,
    box_of,
    boxes_of,
    most_elements,
    plan_transfers,
    rows_of,
)

sizes = st.integers(0, 40)
counts = st.integers(1, 7)
#: What a script fixes, the number of workers, and the dimension that tensor parallelism splits.
Layout = tuple[Parallel, int, tuple[int, ...]]


@given(sizes, counts)
def test_rows_are_split_as_torch_splits_them(size: int, parts: int) -> None:
    chunks = [chunk.tolist() for chunk in torch.arange(size).chunk(parts)] if size else []
    ours = [list(rows_of(size, parts, part)) for part in range(parts)]
    assert [rows for rows in ours if rows] == [chunk for chunk in chunks if chunk]


@given(
    st.integers(1, 40), st.integers(1, 9), st.integers(1, 4), st.integers(1, 3), st.sampled_from([0, 1, None])
)
def test_a_box_is_what_torch_takes_for_it(
    rows: int, columns: int, shard: int, tensor: int, cut_by_tensor: int | None
) -> None:
    """Tensor parallelism splits first; torch calls what FSDP does along the same dimension strided."""
    if cut_by_tensor == 0:
        rows *= tensor  # others are refused, because torch is wrong about them
    splits = [Split(0, shard, tensor)]
    placements: list[object] = [Shard(0), Replicate()]
    if cut_by_tensor is not None:
        splits.insert(0, Split(cut_by_tensor, tensor, 1))
        sharded = _StridedShard(0, split_factor=tensor) if cut_by_tensor == 0 else Shard(0)
        placements = [sharded, Shard(cut_by_tensor)]
    for part in range(shard * tensor):
        shape, offset = _compute_local_shape_and_global_offset(
            (rows, columns), (shard, tensor), [part // tensor, part % tensor], placements
        )
        box = box_of((rows, columns), splits, part)
        assert tuple(map(len, box)) == shape
        if 0 not in shape:
            assert tuple(one.start for one in box) == offset


LAYOUTS: list[Layout] = [
    (Parallel(), 3, ()),
    (Parallel(tensor=2), 4, (0,)),
    (Parallel(tensor=2), 6, (1,)),
    (Parallel(tensor=2, shard=2), 8, (0,)),
    (Parallel(tensor=2, shard=2), 8, ()),
    (Parallel(shard=2), 4, ()),
]


def splits(grid: Grid, by_tensor: tuple[int, ...]) -> list[Split]:
    return [*(Split(dim, grid.tensor, 1) for dim in by_tensor), Split(0, grid.shard, grid.tensor)]


@pytest.mark.parametrize(("old", "new"), [*itertools.product(LAYOUTS, LAYOUTS)])
def test_everything_arrives_whatever_the_layouts(old: Layout, new: Layout) -> None:
    """From a number of workers in one layout to another number in another one, for a matrix that both split."""
    size, whole = (7, 6), torch.arange(7 * 6).view(7, 6)
    before, after = old[0].arrange(old[1]), new[0].arrange(new[1])
    held, ranks = torch.arange(before.state_shards), range(new[1])
    needed = torch.tensor([after.state_shard_of(rank) for rank in ranks])
    given_, wanted = (
        boxes_of(size, splits(before, old[2]), held),
        boxes_of(size, splits(after, new[2]), needed),
    )
    plans = [plan_transfers(rank, given_, held % new[1], wanted) for rank in ranks]
    sent = [one for plan in plans for one in plan.outgoing]
    assert sent == sorted((one for plan in plans for one in plan.incoming), key=order_of)
    for rank, plan in enumerate(plans):
        assert list(plan.incoming) == sorted(plan.incoming, key=order_of)
        assert {one.source for one in plan.outgoing} <= {rank}
        got = torch.full(shape_of(wanted[rank]), -1)
        for one in plan.incoming:
            assert (got[one.target_slices] == -1).all(), "nothing travels twice"
            got[one.target_slices] = part_of(whole, given_[one.shard])[one.source_slices]
        assert torch.equal(got, part_of(whole, wanted[rank]))


@pytest.mark.parametrize("count", [2, 5, 9])
@pytest.mark.parametrize(("old", "new"), [*zip(LAYOUTS, reversed(LAYOUTS), strict=True)])
def test_parts_of_a_plan_bring_the_same_and_each_is_small(old: Layout, new: Layout, count: int) -> None:
    size, whole = (7, 6), torch.arange(7 * 6).view(7, 6)
    before, after = old[0].arrange(old[1]), new[0].arrange(new[1])
    held, holders = torch.arange(before.state_shards), torch.arange(before.state_shards) % new[1]
    needed = torch.tensor([after.state_shard_of(rank) for rank in range(new[1])])
    given_, wanted = (
        boxes_of(size, splits(before, old[2]), held),
        boxes_of(size, splits(after, new[2]), needed),
    )
    most = most_elements(given_, holders, wanted)
    plans = [plan_transfers(rank, given_, holders, wanted) for rank in range(new[1])]
    got = [torch.full(shape_of(box), -1) for box in wanted]
    assert (
        max(sum(one.count for one in ends) for plan in plans for ends in (plan.outgoing, plan.incoming))
        <= most
    )
    for index in range(count):
        parts = [plan.part(index, count) for plan in plans]
        sent = [one for part in parts for one in part.outgoing]
        assert sent == sorted((one for part in parts for one in part.incoming), key=order_of)
        for one in sent:
            target = got[one.target][one.target_slices]
            assert (target == -1).all(), "nothing travels twice"
            target.copy_(part_of(whole, given_[one.shard])[one.source_slices])
            assert max(one.shape) <= -(-max(size) // count) or one.count <= min(size)
    for block, box in zip(got, wanted, strict=True):
        assert torch.equal(block, part_of(whole, box))


def test_a_number_travels_whole_in_each_part() -> None:
    boxes = torch.zeros(2, 0, 2, dtype=torch.int64)
    plan = plan_transfers(0, boxes, torch.tensor([0, 1]), boxes)
    assert plan.part(2, 3) == plan
    assert most_elements(boxes, torch.tensor([0, 1]), boxes) == 2


def order_of(one: Transfer) -> tuple[int, int, int]:
    return one.source, one.target, one.shard


def part_of(whole: torch.Tensor, box: torch.Tensor) -> torch.Tensor:
    return whole[tuple(slice(start, stop) for start, stop in box.tolist())]


def shape_of(box: torch.Tensor) -> tuple[int, ...]:
    return tuple(stop - start for start, stop in box.tolist())


@given(st.lists(sizes, min_size=1, max_size=3), st.data())
def test_many_boxes_at_once_are_those_of_each_shard(size: list[int], data: st.DataObject) -> None:
    dims, strides = st.integers(0, len(size) - 1), st.integers(1, 3)
    splits = data.draw(st.lists(st.builds(Split, dims, counts, strides), max_size=3))
    shards = list(range(data.draw(counts)))
    boxes = boxes_of(size, splits, torch.tensor(shards))
    expected = [[[rows.start, rows.stop] for rows in box_of(size, splits, shard)] for shard in shards]
    assert boxes.tolist() == expected


def steps_to_plan(workers: int) -> int:
    """Calls, of Python and of C, that a rank in the middle makes to plan a tensor when one worker of these is lost."""
    count = 0

    def step(_frame: object, event: str, _argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(step)
    try:
        old = boxes_of((8192, 1024), [Split(0, workers, 1)], torch.arange(workers))
        new = boxes_of((8192, 1024), [Split(0, workers - 1, 1)], torch.arange(workers - 1))
        plan = plan_transfers(workers // 2, old, torch.arange(workers) % (workers - 1), new)
    finally:
        sys.setprofile(None)
    assert plan.incoming
    return count


def test_a_rank_plans_in_as_many_steps_whatever_the_number_of_workers() -> None:
    steps_to_plan(16)
    assert steps_to_plan(1000) <= 1.2 * steps_to_plan(100)


def test_ranks_count_the_workers_of_a_layer_first_and_copies_last() -> None:
    grid = Parallel(shard=2, tensor=2).arrange(8)
    assert (grid.names, grid.sizes) == (("replicate", "shard", "tensor"), (2, 2, 2))
    assert [grid.state_shard_of(rank) for rank in range(8)] == [0, 1, 2, 3, 0, 1, 2, 3]
    assert [grid.reader_of(rank) for rank in range(8)] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert [grid.counts_batch(rank) for rank in range(4)] == [True, False, True, False]
    assert Parallel().arrange(3).sizes == (3,)
    assert Parallel(tensor=1).arrange(3).sizes == (3, 1)


@pytest.mark.parametrize(
    ("parallel", "workers", "said"),
    [
        (
            Parallel(tensor=2),
            3,
            "3 workers cannot be arranged with tensor=2: write workers.multiple_of: 2 .* a multiple of 2$",
        ),
        (Parallel(shard=2, tensor=2), 6, "6 workers cannot be arranged with shard=2 and tensor=2: .* of 4$"),
    ],
)
def test_a_number_of_workers_that_does_not_fit_is_refused(
    parallel: Parallel, workers: int, said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        parallel.arrange(workers)


def test_sizes_that_no_number_of_workers_fits_are_refused() -> None:
    with pytest.raises(ValueError, match="tensor is a number of workers, at least 1, not 0"):
        Parallel(tensor=0)
