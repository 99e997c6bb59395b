"""What transformers and accelerate see of the workers: one process, which knows whether it is that of rank 0.

Gradients are added up by `Loop`.  A process group of accelerate would average them a second time, and would not survive
the loss of a worker.  So the launcher's variables are hidden from accelerate while it looks for a world.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from accelerate import PartialState
from accelerate.utils import DistributedType
from transformers import Trainer, TrainingArguments

from remora import training

#: Variables of launchers by which accelerate finds a world of several processes.
_LAUNCHERS = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "PMI_SIZE",
    "OMPI_COMM_WORLD_SIZE",
    "MV2_COMM_WORLD_SIZE",
)


def be_one_process() -> None:
    """Let accelerate see a single process from now on, and TrainingArguments this worker's rank and device."""
    _replace(PartialState, "__init__", _hidden(PartialState.__init__))
    devices = functools.cached_property(_own_device(TrainingArguments.__dict__["_setup_devices"].func))
    devices.__set_name__(TrainingArguments, "_setup_devices")
    _replace(TrainingArguments, "_setup_devices", devices)
    # `should_save`, `should_log` and what callbacks see as `is_world_process_zero` follow from these two.  Both are the
    # rank in the whole group, so that one worker writes and logs, also where each worker is alone on its node.
    for name in ("process_index", "local_process_index"):
        _replace(TrainingArguments, name, property(lambda _: training.world().rank))


def check_one_process(trainer: Trainer) -> None:
    """Raise RuntimeError where accelerate has found the world of a launcher."""
    if trainer.accelerator.distributed_type != DistributedType.NO or trainer.accelerator.num_processes != 1:
        raise RuntimeError(
            "accelerate has formed a process group of its own, which would not survive the loss of a worker: import"
            " remora.integrations.transformers before TrainingArguments(...) and Accelerator(...) are made, and set no"
            " options of DeepSpeed, FSDP or parallelism"
        )


def follow_rank(trainer: Trainer) -> None:
    """Let callbacks see whether this worker is the one of rank 0 now: that may have changed with the group."""
    is_first = training.world().rank == 0
    trainer.state.is_world_process_zero = trainer.state.is_local_process_zero = is_first


@contextmanager
def _without_launcher() -> Iterator[None]:
    held = {name: os.environ.pop(name) for name in _LAUNCHERS if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(held)


def _hidden(made: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(made)
    def __init__(self: Any, *arguments: Any, **named: Any) -> None:  # noqa: N807
        with _without_launcher():
            made(self, *arguments, **named)

    return __init__


def _own_device(find: Callable[[Any], torch.device]) -> Callable[[Any], torch.device]:
    def _setup_devices(self: Any) -> torch.device:
        device = find(self)
        if device.type != "cuda":
            return device
        # A single process would take the first GPU, and all of them for torch.nn.DataParallel.
        device = torch.device("cuda", training.world().local_rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
        self.distributed_state.device = device
        self._n_gpu = 1
        return device

    return _setup_devices


def _replace(owner: type, name: str, value: Any) -> None:
    setattr(owner, name, value)
