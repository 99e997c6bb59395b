"""What ranks say of the blocks that they read, and how these come to a group that cuts the tensors otherwise."""

from __future__ import annotations

import itertools
import random
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from remora.torch.sharded import checkpoint_io
from remora.torch.sharded.checkpoint_io import SavedTensor
from remora.torch.sharded.checkpoint_parts import plans_of
from remora.torch.sharded.grid import Grid, Parallel
from remora.torch.sharded.reshard import TargetPlans
from remora.torch.sharded.reshard_plan import Split
from remora.torch.sharded.saved_blocks import SavedAlike, listed, together
from remora.torch.sharded.state_shards import TensorSpec
from tests.unit.torch.test_sharded_files import GRIDS, layout_of, paths_in, whole_of, write_all


def said_together(ranks: Sequence[dict[str, SavedTensor]]) -> list[SavedAlike]:
    """What each rank makes of what all say."""
    said = [listed(own) for own in ranks]
    digests = [listing.digest for listing, _ in said]
    listings = {listing.digest: listing for listing, _ in said}
    return list(together(listings, digests, [places for _, places in said]))


def model_of(splits: tuple[Split, ...]) -> Any:
    """A model that cuts all of its tensors in one way."""
    return SimpleNamespace(as_split_here=lambda name, spec: replace(spec, splits=splits))


@pytest.mark.parametrize("after", [1, 3, 4])
@pytest.mark.parametrize("before", GRIDS)
def test_every_block_arrives_from_the_rank_that_reads_it(before: Grid, after: int, tmp_path: Path) -> None:
    layout = layout_of(before, random.Random(after))
    write_all(tmp_path, layout, before)
    paths, whole, grid = paths_in(tmp_path), whole_of(layout), Parallel().arrange(after)
    ranks = [checkpoint_io.saved_tensors(paths[rank::after]) for rank in range(after)]
    saved, arrived = said_together(ranks), set()
    model = model_of((Split(0, grid.shard, 1),))
    for alike in saved:
        assert alike.is_whole
        plans = [list(plans_of(alike, model, TargetPlans(rank, after, grid))) for rank in range(after)]
        for of_name in zip(*plans, strict=True):
            name, here, _ = of_name[0]
            arrived.add(name)
            sent = {
                (one.source, one.target, one.shard): one for *_, (plan, _) in of_name for one in plan.outgoing
            }
            for rank, (*_, (plan, _)) in enumerate(of_name):
                rows = here.box(rank)
                got = torch.zeros(tuple(map(len, rows)), dtype=here.dtype)
                for one in plan.incoming:
                    assert sent.pop((one.source, one.target, one.shard)) == one
                    *_, file = ranks[one.source][name].blocks[alike.numbers[one.shard]]
                    got[one.target_slices] = file.view(name)[one.source_slices]
                assert torch.equal(got, whole[name][tuple(slice(row.start, row.stop) for row in rows)])
            assert sent == {}, "nothing travels that is not awaited"
    assert arrived == layout.keys()


def tensor(name: str, size: tuple[int, ...], *places: Any) -> SavedTensor:
    return SavedTensor(size, torch.float32, [(offset, shape, None) for offset, shape in places], name)  # type: ignore[misc]


def test_blocks_that_are_missing_are_seen_in_each_tensor() -> None:
    first = {
        "a": tensor("a", (4,), ((0,), (2,))),
        "b": tensor("b", (4,), ((0,), (2,))),
    }
    second = {"a": tensor("a", (4,), ((2,), (2,)))}
    assert {alike.names: alike.is_whole for alike in said_together([first, second])} == {
        ("a",): True,
        ("b",): False,
    }


def test_a_tensor_of_another_size_in_other_files_is_refused() -> None:
    first, second = {"a": tensor("a", (4,), ((0,), (2,)))}, {"a": tensor("a", (5,), ((2,), (2,)))}
    with pytest.raises(ValueError, match=r"^a is not the one of other files$"):
        said_together([first, second])


def test_a_number_without_dimensions_lies_on_one_rank() -> None:
    (alike,) = said_together([{}, {"step": tensor("step", (), ((), ()))}])
    assert alike.is_whole
    assert (alike.holders, alike.boxes().shape) == ((1,), (1, 0, 2))


def steps_to_plan(ranks: int, layers: int) -> int:
    """Calls, of Python and of C, that a rank makes to plan a resume of as many files as ranks, but for one."""
    sizes = itertools.cycle([(8192, 64), (64, 8192), (8192,)])
    kinds = {f"{number:03}": size for number, size in zip(range(layers), sizes, strict=False)}

    def places(rank: int, size: tuple[int, ...]) -> list[Any]:
        box = TensorSpec(size, torch.float32, (Split(0, ranks, 1),)).box(rank)
        shape = tuple(map(len, box))
        return [(tuple(rows.start for rows in box), shape)] if all(shape) else []

    owns = []
    for rank in range(ranks):
        cut = {size: places(rank, size) for size in set(kinds.values())}
        owns.append({name: tensor(name, size, *cut[size]) for name, size in kinds.items() if cut[size]})
    said = [listed(own) for own in owns]
    listings = {listing.digest: listing for listing, _ in said}
    digests = [listing.digest for listing, _ in said]
    count = 0

    def step(_frame: object, event: str, _argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(step)
    try:
        listed(owns[0])
        saved = list(together(listings, digests, [places for _, places in said]))
        targets = TargetPlans(ranks // 2, ranks, Parallel().arrange(ranks))
        plans = [one for alike in saved for one in plans_of(alike, model_of((Split(0, ranks, 1),)), targets)]
    finally:
        sys.setprofile(None)
    assert len(plans) == layers
    return count


def test_a_tensor_more_costs_the_same_whatever_the_number_of_ranks() -> None:
    steps_to_plan(16, 30)
    few, many = (steps_to_plan(ranks, 330) - steps_to_plan(ranks, 30) for ranks in (100, 1000))
    assert many <= 1.1 * few
    assert few <= 300 * 40


def test_what_a_rank_computes_grows_no_faster_than_the_number_of_ranks() -> None:
    steps_to_plan(16, 30)
    assert steps_to_plan(1000, 300) <= 10 * steps_to_plan(100, 300)
