"""Random numbers that follow the shard, not the process.

Every micro-batch starts from a seed that follows from the job's seed, the step, the shard and the micro-batch alone.
So nothing random has to be saved, sent to a joining worker, or won back from a lost one.
"""

from __future__ import annotations

import hashlib
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


def derive(seed: int, *path: str | int) -> int:
    """A seed from 0 to 2**63 - 1 for the place that `path` names; different paths give unrelated seeds."""
    text = "/".join(map(str, (seed, *path)))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def seed_everything(seed: int, *, devices: bool = True) -> None:
    """Seed torch (its GPUs too, unless `devices` is False), Python's `random`, and numpy where it is imported."""
    # Not `torch.manual_seed`: as long as no GPU is in use it notes a stack trace with each call, for later.
    torch.default_generator.manual_seed(seed)
    if devices and torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(seed)
    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed & 0xFFFFFFFF)


class RandomStream:
    """Random numbers of their own for code that runs now and then between others'."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._state: tuple[Any, ...] | None = None

    @contextmanager
    def running(self) -> Iterator[None]:
        """Inside, random numbers go on where this stream was left; outside nothing of it is seen."""
        outside = capture()
        if self._state is None:
            seed_everything(self._seed, devices=False)
        else:
            restore(self._state)
        try:
            yield
        finally:
            self._state = capture()
            restore(outside)


def capture() -> tuple[Any, ...]:
    """The states of the random number generators of torch on processors, of Python and of numpy."""
    numpy = sys.modules.get("numpy")
    return (
        torch.get_rng_state(),
        random.getstate(),
        numpy.random.get_state() if numpy is not None else None,
    )


def restore(state: tuple[Any, ...]) -> None:
    """Set them to captured states."""
    of_torch, of_python, of_numpy = state
    torch.set_rng_state(of_torch)
    random.setstate(of_python)
    if of_numpy is not None:
        sys.modules["numpy"].random.set_state(of_numpy)
