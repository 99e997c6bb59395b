"""The state of a sharded model and its optimizer as one flat piece of host memory, and back into another layout."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from remora.torch.sharded.cuts import Box, Cut, box_of
from remora.torch.sharded.grid import SHARD, TENSOR, Grid

#: Bytes that every tensor's place in a piece is a multiple of.
_ALIGNMENT = 64


@dataclass(frozen=True)
class Shape:
    """A tensor as a whole, and how it is cut."""

    size: tuple[int, ...]
    dtype: torch.dtype
    cuts: tuple[Cut, ...]

    def box(self, part: int) -> Box:
        """What piece `part` has of it."""
        return box_of(self.size, self.cuts, part)


#: Shapes by name, in the order in which they lie in a piece; the same on all ranks.
Layout = dict[str, Shape]


class Places:
    """Where the tensors of one piece lie in it."""

    def __init__(self, layout: Layout, part: int) -> None:
        self._layout = layout
        self._found: dict[str, tuple[int, int, tuple[int, ...]]] = {}
        end = 0
        for name, shape in layout.items():
            block = tuple(map(len, shape.box(part)))
            first = -(-end // _ALIGNMENT) * _ALIGNMENT
            end = first + math.prod(block) * shape.dtype.itemsize
            self._found[name] = first, end, block
        #: Bytes of the piece.
        self.size_bytes = end

    def view(self, piece: torch.Tensor, name: str) -> torch.Tensor:
        """A tensor's block in a piece."""
        first, end, block = self._found[name]
        return piece[first:end].view(self._layout[name].dtype).view(block)


class Sharded:
    """A model and its optimizer as they are now."""

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, grid: Grid) -> None:
        self.model = model
        self.optimizer = optimizer
        self._grid = grid
        #: The sharded ones, also while a forward pass has put whole ones into the model.
        self.parameters: dict[str, DTensor] = dict(model.named_parameters())
        self._layout: Layout = {}

    def tensors(self) -> Iterator[tuple[str, DTensor]]:
        """All sharded tensors with their names, in the same order on all ranks."""
        for name, parameter in self.parameters.items():
            yield f"model/{name}", parameter
            for key, value in self.optimizer.state.get(parameter, {}).items():
                if isinstance(value, DTensor):
                    yield f"optimizer/{name}/{key}", value

    def layout(self) -> Layout:
        """Shapes of all sharded tensors; the same object as long as there are no others."""
        tensors = dict(self.tensors())
        if self._layout.keys() != tensors.keys():
            self._layout = {
                name: Shape(tuple(one.shape), one.dtype, cuts_of(one, self._grid))
                for name, one in tensors.items()
            }
        return self._layout

    def copy_into(self, piece: torch.Tensor, places: Places) -> None:
        """Copy this rank's blocks into a piece of host memory."""
        for name, one in self.tensors():
            places.view(piece, name).copy_(one.detach().to_local(), non_blocking=True)

    def take_back(self, layout: Layout, piece: torch.Tensor, places: Places) -> None:
        """Be again as this rank's piece of a snapshot of this very group says, but for what `state_dict` has."""
        self.optimizer.state.clear()
        for name, shape in layout.items():
            self.put(name, shape, places.view(piece, name).clone())

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

    def put(self, name: str, shape: Shape, block: torch.Tensor) -> None:
        """Take over this rank's block of one tensor."""
        parameter, key = self._owner(name)
        if key is None:
            parameter.detach().to_local().copy_(block)
        else:
            self.optimizer.state[parameter][key] = like(parameter, block, shape)

    def as_cut_here(self, name: str, shape: Shape) -> Shape:
        """The shape of a tensor of another group as this one cuts it."""
        return replace(shape, cuts=cuts_of(self.owner(name), self._grid))

    @property
    def part(self) -> int:
        """The piece of the state that this rank holds."""
        return self._grid.part_of(dist.get_rank())

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


def cuts_of(tensor: DTensor, grid: Grid) -> tuple[Cut, ...]:
    """How a tensor is cut over the dimensions of its mesh: by tensor parallelism first, then by FSDP."""
    placed = dict(zip(tensor.device_mesh.mesh_dim_names, tensor.placements, strict=True))
    found = [Cut(placed[SHARD].dim, grid.shard, grid.tensor)]
    if TENSOR in placed and not placed[TENSOR].is_replicate():
        found.insert(0, Cut(placed[TENSOR].dim, grid.tensor, 1))
    return tuple(found)


def like(parameter: DTensor, local: torch.Tensor, shape: Shape) -> DTensor:
    """A tensor that is cut as `parameter`, out of this rank's block of it."""
    whole = torch.empty(shape.size, dtype=shape.dtype, device="meta")
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
