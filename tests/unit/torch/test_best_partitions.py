"""Best weights of a sharded model: another number of workers gets the same parameters."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from remora.deepspeed.best_weights import best_weights_of, recut
from remora.deepspeed.refusal import Refused


def cut(whole: torch.Tensor, workers: int) -> list[torch.Tensor]:
    """As DeepSpeed: parts of one size, and values that mean nothing at the end."""
    size = math.ceil(whole.numel() / workers)
    padded = torch.cat([whole, torch.full((size * workers - whole.numel(),), float("nan"))])
    return list(padded.split(size))


@given(count=st.integers(1, 50), before=st.integers(1, 9), after=st.integers(1, 9))
def test_parameters_are_the_same_for_any_holders_of_the_parts(count: int, before: int, after: int) -> None:
    whole = torch.arange(float(count))
    parts, size = cut(whole, before), math.ceil(count / after)
    found = torch.cat([recut(parts, count, size, rank) for rank in range(after)])
    assert torch.equal(found[:count], whole)
    assert not found[count:].any()


def test_best_weights_of_some_workers_alone_are_refused(tmp_path: Path) -> None:
    assert not best_weights_of(3, tmp_path).are_kept
    assert not best_weights_of(3, None).are_kept
    (tmp_path / "best_partitions-0-of-2.pt").touch()
    with pytest.raises(Refused, match="lacks best weights of some workers"):
        best_weights_of(3, tmp_path)
    (tmp_path / "best_partitions-1-of-2.pt").touch()
    assert best_weights_of(3, tmp_path).are_kept
