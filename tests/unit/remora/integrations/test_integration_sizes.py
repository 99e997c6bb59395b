"""How many samples a step has, and how many steps there are: of the arguments alone, and of no number of workers."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remora.integrations.sizes import Batches, TrainingSteps, batches_of, schedule_of
from remora.torch.order import Order


@pytest.mark.parametrize(
    ("shards", "global_batch", "is_alone", "found"),
    [
        (4, None, False, Batches(5, 2, 4)),
        (None, 40, False, Batches(5, 2, 4)),
        (4, 40, False, Batches(5, 2, 4)),
        (None, None, True, Batches(5, 2, 1)),
    ],
)
def test_a_step_has_a_batch_for_each_shard(
    shards: int | None, global_batch: int | None, is_alone: bool, found: Batches
) -> None:
    assert batches_of(5, 2, shards=shards, global_batch=global_batch, is_alone=is_alone) == found
    assert found.global_batch == 10 * found.shards


@pytest.mark.parametrize(
    ("shards", "global_batch", "message"),
    [
        (None, None, "say with RemoraCallback"),
        (None, 45, "a step of 45 samples"),
        (3, 40, "global_batch is 40, and .* times 3 shards is 30"),
    ],
)
def test_sizes_that_describe_no_step_are_refused(
    shards: int | None, global_batch: int | None, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        batches_of(5, 2, shards=shards, global_batch=global_batch, is_alone=False)


@given(
    samples=st.integers(1, 300),
    micro=st.integers(1, 6),
    accumulation=st.integers(1, 3),
    shards=st.integers(1, 5),
    drop_last=st.booleans(),
)
def test_an_epoch_has_the_steps_and_forward_passes_of_the_loop(
    samples: int, micro: int, accumulation: int, shards: int, drop_last: bool
) -> None:
    batches = Batches(micro, accumulation, shards)
    if drop_last and samples < batches.global_batch:
        with pytest.raises(ValueError, match="make no step"):
            schedule_of(samples, batches, max_steps=-1, num_train_epochs=1, drop_last=True)
        return
    order = Order(samples, batches.global_batch, shards, 1, drop_last=drop_last)
    found = schedule_of(samples, batches, max_steps=-1, num_train_epochs=1.5, drop_last=drop_last)
    assert found.steps_per_epoch == order.steps_per_epoch
    assert (found.total_steps, found.epochs) == (math.ceil(1.5 * order.steps_per_epoch), 2)
    last = len(order.batch(order.position_after(order.steps_per_epoch - 1)))
    position = order.position_after(order.steps_per_epoch - 1)
    sizes = [len(order.shard(position, shard)) for shard in range(shards)]
    assert batches.micro_batches(last) == sum(-(-size // micro) for size in sizes)


def test_a_number_of_steps_decides_where_it_is_given() -> None:
    assert schedule_of(
        95, Batches(5, 1, 4), max_steps=12, num_train_epochs=3.0, drop_last=False
    ) == TrainingSteps(5, 12, 3, 240)
    assert schedule_of(
        None, Batches(5, 1, 4), max_steps=12, num_train_epochs=3.0, drop_last=False
    ) == TrainingSteps(12, 12, 1, 240)
