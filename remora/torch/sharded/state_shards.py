"""A rank's shard of a model and its optimizer as one flat tensor in host memory, and back into another layout."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from remora.torch.sharded.grid import SHARD, TENSOR, Grid
from remora.torch.sharded.reshard_plan import Box, Split, box_of

#: Bytes that every tensor's offset in a shard is a multiple of.
_ALIGNMENT = 64


@dataclass(frozen=True)
class TensorSpec:
    """A tensor as a whole, and how it is split."""

    size: tuple[int, ...]
    dtype: torch.dtype
    splits: tuple[Split, ...]

    def box(self, shard: int) -> Box:
        """What shard `shard` of the state has of it."""
        return box_of(self.size, self.splits, shard)


#: Specs by name, in the order in which the tensors lie in a shard; the same on all ranks.
StateLayout = dict[str, TensorSpec]


class ShardOffsets:
    """Where the tensors of one shard lie in its flat tensor, in bytes."""

    def __init__(self, layout: StateLayout, shard: int) -> None:
        self._layout = layout
        self._found: dict[str, tuple[int, int, tuple[int, ...]]] = {}
        end = 0
        for name, spec in layout.items():
            block = tuple(map(len, spec.box(shard)))
            first = -(-end // _ALIGNMENT) * _ALIGNMENT
            end = first + math.prod(block) * spec.dtype.itemsize
            self._found[name] = first, end, block
        #: Bytes of the shard.
        self.size_bytes = end

    def nbytes(self, name: str) -> int:
        """Bytes of a tensor's block."""
        first, end, _ = self._found[name]
        return end - first

    def view(self, memory: torch.Tensor, name: str) -> torch.Tensor:
        """A tensor's block in the flat tensor of a shard."""
        first, end, block = self._found[name]
        return memory[first:end].view(self._layout[name].dtype).view(block)


class ShardedState:
    """A model and its optimizer as they are now."""

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, grid: Grid) -> None:
        self.model = model
        self.optimizer = optimizer
        self._grid = grid
        #: The sharded ones, also while a forward pass has put whole ones into the model.
        self.parameters: dict[str, DTensor] = dict(model.named_parameters())
        self._model_names = _model_names(model)
        self._layout: StateLayout = {}

    def tensors(self) -> Iterator[tuple[str, DTensor]]:
        """All sharded tensors with their names, in the same order on all ranks."""
        for name, parameter in self.parameters.items():
            yield f"model/{name}", parameter
            for key, value in self.optimizer.state.get(parameter, {}).items():
                if isinstance(value, DTensor):
                    yield f"optimizer/{name}/{key}", value

    def layout(self) -> StateLayout:
        """Specs of all sharded tensors; the same object as long as there are no others."""
        tensors = dict(self.tensors())
        if self._layout.keys() != tensors.keys():
            self._layout = {
                name: TensorSpec(tuple(one.shape), one.dtype, splits_of(one, self._grid))
                for name, one in tensors.items()
            }
        return self._layout

    def copy_into(self, memory: torch.Tensor, offsets: ShardOffsets) -> None:
        """Copy this rank's blocks into a flat tensor in host memory."""
        for name, one in self.tensors():
            offsets.view(memory, name).copy_(one.detach().to_local(), non_blocking=True)

    def take_back(self, layout: StateLayout, memory: torch.Tensor, offsets: ShardOffsets) -> None:
        """Go back to this rank's shard of a snapshot of this very group, but for what `state_dict` has."""
        self.optimizer.state.clear()
        for name, spec in layout.items():
            self.set_block(name, spec, offsets.view(memory, name).clone())

    def state_dict(self) -> dict[str, Any]:
        """Everything else, which is the same on all ranks; tensors are copied to host memory."""
        scalars = {
            name: {
                key: _copied(value)
                for key, value in self.optimizer.state.get(parameter, {}).items()
                if not isinstance(value, DTensor)
            }
            for name, parameter in self.parameters.items()
        }
        groups = [
            {key: _copied(value) for key, value in group.items() if key != "params"}
            for group in self.optimizer.param_groups
        ]
        buffers = {name: _copied(buffer) for name, buffer in self.model.named_buffers()}
        return {"scalars": scalars, "groups": groups, "buffers": buffers}

    def names(self) -> dict[str, Any]:
        """What a checkpoint says for those who open it without the script.

        `model`: names in the model's state dictionary, each with that of the tensor, which is another one where weights
        are tied.  `optimized`: the names of the parameters in each group of the optimizer, in their order.
        """
        known = {id(one): name for name, one in self.parameters.items()}
        groups = [
            [known.get(id(one), "") for one in group["params"]] for group in self.optimizer.param_groups
        ]
        return {"model": dict(self._model_names), "optimized": {"optimizer": groups}}

    def load_state_dict(self, whole: Mapping[str, Any]) -> None:
        """Take over what `state_dict` returned; raises ValueError for that of another optimizer."""
        groups = self.optimizer.param_groups
        if len(whole["groups"]) != len(groups):
            raise ValueError(
                f"its optimizer has {len(whole['groups'])} groups of parameters, and the script's has {len(groups)}"
            )
        unknown = [key for saved in whole["groups"] for key in saved if key not in groups[0]]
        if unknown:
            raise ValueError(f"its optimizer has {unknown[0]}, and {type(self.optimizer).__name__} has not")
        parameters = self.parameters
        for name, values in whole["scalars"].items():
            state = self.optimizer.state[parameters[name]] if values else {}
            for key, value in values.items():
                on_device = isinstance(value, torch.Tensor) and value.dim() > 0
                state[key] = value.to(parameters[name].device) if on_device else _copied(value)
        for group, saved in zip(groups, whole["groups"], strict=True):
            group.update({key: _copied(value) for key, value in saved.items()})
        for name, buffer in self.model.named_buffers():
            buffer.detach().copy_(whole["buffers"][name])

    def set_block(self, name: str, spec: TensorSpec, block: torch.Tensor) -> None:
        """Take over this rank's block of one tensor."""
        parameter, key = self._owner(name)
        if key is None:
            parameter.detach().to_local().copy_(block)
        else:
            self.optimizer.state[parameter][key] = like(parameter, block, spec)

    def block_to_fill(self, name: str, spec: TensorSpec, shard: int) -> torch.Tensor:
        """Where a shard's block of one tensor may be put before `set_block` takes it over, without a copy of it."""
        parameter, key = self._owner(name)
        if key is None:
            return parameter.detach().to_local()
        return torch.empty(
            tuple(map(len, spec.box(shard))), dtype=spec.dtype, device=parameter.to_local().device
        )

    def as_split_here(self, name: str, spec: TensorSpec) -> TensorSpec:
        """The spec of a tensor of another group as this one splits it."""
        return replace(spec, splits=splits_of(self.owner(name), self._grid))

    @property
    def shard(self) -> int:
        """The shard of the state that this rank holds."""
        return self._grid.state_shard_of(dist.get_rank())

    def owner(self, name: str) -> DTensor:
        """The parameter that a tensor belongs to."""
        return self._owner(name)[0]

    def _owner(self, name: str) -> tuple[DTensor, str | None]:
        """The parameter that a tensor belongs to, and its key in the optimizer's state; None for itself."""
        kind, _, rest = name.partition("/")
        if kind == "model":
            return self.parameters[rest], None
        owner, _, key = rest.rpartition("/")
        return self.parameters[owner], key


def _model_names(model: torch.nn.Module) -> dict[str, str]:
    """The names in the state dictionary of a model, in its order, each with the first name of the same tensor."""
    first: dict[int, str] = {}
    found = {}
    for path, module in model.named_modules(remove_duplicate=False):
        saved = {**module._parameters, **module._buffers}
        for key, tensor in saved.items():
            if tensor is not None and key not in module._non_persistent_buffers_set:
                name = f"{path}.{key}" if path else key
                found[name] = first.setdefault(id(tensor), name)
    return found


def splits_of(tensor: DTensor, grid: Grid) -> tuple[Split, ...]:
    """How a tensor is split over the dimensions of its mesh: by tensor parallelism first, then by FSDP."""
    placed = dict(zip(tensor.device_mesh.mesh_dim_names, tensor.placements, strict=True))
    found = [Split(placed[SHARD].dim, grid.shard, grid.tensor)]
    if TENSOR in placed and not placed[TENSOR].is_replicate():
        found.insert(0, Split(placed[TENSOR].dim, grid.tensor, 1))
    return tuple(found)


def like(parameter: DTensor, local: torch.Tensor, spec: TensorSpec) -> DTensor:
    """A tensor that is split as `parameter`, out of this rank's block of it."""
    whole = torch.empty(spec.size, dtype=spec.dtype, device="meta")
    return DTensor.from_local(
        local.to(parameter.device).contiguous(),
        parameter.device_mesh,
        parameter.placements,
        run_check=False,
        shape=whole.shape,
        stride=whole.stride(),
    )


def _copied(value: Any) -> Any:
    return value.detach().to("cpu", copy=True) if isinstance(value, torch.Tensor) else value
