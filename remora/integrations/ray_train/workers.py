"""The process group of the training loop, and what its workers say to each other beside it."""

from __future__ import annotations

import datetime
from typing import Any

import torch
import torch.distributed as dist

from remora import training


class TrainWorkers:
    """All workers of the worker group; they meet when it is made."""

    def __init__(self, backend: str, timeout_s: float) -> None:
        """Join the process group.

        `backend`: that of `torch.distributed` for tensors.  Raises what `init_process_group` raises.
        """
        self.world = training.world()
        if torch.cuda.is_available():
            torch.cuda.set_device(self.world.local_rank % torch.cuda.device_count())
        if not dist.is_initialized():
            self._join(backend, datetime.timedelta(seconds=timeout_s))
        # What is not a tensor goes over a group for processors.
        self._group = None if dist.get_backend() == "gloo" else dist.new_group(backend="gloo")

    def _join(self, backend: str, timeout: datetime.timedelta) -> None:
        world = self.world
        if world.world_size == 1:
            # By hand there is no rendezvous.
            dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1, timeout=timeout)
        else:
            dist.init_process_group(backend, timeout=timeout)

    def gather(self, own: Any) -> list[Any]:
        """What every worker gives, in the order of ranks; all of them call it.  It must be possible to pickle it."""
        if self.world.world_size == 1:
            return [own]
        given: list[Any] = [None] * self.world.world_size
        dist.all_gather_object(given, own, group=self._group)
        return given

    def close(self) -> None:
        """Leave the process group once all workers are here."""
        if dist.is_initialized():
            self.gather(None)
            dist.destroy_process_group()
