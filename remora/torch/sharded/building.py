"""Calls the `build` function of a script for a group, and checks the model and optimizer that it returns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from remora.torch.buffers import Buffers
from remora.torch.loop_settings import check_modules
from remora.torch.optimizers import EARLY, Optimizers
from remora.torch.randomness import derive, seed_everything
from remora.torch.sharded.grid import REPLICATE, SHARD, TENSOR, Grid
from remora.torch.sharded.state_shards import ShardedState
from remora.torch.state import Stateful
from remora.torch.tensor_files import holds

#: Returns a model that is sharded over the mesh, its optimizer, and a scheduler if there is one.
Build = Callable[[DeviceMesh], tuple[Any, ...]]

#: In the state that all ranks hold alike, and in no state of a model that is not sharded.
SHARDED_PART = "sharded"
_UNKNOWN = (
    "an optimizer that build did not return changes parameters of the model: ShardedLoop saves one, so put all"
    " parameters into its groups"
)


@dataclass
class BuiltModel:
    """The model of one group with what belongs to it."""

    sharded: ShardedState
    grid: Grid
    scheduler: Stateful | None
    #: What forward passes change, as it is when training goes on.
    buffers: Buffers
    #: Watches when optimizers change the weights.
    optimizers: Optimizers
    #: Whether each parameter is trained, by name.
    trained: dict[str, bool]

    def drop_gradients(self) -> None:
        """Let optimizers change nothing."""
        for one in self.sharded.model.parameters():
            one.grad = None

    def check_frozen(self) -> None:
        """Raise RuntimeError where the script has frozen or unfrozen a parameter since `build` returned."""
        for name, one in self.sharded.parameters.items():
            if one.requires_grad != self.trained[name]:
                raise RuntimeError(
                    f"{name} was {'unfrozen' if one.requires_grad else 'frozen'} after build returned, which FSDP does"
                    " not follow and the next group would not know: call requires_grad_ in build, before fully_shard"
                )

    def parts(self, scaler: Stateful | None) -> dict[str, Stateful]:
        """What has a state that is the same on all ranks."""
        named = {SHARDED_PART: self.sharded, "scheduler": self.scheduler, "scaler": scaler}
        return {name: part for name, part in named.items() if part is not None}


def construct(build: Build, mesh: DeviceMesh, grid: Grid, seed: int, early: str = EARLY) -> BuiltModel:
    """Call `build`, with the same random numbers on all ranks, and prepare what it returns.

    `early`: the error where an optimizer steps before the gradients are there.

    Raises TypeError and ValueError for what cannot be trained.
    """
    seed_everything(derive(seed, "build"))
    returned = build(mesh)
    if not isinstance(returned, tuple) or len(returned) not in (2, 3):
        raise TypeError("build(mesh) returns (model, optimizer) or (model, optimizer, scheduler)")
    model, optimizer, *rest = returned
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(
            "build(mesh) returns one optimizer behind the model: put all parameters into its groups"
        )
    check(model, grid)
    optimizers = Optimizers(model, optimizer, _UNKNOWN, early)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            # Losses are weighted by their samples, so gradients are sums.
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
            # Ranks add up the gradients of a block in one collective: one that has not used a parameter, as an expert
            # to which it sent no sample, would give fewer numbers than the others.
            module.set_reduce_scatter_unused_params(True, recurse=False)
    sharded = ShardedState(model, optimizer, grid)
    trained = {name: one.requires_grad for name, one in sharded.parameters.items()}
    return BuiltModel(sharded, grid, rest[0] if rest else None, Buffers(model), optimizers, trained)


def check(model: torch.nn.Module, grid: Grid) -> None:
    """Raise ValueError for a model that is not sharded as the mesh says, or whose result depends on the workers."""
    check_modules(model)
    for name, parameter in model.named_parameters():
        is_sharded = isinstance(parameter, DTensor) and SHARD in (parameter.device_mesh.mesh_dim_names or ())
        if not is_sharded:
            raise ValueError(f"{name} is not sharded: call fully_shard(model, mesh=mesh) at the end of build")
        if parameter.to_local().is_cpu and parameter.device_mesh.device_type != "cpu":
            # PyTorch makes sharded tensors on the mesh's device, and NCCL sends nothing from host memory.
            raise ValueError(
                f"{name} is kept in host memory while GPUs compute (CPUOffloadPolicy), where no change of workers could"
                " put the optimizer's state back: call fully_shard without offload_policy"
            )
        if not holds(parameter.dtype):
            raise ValueError(
                f"{name} is of the type {parameter.dtype}, which the files of a checkpoint cannot hold: use another one"
            )
        if not _is_sharded_well(parameter):
            raise ValueError(
                f"{name} is placed as {parameter.placements}: shard it over the dimensions of the mesh that build was "
                "given with parallelize_module(..., mesh['tensor'], ...) first and fully_shard(..., mesh=...) then"
            )
        if not _is_sharded_evenly(parameter, grid.tensor):
            raise ValueError(
                f"{name} of {tuple(parameter.shape)} cannot be sharded evenly over tensor={grid.tensor} workers: "
                "choose sizes that are multiples of it, or shard this layer along its other dimension"
            )


def _is_sharded_evenly(parameter: DTensor, tensor: int) -> bool:
    """Whether tensor parallelism gives all its workers equally much of what FSDP splits along the same dimension.

    Of others torch does not know which rows a worker has, and would write them into the wrong places of a checkpoint.
    """
    placed = dict(zip(parameter.device_mesh.mesh_dim_names, parameter.placements, strict=True))
    if TENSOR not in placed or placed[TENSOR].is_replicate() or placed[TENSOR].dim != placed[SHARD].dim:
        return True
    return int(parameter.shape[placed[TENSOR].dim]) % tensor == 0


def _is_sharded_well(parameter: DTensor) -> bool:
    names = parameter.device_mesh.mesh_dim_names
    for name, placement in zip(names, parameter.placements, strict=True):
        is_whole = placement.is_replicate()
        may_be_whole, may_be_sharded = name in (REPLICATE, TENSOR), name in (SHARD, TENSOR)
        if not (is_whole and may_be_whole) and not (
            not is_whole and may_be_sharded and hasattr(placement, "dim")
        ):
            return False
    return True
