"""Each sample exactly once per epoch, whatever the workers do."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remora.torch.order import Order, Position, check_sizes, cover, shard_size, shards_of, split_shard, total


@st.composite
def orders(draw: st.DrawFn) -> Order:
    global_batch = draw(st.integers(1, 24))
    return Order(
        samples=draw(st.integers(1, 120)),
        global_batch=global_batch,
        shards=draw(st.integers(1, global_batch)),
        seed=draw(st.integers(0, 2**40)),
        shuffle=draw(st.booleans()),
    )


@settings(deadline=None)
@given(order=orders(), data=st.data())
def test_each_sample_once_per_epoch_for_any_sequence_of_world_sizes(
    order: Order, data: st.DataObject
) -> None:
    """The world size changes before any step, and every step may be the first one after a resume."""
    for epoch in range(2):
        seen: list[int] = []
        for place in range(order.steps_per_epoch):
            world_size = data.draw(st.integers(1, order.shards))
            position = order.position_after(epoch * order.steps_per_epoch + place)
            assert position == Position(epoch, place)
            for rank in range(world_size):
                for shard in shards_of(rank, world_size, order.shards):
                    for micro in split_shard(
                        order.shard(position, shard), data.draw(st.sampled_from([None, 1, 3]))
                    ):
                        seen.extend(micro)
        assert sorted(seen) == list(range(order.samples))


@given(order=orders())
def test_the_order_of_a_step_does_not_depend_on_the_number_of_workers(order: Order) -> None:
    position = Position(1, order.steps_per_epoch - 1)
    for world_size in range(1, order.shards + 1):
        walked = [
            sample
            for rank in range(world_size)
            for shard in shards_of(rank, world_size, order.shards)
            for sample in order.shard(position, shard)
        ]
        assert walked == order.batch(position)


@given(shards=st.integers(1, 60), data=st.data())
def test_shards_are_divided_evenly_and_completely(shards: int, data: st.DataObject) -> None:
    world_size = data.draw(st.integers(1, shards))
    divided = [shards_of(rank, world_size, shards) for rank in range(world_size)]
    assert [shard for own in divided for shard in own] == list(range(shards))
    assert max(map(len, divided)) - min(map(len, divided)) <= 1
    assert divided[0].start == 0, "rank 0 carries shard 0"


def test_epochs_are_shuffled_differently_and_reproducibly() -> None:
    order = Order(samples=50, global_batch=50, shards=5, seed=3)
    first, second = order.batch(Position(0, 0)), order.batch(Position(1, 0))
    assert first != second
    assert first == Order(samples=50, global_batch=50, shards=5, seed=3).batch(Position(0, 0))
    assert first != Order(samples=50, global_batch=50, shards=5, seed=4).batch(Position(0, 0))


def test_an_uneven_last_batch_gives_every_shard_nearly_the_same() -> None:
    order = Order(samples=17, global_batch=10, shards=4, seed=0)
    assert order.steps_per_epoch == 2
    assert [len(order.shard(Position(0, 1), shard)) for shard in range(4)] == [2, 2, 2, 1]
    assert [shard_size(3, shard, 4) for shard in range(4)] == [1, 1, 1, 0]


def test_drop_last_leaves_the_uneven_batch_out() -> None:
    assert Order(samples=17, global_batch=10, shards=4, seed=0, drop_last=True).steps_per_epoch == 1


def test_a_dataset_smaller_than_a_batch_makes_one_small_step() -> None:
    order = Order(samples=3, global_batch=8, shards=4, seed=0)
    assert order.steps_per_epoch == 1
    assert sorted(order.batch(Position(5, 0))) == [0, 1, 2]


@pytest.mark.parametrize(
    ("samples", "drop_last", "message"), [(0, False, "0 samples make no step"), (7, True, "drop_last=False")]
)
def test_data_that_makes_no_step_is_refused(samples: int, drop_last: bool, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Order(samples=samples, global_batch=8, shards=4, seed=0, drop_last=drop_last)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((0, 1, None), "global_batch"),
        ((8, 0, None), "shards is a number from 1 to global_batch"),
        ((8, 9, None), "shards is a number from 1 to global_batch"),
        ((8, 4, 0), "micro_batch"),
    ],
)
def test_sizes_that_make_no_sense_are_refused_by_name(
    sizes: tuple[int, int, int | None], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        check_sizes(*sizes)


def test_more_workers_than_shards_are_refused() -> None:
    with pytest.raises(ValueError, match="5 workers cannot share 4 shards"):
        shards_of(0, 5, 4)


@given(shards=st.integers(1, 40), data=st.data())
def test_the_sum_is_the_same_tree_for_every_number_of_workers(shards: int, data: st.DataObject) -> None:
    """With brackets for a sum, the text of the whole sum shows what was added to what."""
    leaves = {(shard, shard + 1): str(shard) for shard in range(shards)}
    reference = total((0, shards), leaves, "({}+{})".format)
    world_size = data.draw(st.integers(1, shards))
    known = {
        node: total(node, leaves, "({}+{})".format)
        for rank in range(world_size)
        for node in cover(shards_of(rank, world_size, shards), shards)
    }
    assert total((0, shards), known, "({}+{})".format) == reference


def test_the_covers_of_all_workers_are_found_once() -> None:
    """Every worker asks for those of all of them in each step; of more than 256 workers none was kept."""
    workers = shards = 1024

    def step() -> None:
        for rank in range(workers):
            cover(shards_of(rank, workers, shards), shards)

    step()
    before = cover.cache_info().misses
    step()
    assert cover.cache_info().misses == before
