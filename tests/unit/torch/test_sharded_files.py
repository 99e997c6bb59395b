"""The files of a sharded checkpoint: ranks write them without each other, and others read what they need of them."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

import pytest
import torch

from remora.torch.layout import Writer
from remora.torch.sharded import checkpoint_io
from remora.torch.sharded.checkpoint_parts import is_whole, readers_of
from remora.torch.sharded.grid import SHARD, TENSOR, Grid
from remora.torch.sharded.reshard_plan import Split
from remora.torch.sharded.state_shards import ShardOffsets, StateLayout, TensorSpec
from remora.torch.tensor_files import MappedTensors, TensorFileDamaged, write_tensors

GRIDS = [Grid(1, 1, 1), Grid(1, 3, 1), Grid(2, 2, 1), Grid(1, 2, 2), Grid(2, 1, 2, (SHARD, TENSOR))]


def layout_of(grid: Grid, chance: random.Random) -> StateLayout:
    """Tensors of different types, sizes and splits, some of them smaller than the number of workers."""
    layout: StateLayout = {}
    for number, dtype in enumerate([torch.float32, torch.bfloat16, torch.float64] * 4):
        size = tuple(chance.randint(1, 7) for _ in range(chance.randint(1, 3)))
        splits = [Split(chance.randrange(len(size)), grid.shard, grid.tensor)]
        if grid.tensor > 1 and number % 2:
            splits.insert(0, Split(chance.randrange(len(size)), grid.tensor, 1))
        layout[f"model/{number}"] = TensorSpec(size, dtype, tuple(splits))
    return layout


def whole_of(layout: StateLayout) -> dict[str, torch.Tensor]:
    """Another number in each element."""
    return {
        name: torch.arange(1.0, 1 + math.prod(spec.size)).to(spec.dtype).view(spec.size)
        for name, spec in layout.items()
    }


def write_all(folder: Path, layout: StateLayout, grid: Grid) -> list[set[str]]:
    """What each rank writes, of a state whose tensors are those of `whole_of`."""
    whole, written = whole_of(layout), []
    ranks = grid.replicas * grid.state_shards
    for rank in range(ranks):
        shard = grid.state_shard_of(rank)
        offsets = ShardOffsets(layout, shard)
        memory = torch.empty(offsets.size_bytes, dtype=torch.uint8)
        for name, spec in layout.items():
            box = tuple(slice(rows.start, rows.stop) for rows in spec.box(shard))
            offsets.view(memory, name).copy_(whole[name][box])
        blocks = checkpoint_io.blocks_of(layout, offsets, memory, grid, rank)
        checkpoint_io.save(folder, blocks, Writer(rank, ranks), None)
        written.append(set(blocks))
    return written


def paths_in(folder: Path) -> list[Path]:
    return sorted(folder.glob(checkpoint_io.FILES))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("grid", GRIDS)
def test_what_ranks_write_alone_is_each_tensor_once_and_any_block_is_read_of_it(
    grid: Grid, seed: int, tmp_path: Path
) -> None:
    chance = random.Random(seed)
    layout = layout_of(grid, chance)
    write_all(tmp_path, layout, grid)
    saved, whole = checkpoint_io.saved_tensors(paths_in(tmp_path)), whole_of(layout)
    assert saved.keys() == layout.keys()
    for name, one in saved.items():
        assert (one.size, one.dtype) == (layout[name].size, layout[name].dtype)
        assert sum(math.prod(shape) for _, shape, _ in one.blocks) == math.prod(one.size), "no element twice"
        starts = tuple(chance.randrange(length) for length in one.size)
        block = torch.zeros(
            [chance.randint(1, length - start) for length, start in zip(one.size, starts, strict=True)],
            dtype=one.dtype,
        )
        assert one.fill(block, starts) == block.numel()
        box = tuple(slice(start, start + length) for start, length in zip(starts, block.shape, strict=True))
        assert torch.equal(block, whole[name][box])


def test_ranks_that_hold_the_same_share_the_work(tmp_path: Path) -> None:
    grid = Grid(3, 2, 1)
    layout = {f"model/{number}": TensorSpec((8, 4), torch.float32, (Split(0, 2, 1),)) for number in range(6)}
    assert [len(names) for names in write_all(tmp_path, layout, grid)] == [2] * 6


def test_a_file_says_to_pytorch_where_its_blocks_lie(tmp_path: Path) -> None:
    """The keys are those of `HuggingFaceStorageReader` in torch/distributed/checkpoint/_hf_utils.py."""
    layout = {"model/weight": TensorSpec((5, 2), torch.float32, (Split(0, 2, 1),))}
    write_all(tmp_path, layout, Grid(1, 2, 1))
    file = MappedTensors(tmp_path / "sharded-00002-of-00002.safetensors")
    assert file.shapes() == {"model/weight": ((2, 2), torch.float32)}
    assert json.loads(file.metadata["DCP_SHARDING_INFO"])["model/weight"]["saved_offsets"] == [3, 0]


def test_a_file_that_is_cut_off_is_found_before_it_is_used(tmp_path: Path) -> None:
    write_all(tmp_path, {"model/weight": TensorSpec((5, 2), torch.float32, (Split(0, 1, 1),))}, Grid(1, 1, 1))
    (path,) = paths_in(tmp_path)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(TensorFileDamaged, match="is damaged: it is cut off"):
        checkpoint_io.saved_tensors([path])


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"F32"', b'"F64"'),
        (b'"shape":[5,2]', b'"shape":[5,3]'),
        (b"[0, 0]", b"[1, 0]"),
        (b"DCP_SHARDING_INFO", b"DCP_SHARDING_NONE"),
        (b'{"__meta', b'["__meta'),
    ],
)
def test_a_header_that_does_not_fit_its_tensors_is_damaged(old: bytes, new: bytes, tmp_path: Path) -> None:
    write_all(tmp_path, {"model/weight": TensorSpec((5, 2), torch.float32, (Split(0, 1, 1),))}, Grid(1, 1, 1))
    (path,) = paths_in(tmp_path)
    content = path.read_bytes()
    assert old in content
    path.write_bytes(content.replace(old, new))
    with pytest.raises(TensorFileDamaged, match="is damaged"):
        checkpoint_io.saved_tensors([path])


def test_a_size_that_no_tensor_has_is_damaged(tmp_path: Path) -> None:
    places = {"model/weight": {"saved_offsets": [0, 0], "size": [0, 1 << 62]}}
    path = tmp_path / "sharded-00001-of-00001.safetensors"
    write_tensors({"model/weight": torch.zeros(0, 2)}, path, {"DCP_SHARDING_INFO": json.dumps(places)})
    with pytest.raises(TensorFileDamaged, match="is damaged: model/weight is not the one of other files"):
        checkpoint_io.saved_tensors([path])


def test_each_file_is_read_by_one_rank_that_has_it_and_all_ranks_read_about_as_many() -> None:
    names = [f"sharded-{rank + 1:05d}-of-00005.safetensors" for rank in range(5)]
    first, second = names[:3], names[2:]
    readers = readers_of([first, first, second, second])
    assert readers.keys() == set(names)
    assert all(name in (first, first, second, second)[rank] for name, rank in readers.items())
    assert sorted(list(readers.values()).count(rank) for rank in range(4)) == [1, 1, 1, 2]
    assert is_whole(list(readers))
    assert not is_whole(first)
    assert not is_whole([])
    assert readers_of([[], []]) == {}
