"""A script's sampler gives whole numbers of samples, and workers compare them every `check_every` steps."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
import torch
from torch.utils.data import SequentialSampler, TensorDataset

from remora.torch.feed import FeedPlan, load_batches
from remora.torch.loading import Loading
from remora.torch.order import Position
from remora.torch.sampling import Sampling

PLAN = FeedPlan(
    global_batch=2,
    shards=1,
    micro_batch=None,
    seed=0,
    shuffle=True,
    drop_last=False,
    epochs=10,
    steps=None,
    own=range(1),
    start=Position(0, 0),
    probe_every=5,
)


@pytest.mark.parametrize("wrong", [0.9, "1", 4, -1, None, 2**70, torch.tensor(1.7), torch.tensor([0, 1])])
def test_what_is_no_whole_number_of_a_sample_is_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match="is no number of a sample from 0 to 3"):
        Sampling(4, [0, wrong, 2, 3], None).epoch(0, 1, 2, drop_last=False)
    with pytest.raises(ValueError, match="is no number of a sample from 0 to 3"):
        Sampling(4, None, [[0, 1], [wrong]]).epoch(0, 1, 2, drop_last=False)


def test_numbers_of_other_libraries_are_taken() -> None:
    drawn = Sampling(4, [numpy.int32(3), torch.tensor(2), True], None).epoch(0, 1, 2, drop_last=False)
    assert drawn.numbers.tolist() == [3, 2, 1]


def test_samples_are_compared_every_so_many_steps_however_short_an_epoch_is() -> None:
    data = TensorDataset(torch.arange(4.0))
    loading = Loading(sampling=Sampling(4, SequentialSampler(data), None))
    probed = [one.is_probed for one, _ in load_batches(data, PLAN, loading)]
    assert probed == [step % 5 == 0 for step in range(20)]
