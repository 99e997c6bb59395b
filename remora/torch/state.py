"""The complete state of a loop: as files in a checkpoint's folder, and over the process group to other workers."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from remora.torch import layout
from remora.torch.group import Group
from remora.torch.state_messages import bytes_of, share

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
    #: Where a dataset without a length is (`streams.py`); None where that follows from the place.
    data: Any = None


class LoopState:
    """Everything that training goes on from."""

    def __init__(self, parts: Mapping[str, Stateful], settings: Mapping[str, int | str | bool]) -> None:
        self._parts = dict(parts)
        #: What must be the same for the data order to go on where it was.
        self._settings = dict(settings)

    def capture(self, progress: Progress, only: Container[str] | None = None) -> dict[str, Any]:
        """The state as one dictionary, or only the parts of these names; its tensors are the live ones."""
        where = {} if progress.data is None else {"data": progress.data}
        return {
            **where,
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
            step, epoch, place = (int(number) for number in state["progress"])
            progress = Progress(step, epoch, place, state.get("data"))
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
    """Give a captured state to all other ranks of `part`, whose rank 0 this is; raises PeerLost.

    Beside the state there are messages of bounded size (`state_messages.py`).
    """
    tensors: list[torch.Tensor] = []
    skeleton = _take_out(dict(state), tensors)
    shapes = [(tuple(one.shape), one.dtype, one.device.type) for one in tensors]
    header = pickle.dumps((skeleton, shapes))
    length = torch.tensor([len(header)], device=device)
    part.wait(part.broadcast(length, 0))
    part.wait(part.broadcast(torch.frombuffer(bytearray(header), dtype=torch.uint8).to(device), 0))
    share(part, tensors, device=device)


def receive(part: Group, device: torch.device, into: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The state that rank 0 of `part` sends; raises PeerLost.

    `into`: this worker's own state as captured, where nothing of it is needed any more.  Its tensors are overwritten
    with those that come, where they fit, so that this worker does not hold two of them.
    """
    length = torch.zeros(1, dtype=torch.int64, device=device)
    part.wait(part.broadcast(length, 0))
    header = torch.empty(int(length.item()), dtype=torch.uint8, device=device)
    part.wait(part.broadcast(header, 0))
    # What comes from a worker of the same job is code of the same user.
    skeleton, shapes = pickle.loads(bytes_of(header))  # noqa: S301
    own = {} if into is None else _unshared(into)
    tensors: list[torch.Tensor] = [torch.empty(0)] * len(shapes)
    for path, place in _leaves(skeleton):
        shape, dtype, kind = shapes[place.number]
        found = own.get(path)
        if found is None or (tuple(found.shape), found.dtype, found.device.type) != (shape, dtype, kind):
            found = torch.empty(shape, dtype=dtype, device="cpu" if kind == "cpu" else device)
        tensors[place.number] = found
    share(part, tensors, device=device)
    state: dict[str, Any] = _put_back(skeleton, tensors)
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


def _leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """The tensors of a state, or what stands for them, with the keys that lead to each."""
    if isinstance(value, torch.Tensor | _Place):
        yield path, value
    elif isinstance(value, Mapping):
        for key, one in value.items():
            yield from _leaves(one, (*path, key))
    elif type(value) in (list, tuple):
        for number, one in enumerate(value):
            yield from _leaves(one, (*path, number))


def _unshared(state: Mapping[str, Any]) -> dict[tuple[Any, ...], torch.Tensor]:
    """The tensors of a state whose memory no other of its tensors uses, by the keys that lead to them.

    Where two are one memory here, as tied weights are, they may be two in the state that comes.
    """
    found = {path: one.detach() for path, one in _leaves(state)}
    uses = Counter(one.untyped_storage().data_ptr() for one in found.values())
    return {
        path: one
        for path, one in found.items()
        if one.is_contiguous() and uses[one.untyped_storage().data_ptr()] == 1
    }


def _put_back(value: Any, tensors: list[torch.Tensor]) -> Any:
    if isinstance(value, _Place):
        return tensors[value.number]
    if isinstance(value, dict):
        return {key: _put_back(one, tensors) for key, one in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_put_back(one, tensors) for one in value)
    return value
