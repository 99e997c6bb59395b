"""How tensors are sharded, and which blocks travel when a group of another size shards them otherwise."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.tensor._utils import _compute_local_shape_and_global_offset
from torch.distributed.tensor.placement_types import Replicate, Shard, _StridedShard

from remora.torch.sharded.grid import Parallel
from remora.torch.sharded.reshard_plan import Split, box_of, plan_transfers, rows_of

sizes = st.integers(0, 40)
counts = st.integers(1, 7)


@given(sizes, counts)
def test_rows_are_cut_as_torch_cuts_them(size: int, parts: int) -> None:
    chunks = [chunk.tolist() for chunk in torch.arange(size).chunk(parts)] if size else []
    ours = [list(rows_of(size, parts, part)) for part in range(parts)]
    assert [rows for rows in ours if rows] == [chunk for chunk in chunks if chunk]


@given(
    st.integers(1, 40), st.integers(1, 9), st.integers(1, 4), st.integers(1, 3), st.sampled_from([0, 1, None])
)
def test_a_box_is_what_torch_takes_for_it(
    rows: int, columns: int, shard: int, tensor: int, cut_by_tensor: int | None
) -> None:
    """Tensor parallelism cuts first; torch calls what FSDP does along the same dimension strided."""
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


def test_everything_arrives_whatever_the_layouts() -> None:
    """From so many workers in one layout to so many in another one, for a matrix that both cut."""
    whole = torch.arange(7 * 6).view(7, 6)
    layouts = [
        (Parallel(), 3, ()),
        (Parallel(tensor=2), 4, (0,)),
        (Parallel(tensor=2), 6, (1,)),
        (Parallel(tensor=2, shard=2), 8, (0,)),
        (Parallel(shard=2), 4, ()),
    ]
    for old_parallel, old_workers, old_tensor in layouts:
        for new_parallel, new_workers, new_tensor in layouts:
            old, new = old_parallel.arrange(old_workers), new_parallel.arrange(new_workers)
            old_splits = [*(Split(dim, old.tensor, 1) for dim in old_tensor), Split(0, old.shard, old.tensor)]
            new_splits = [*(Split(dim, new.tensor, 1) for dim in new_tensor), Split(0, new.shard, new.tensor)]
            given_ = [box_of((7, 6), old_splits, part) for part in range(old.state_shards)]
            wanted = [box_of((7, 6), new_splits, new.state_shard_of(rank)) for rank in range(new_workers)]
            plan = plan_transfers(
                given_, {part: part % new_workers for part in range(old.state_shards)}, wanted
            )
            for rank, box in enumerate(wanted):
                got = torch.full(tuple(map(len, box)), -1)
                for one in plan:
                    if one.target == rank:
                        block = whole[tuple(slice(r.start, r.stop) for r in given_[one.shard])][
                            one.source_slices
                        ]
                        assert (got[one.target_slices] == -1).all(), "nothing travels twice"
                        got[one.target_slices] = block
                assert torch.equal(got, whole[tuple(slice(r.start, r.stop) for r in box)])


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
