"""What one sample is, in a few numbers; buffers that are replaced; batches that cannot be copied."""

from __future__ import annotations

import threading
from typing import Any

import numpy
import pytest
import torch
from torch import nn

from remora.torch import Diverged, Loop
from remora.torch.agreement import StateDigests
from remora.torch.buffers import Buffers
from remora.torch.group import Group
from remora.torch.sample_fingerprints import SampleFingerprint, first_different_rank, sample_fingerprint
from remora.torch.step import repeats
from tests.unit.torch.test_weights_agree import CPU, pair


def first_rank_with_another_sample(items: list[Any], *, is_bitwise: bool) -> Any:
    """What both of two ranks find that read these items."""

    def act(group: Group) -> Any:
        return first_different_rank(
            group, sample_fingerprint(3, 0, items[group.rank]), CPU, is_bitwise=is_bitwise
        )

    one, other = pair(act)
    assert one == other, "all workers find the same"
    return one


@pytest.mark.parametrize("is_bitwise", [True, False])
@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((torch.ones(3), 1), (torch.ones(3), 2)),
        ((torch.ones(3), 1), (torch.ones(4), 1)),
        ((torch.tensor([1, 2]), 0.5), (torch.tensor([2, 1]), 0.5)),
        ({"text": "a"}, {"text": "b"}),
        ({"text": "a"}, {"word": "a"}),
        (numpy.zeros((2, 2), numpy.uint8), numpy.full((2, 2), 9, numpy.uint8)),
        ([b"x", 1.0], [b"x", 2.0]),
        (torch.ones(3, dtype=torch.bfloat16), -torch.ones(3, dtype=torch.bfloat16)),
    ],
)
def test_other_samples_have_other_marks(one: Any, other: Any, is_bitwise: bool) -> None:
    assert first_rank_with_another_sample([one, one], is_bitwise=is_bitwise) is None
    assert first_rank_with_another_sample([one, other], is_bitwise=is_bitwise) == 1


def test_what_rounding_explains_is_another_sample_for_bitwise_alone() -> None:
    items = [torch.ones(3), torch.ones(3) + 1e-6]
    assert first_rank_with_another_sample(items, is_bitwise=False) is None
    assert first_rank_with_another_sample(items, is_bitwise=True) == 1


def test_what_has_no_content_to_look_at_does_not_count() -> None:
    assert sample_fingerprint(3, 1, (object(), torch.ones(2))) == sample_fingerprint(
        3, 1, (object(), torch.ones(2))
    )
    assert isinstance(sample_fingerprint(3, 1, object()), SampleFingerprint)


@pytest.mark.parametrize("is_bitwise", [True, False])
def test_counts_and_masks_are_compared_like_weights(is_bitwise: bool) -> None:
    def act(group: Group) -> Any:
        held = {"w": torch.ones(3), "mask": torch.ones(20_001, dtype=torch.bool), "seen": torch.tensor(3)}
        held["seen"] += group.rank
        return StateDigests(held, CPU).compare(group, is_bitwise=is_bitwise)

    assert pair(act) == [("seen", [1])] * 2


def test_a_loss_repeats_but_for_rounding_where_that_is_allowed() -> None:
    assert repeats(1.0, 1.0, is_bitwise=True)
    assert not repeats(1.0, 1.0 + 1e-6, is_bitwise=True)
    assert repeats(1.0, 1.0 + 1e-6, is_bitwise=False)
    assert not repeats(1.0, 1.01, is_bitwise=False)
    assert repeats(float("nan"), float("nan"), is_bitwise=True)
    assert not repeats(float("nan"), 1.0, is_bitwise=False)


class Cached(nn.Module):
    """A table that grows with the longest sequence that it saw, and a running mean beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.arange(4.0), persistent=False)
        self.register_buffer("mean", torch.zeros(2))

    def see(self, length: int) -> None:
        if length > len(self.table):
            self.table = torch.arange(float(length))
        self.mean = self.mean + length


def test_a_buffer_of_another_shape_is_a_cache_and_one_of_the_same_shape_goes_back() -> None:
    module = Cached()
    buffers = Buffers(module)
    mean = module.mean
    buffers.begin()
    module.see(9)
    assert set(buffers.held()) == {"mean"}, "what is not saved belongs to one rank"
    assert buffers.held()["mean"] is module.mean
    buffers.restore()
    assert module.mean is mean
    assert torch.equal(mean, torch.zeros(2))
    assert len(module.table) == 9


def trained(compute: Any, **changed: Any) -> None:
    """Four steps of two samples."""
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = [torch.ones(2)] * 4
    for step in Loop(model, optimizer, data=data, global_batch=2, shards=1, total_steps=4, **changed):
        step.backward(compute)
        optimizer.step()


def test_a_batch_that_cannot_be_copied_is_not_rehearsed() -> None:
    calls: list[int] = []

    def compute(model: nn.Module, batch: Any) -> torch.Tensor:
        calls.append(1)
        return model(torch.stack(batch[0])).sum()

    trained(compute, collate_fn=lambda items: [items, threading.Lock()])
    assert len(calls) == 4


def test_a_batch_that_the_function_changes_is_rehearsed_with_a_copy() -> None:
    calls: list[int] = []

    def compute(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return model(batch.mul_(2.0)).sum()

    trained(compute)
    assert len(calls) == 5, "once more in the second step"


def test_what_lasts_is_looked_for_unless_the_script_says_never() -> None:
    calls: list[int] = []

    def compute(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return model(batch).sum() * len(calls)

    with pytest.raises(Diverged, match="for one micro-batch with the same random numbers"):
        trained(compute)
    calls.clear()
    trained(compute, check_every=0)
    assert len(calls) == 4
