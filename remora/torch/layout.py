"""How a training state lies in the files of a checkpoint, written by many ranks and read by any number.

`remora.pt` holds the state with a name in place of each tensor; the tensors lie in files named
`remora-<rank>-of-<ranks>.safetensors`, one per rank.  What all ranks hold alike, the parameters and the optimizer's
state, is divided among them by size.
"""

from __future__ import annotations

import heapq
import pickle
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from remora.torch.tensor_files import TensorFileDamaged, fits, read_tensors, write_tensors

#: Name of the file with everything but the tensors.
FILE = "remora.pt"
#: Pattern of the names of files with tensors.
TENSOR_FILES = "remora-*-of-*.safetensors"
_NAMED = "remora.tensor"


@dataclass(frozen=True)
class Writer:
    """The rank that writes, the size of its group, and the group's generation."""

    rank: int = 0
    world_size: int = 1
    generation: int = 0

    @property
    def file(self) -> str:
        """Name of this rank's file of tensors."""
        return f"remora-{self.rank + 1:05d}-of-{self.world_size:05d}.safetensors"


@dataclass(frozen=True)
class Share:
    """What one rank writes of a state."""

    tensors: dict[str, torch.Tensor]
    #: The state with names for tensors; None on ranks that do not write it.
    skeleton: dict[str, Any] | None

    @property
    def size_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.nbytes for tensor in self.tensors.values())


def share_of(state: Mapping[str, Any], writer: Writer, replicated: Iterable[str]) -> Share:
    """The share of a rank, with live tensors.

    Tensors below `state["parts"][name]` for the names in `replicated` are the same on all ranks, which write some of
    them each.  Rank 0 writes everything else; other ranks need not hold it.
    """
    found: dict[str, torch.Tensor] = {}
    skeleton = _named(dict(state), "", found, {})
    prefixes = tuple(f"parts/{name}/" for name in replicated)
    sizes = {name: tensor.nbytes for name, tensor in found.items() if name.startswith(prefixes)}
    owners = assign(sizes, writer.world_size)
    tensors = {name: one for name, one in found.items() if owners.get(name, 0) == writer.rank}
    return Share(tensors, skeleton if writer.rank == 0 else None)


def assign(sizes: Mapping[str, int], ranks: int) -> dict[str, int]:
    """A rank for each name, so that all get about the same size: the largest first, to the rank that has the least."""
    loads = [(0, rank) for rank in range(ranks)]
    owners = {}
    for name in sorted(sizes, key=lambda one: (-sizes[one], one)):
        load, rank = loads[0]
        owners[name] = rank
        heapq.heapreplace(loads, (load + sizes[name], rank))
    return owners


def write(share: Share, writer: Writer, folder: Path) -> None:
    """Write a rank's share into the checkpoint's folder; raises OSError."""
    if share.skeleton is not None:
        torch.save(share.skeleton, folder / FILE)
    if share.tensors:
        write_tensors(share.tensors, folder / writer.file)


def read(folder: Path, tensors_of: Callable[[Path], Mapping[str, Any]] | None = None) -> Any:
    """The whole state; raises FileNotFoundError, OSError, or ValueError with what is wrong.

    `tensors_of`: what stands for the tensors of a file, by name; by default they are read.
    """
    try:
        skeleton = torch.load(folder / FILE, map_location="cpu", weights_only=True)
    except (RuntimeError, EOFError, pickle.UnpicklingError) as error:
        raise ValueError((str(error) or type(error).__name__).splitlines()[0]) from error
    tensors: dict[str, Any] = {}
    for path in sorted(folder.glob(TENSOR_FILES)):
        tensors.update((tensors_of or read_tensors)(path))
    try:
        return _filled(skeleton, tensors)
    except KeyError as error:
        raise TensorFileDamaged(f"the tensor {error} is in none of the files beside it") from error


def _named(value: Any, path: str, found: dict[str, torch.Tensor], known: dict[Any, str]) -> Any:
    """The same structure with a name for each tensor that a file can hold; one in two places has one name."""
    if isinstance(value, torch.Tensor) and fits(value):
        identity = (
            (value.data_ptr(), value.dtype, tuple(value.shape), value.stride()) if value.numel() else path
        )
        if identity not in known:
            known[identity] = path
            found[path] = value
        return {_NAMED: known[identity]}
    if isinstance(value, Mapping):
        return {key: _named(one, _below(path, key, found), found, known) for key, one in value.items()}
    if type(value) in (list, tuple):
        return type(value)(
            _named(one, _below(path, place, found), found, known) for place, one in enumerate(value)
        )
    return value


def _below(path: str, key: object, found: Mapping[str, torch.Tensor]) -> str:
    """A name that no tensor has yet: keys of different types may read the same."""
    name = f"{path}/{key}" if path else str(key)
    while name in found:
        name += "'"
    return name


def _filled(value: Any, tensors: Mapping[str, Any]) -> Any:
    if isinstance(value, Mapping):
        if value.keys() == {_NAMED}:
            return tensors[value[_NAMED]]
        return {key: _filled(one, tensors) for key, one in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_filled(one, tensors) for one in value)
    return value
