"""What a script builds for a group, checked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Shard

from remora.torch.buffers import Buffers
from remora.torch.randomness import derive, seed_everything
from remora.torch.sharded.pieces import Sharded
from remora.torch.state import Stateful

#: Returns a model that is sharded over the mesh, its optimizer, and a scheduler if there is one.
Build = Callable[[DeviceMesh], tuple[Any, ...]]


@dataclass
class Built:
    """The model of one group with what belongs to it."""

    sharded: Sharded
    scheduler: Any
    #: What forward passes change, as it is when training goes on.
    buffers: Buffers

    @property
    def parts(self) -> dict[str, Stateful]:
        """What has a state besides the sharded tensors."""
        return {"sharded": self.sharded} | ({"scheduler": self.scheduler} if self.scheduler else {})


def construct(build: Build, mesh: DeviceMesh, seed: int) -> Built:
    """Call `build`, with the same random numbers on all ranks, and prepare what it returns.

    Raises TypeError and ValueError for what cannot be trained.
    """
    seed_everything(derive(seed, "build"))
    returned = build(mesh)
    if not isinstance(returned, tuple) or len(returned) not in (2, 3):
        raise TypeError("build(mesh) returns (model, optimizer) or (model, optimizer, scheduler)")
    model, optimizer, *rest = returned
    check(model, mesh)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            # Losses are weighted by their samples, so gradients are sums.
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
    return Built(Sharded(model, optimizer), rest[0] if rest else None, Buffers(model))


def check(model: torch.nn.Module, mesh: DeviceMesh) -> None:
    """Raise ValueError for a model that is not sharded over this mesh alone."""
    for name, parameter in model.named_parameters():
        is_sharded = isinstance(parameter, DTensor)
        if not is_sharded:
            raise ValueError(f"{name} is not sharded: call fully_shard(model, mesh=mesh) at the end of build")
        placements = parameter.placements
        if parameter.device_mesh != mesh or len(placements) != 1 or not isinstance(placements[0], Shard):
            raise ValueError(f"{name} is not cut along one dimension of the mesh that build was given")
