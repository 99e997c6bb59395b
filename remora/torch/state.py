"""The complete state of a loop: as files in a checkpoint's folder, and over the process group to other workers."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from remora.torch import layout
from remora.torch.buffers import share
from remora.torch.group import Group

_FORMAT = 2


class Stateful(Protocol):
    """Anything with a state dictionary."""

    def state_dict(self) -> Any:
        """What there is to save."""
        ...

    def load_state_dict(self, state: Any, /) -> Any:
        """Go on from what was saved."""
        ...


class CheckpointUnusable(ValueError):
    """A checkpoint cannot be resumed from by this script."""


@dataclass(frozen=True)
class Progress:
    """Steps done since the job began, and the place of the next one."""

    step: int
    epoch: int
    place: int


class LoopState:
    """Everything that training goes on from."""

    def __init__(self, parts: Mapping[str, Stateful], settings: Mapping[str, int | str | bool]) -> None:
        self._parts = dict(parts)
        #: What must be the same for the data order to go on where it was.
        self._settings = dict(settings)

    def capture(self, progress: Progress, only: Container[str] | None = None) -> dict[str, Any]:
        """The state as one dictionary, or only the parts of these names; its tensors are the live ones."""
        return {
            "format": _FORMAT,
            "progress": [progress.step, progress.epoch, progress.place],
            "settings": dict(self._settings),
            "parts": {
                name: part.state_dict() for name, part in self._parts.items() if only is None or name in only
            },
        }

    def restore(self, state: Mapping[str, Any]) -> Progress:
        """Go on from a captured state; raises CheckpointUnusable when it is not one of this script."""
        try:
            saved = dict(state["settings"])
            progress = Progress(*(int(number) for number in state["progress"]))
            parts = dict(state["parts"])
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointUnusable("the checkpoint was not written by remora.torch") from error
        for name, value in self._settings.items():
            if saved.get(name) != value:
                raise CheckpointUnusable(
                    f"the checkpoint was written with {name}={saved.get(name)!r}, and the script now says "
                    f"{value!r}: put it back, or start a new job from the saved weights"
                )
        for name in saved.keys() - self._settings.keys():
            raise CheckpointUnusable(
                f"the checkpoint was written with {name}={saved[name]!r}, and the script has none now: put it back, or"
                " start a new job from the saved weights"
            )
        if parts.keys() != self._parts.keys():
            raise CheckpointUnusable(
                f"the checkpoint holds {', '.join(sorted(parts))}, and the script now has "
                f"{', '.join(sorted(self._parts))}: hand over the same parts to Loop"
            )
        for name, part in self._parts.items():
            try:
                part.load_state_dict(parts[name])
            except (RuntimeError, ValueError, KeyError, TypeError) as error:
                raise CheckpointUnusable(
                    f"the saved {name} does not fit the script's: {_first_line(error)}"
                ) from error
        return progress


def write(state: Mapping[str, Any], folder: Path) -> None:
    """Write a captured state into a checkpoint's folder, in place of one that is there."""
    for path in (folder / layout.FILE, *folder.glob(layout.TENSOR_FILES)):
        path.unlink(missing_ok=True)
    writer = layout.Writer()
    layout.write(layout.share_of(state, writer, ()), writer, folder)


def read(folder: Path, tensors_of: Callable[[Path], Mapping[str, Any]] | None = None) -> dict[str, Any]:
    """The state in a checkpoint's folder; raises CheckpointUnusable when there is none that can be read.

    The parts are in `["parts"]` by name: `read(folder)["parts"]["model"]` is the model's state dictionary.
    `tensors_of`: what stands for the tensors of a file, by name; by default they are read.
    """
    path = folder / layout.FILE
    try:
        state = layout.read(folder, tensors_of)
    except FileNotFoundError as error:
        text = f"{folder} holds no {layout.FILE}: it was not written by remora.torch"
        raise CheckpointUnusable(text) from error
    except (OSError, ValueError) as error:
        raise CheckpointUnusable(f"{path} cannot be read: {_first_line(error)}") from error
    if not isinstance(state, dict) or state.get("format") != _FORMAT:
        raise CheckpointUnusable(f"{path} was not written by this version of remora.torch")
    return state


def send(part: Group, state: Mapping[str, Any], device: torch.device) -> None:
    """Give a captured state to all other ranks of `part`, whose rank 0 this is; raises PeerLost."""
    tensors: list[torch.Tensor] = []
    skeleton = _take_out(dict(state), tensors)
    shapes = [(tuple(one.shape), one.dtype, one.device.type) for one in tensors]
    header = pickle.dumps((skeleton, shapes))
    length = torch.tensor([len(header)], device=device)
    part.wait(part.broadcast(length, 0))
    part.wait(part.broadcast(torch.frombuffer(bytearray(header), dtype=torch.uint8).to(device), 0))
    share(part, [one.detach().to(device) for one in tensors])


def receive(part: Group, device: torch.device) -> dict[str, Any]:
    """The state that rank 0 of `part` sends; raises PeerLost."""
    length = torch.zeros(1, dtype=torch.int64, device=device)
    part.wait(part.broadcast(length, 0))
    header = torch.empty(int(length.item()), dtype=torch.uint8, device=device)
    part.wait(part.broadcast(header, 0))
    # What comes from a worker of the same job is code of the same user.
    skeleton, shapes = pickle.load(io.BytesIO(bytes(header.tolist())))  # noqa: S301
    tensors = [torch.empty(shape, dtype=dtype, device=device) for shape, dtype, _ in shapes]
    share(part, tensors)
    placed = [one.cpu() if kind == "cpu" else one for one, (_, _, kind) in zip(tensors, shapes, strict=True)]
    state: dict[str, Any] = _put_back(skeleton, placed)
    return state


def _first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]


@dataclass(frozen=True)
class _Place:
    """Stands for a tensor in a skeleton."""

    number: int


def _take_out(value: Any, tensors: list[torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return _Place(len(tensors) - 1)
    if isinstance(value, Mapping):
        return {key: _take_out(one, tensors) for key, one in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_take_out(one, tensors) for one in value)
    return value


def _put_back(value: Any, tensors: list[torch.Tensor]) -> Any:
    if isinstance(value, _Place):
        return tensors[value.number]
    if isinstance(value, dict):
        return {key: _put_back(one, tensors) for key, one in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_put_back(one, tensors) for one in value)
    return value
