"""The state of a sharded model and its optimizer as one flat piece of host memory, and back into another layout."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from remora.torch.sharded.cuts import rows_of

#: Bytes that every tensor's place in a piece is a multiple of.
_ALIGNMENT = 64


@dataclass(frozen=True)
class Shape:
    """A tensor as a whole, and the dimension that it is cut along."""

    size: tuple[int, ...]
    dim: int
    dtype: torch.dtype

    @property
    def rows(self) -> int:
        """Its length along the dimension that it is cut along."""
        return self.size[self.dim]

    @property
    def row(self) -> tuple[int, ...]:
        """Shape of one row."""
        return self.size[: self.dim] + self.size[self.dim + 1 :]


#: Shapes by name, in the order in which they lie in a piece; the same on all ranks.
Layout = dict[str, Shape]


def places(layout: Layout, parts: int, part: int) -> tuple[dict[str, tuple[int, int]], int]:
    """First and last byte of each tensor in a piece, and the bytes of the piece."""
    found, end = {}, 0
    for name, shape in layout.items():
        count = len(rows_of(shape.rows, parts, part)) * math.prod(shape.row)
        found[name] = (end, end + count * shape.dtype.itemsize)
        end = -(-found[name][1] // _ALIGNMENT) * _ALIGNMENT
    return found, end


def view(piece: torch.Tensor, layout: Layout, parts: int, part: int, name: str) -> torch.Tensor:
    """A tensor's rows in a piece: [rows, *row]."""
    first, last = places(layout, parts, part)[0][name]
    return piece[first:last].view(layout[name].dtype).view(-1, *layout[name].row)


class Sharded:
    """A model and its optimizer as they are now."""

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.model = model
        self.optimizer = optimizer

    def tensors(self) -> Iterator[tuple[str, DTensor]]:
        """All sharded tensors with their names, in the same order on all ranks."""
        for name, parameter in self.model.named_parameters():
            yield f"model/{name}", parameter
            for key, value in self.optimizer.state.get(parameter, {}).items():
                if isinstance(value, DTensor):
                    yield f"optimizer/{name}/{key}", value

    def layout(self) -> Layout:
        """Shapes of all sharded tensors."""
        return {
            name: Shape(tuple(one.shape), one.placements[0].dim, one.dtype) for name, one in self.tensors()
        }

    def copy_into(self, piece: torch.Tensor, layout: Layout, parts: int, part: int) -> None:
        """Copy this rank's rows into a piece of host memory."""
        where = places(layout, parts, part)[0]
        for name, one in self.tensors():
            first, last = where[name]
            rows = one.detach().to_local().movedim(layout[name].dim, 0)
            piece[first:last].view(one.dtype).view(rows.shape).copy_(rows)

    def state_dict(self) -> dict[str, Any]:
        """Everything else, which is the same on all ranks; tensors are copied to host memory."""
        scalars = {
            name: {
                key: _copied(value)
                for key, value in self.optimizer.state.get(parameter, {}).items()
                if not isinstance(value, DTensor)
            }
            for name, parameter in self.model.named_parameters()
        }
        groups = [
            {key: _copied(value) for key, value in group.items() if key != "params"}
            for group in self.optimizer.param_groups
        ]
        buffers = {name: _copied(buffer) for name, buffer in self.model.named_buffers()}
        return {"scalars": scalars, "groups": groups, "buffers": buffers}

    def load_state_dict(self, whole: Mapping[str, Any]) -> None:
        """Take over what `state_dict` returned."""
        parameters = dict(self.model.named_parameters())
        for name, values in whole["scalars"].items():
            state = self.optimizer.state[parameters[name]] if values else {}
            for key, value in values.items():
                on_device = isinstance(value, torch.Tensor) and value.dim() > 0
                state[key] = value.to(parameters[name].device) if on_device else _copied(value)
        for group, saved in zip(self.optimizer.param_groups, whole["groups"], strict=True):
            group.update({key: _copied(value) for key, value in saved.items()})
        for name, buffer in self.model.named_buffers():
            buffer.detach().copy_(whole["buffers"][name])

    def put(self, name: str, shape: Shape, rows: torch.Tensor) -> None:
        """Take over this rank's rows [rows, *row] of one tensor."""
        kind, _, rest = name.partition("/")
        parameters = dict(self.model.named_parameters())
        local = rows.movedim(0, shape.dim)
        if kind == "model":
            parameters[rest].detach().to_local().copy_(local)
            return
        owner, _, key = rest.rpartition("/")
        self.optimizer.state[parameters[owner]][key] = like(parameters[owner], local, shape)


def like(parameter: DTensor, local: torch.Tensor, shape: Shape) -> DTensor:
    """A tensor that is cut as `parameter`, out of this rank's rows of it."""
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
