"""Reads a checkpoint of `remora.torch` without the script: names and tensors as a model and its optimizers have them.

No tensor is read here; each stands for its place in the checkpoint's files until it is written elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, TypeGuard

import torch

from remora.torch import layout, state
from remora.torch.exporting.refusals import ExportRefused, Kind, check_skeleton
from remora.torch.sharded.checkpoint_io import SavedTensor, all_saved
from remora.torch.tensor_files import MappedTensors

#: A tensor in the checkpoint's files, or one of a kind that these files do not know.
Value: TypeAlias = SavedTensor | torch.Tensor
#: What wrappers put into the names of parameters: torch.compile, and PyTorch's activation checkpointing.
_WRAPPERS = ("_orig_mod.", "_checkpoint_wrapped_module.")
_WITHOUT_NAMES = (
    "the state of {part} is left out: the checkpoint does not say which parameters it belongs to, as those of older"
    " versions do not"
)


@dataclass(frozen=True)
class SavedOptimizer:
    """The state of an optimizer, with names in place of numbers."""

    #: By the name of the parameter.
    state: dict[str, dict[str, Any]]
    #: Its groups; `params` are names.
    groups: list[dict[str, Any]]


@dataclass(frozen=True)
class SavedState:
    """What a checkpoint holds; tensors are `Value`."""

    #: By the names of the model's own parameters and buffers.
    model: dict[str, Any]
    #: Names of the same tensors under which `model` has them, where weights are tied.
    tied: dict[str, str]
    #: By the name of the part.
    optimizers: dict[str, SavedOptimizer]
    #: What else was saved, such as a scheduler, by the name of the part.
    parts: dict[str, Any]
    #: `step`, `epoch` and `place` of the next batch in it, and the settings that decide the order of the data.
    progress: dict[str, Any]
    #: What is not exported, for people.
    notes: tuple[str, ...]


def is_tensor(value: object) -> TypeGuard[Value]:
    """True for whatever stands for a tensor."""
    return isinstance(value, SavedTensor | torch.Tensor)


def read_state(folder: Path, kind: Kind) -> SavedState:
    """The state in a folder; raises ExportRefused for one that is damaged or was not written by remora.torch."""
    check_skeleton(folder / layout.FILE)
    try:
        saved = state.read(folder, _tensors_of)
        blocks = all_saved(folder) if kind is Kind.SHARDED else {}
        parts = dict(saved["parts"])
        model, tied = _model_of_blocks(saved, blocks) if blocks else _model(parts.pop("model"))
        names = {str(part): groups for part, groups in dict(saved.get("optimized", {})).items()}
        if blocks:
            found = {"optimizer": _of_blocks(parts.pop("sharded"), blocks)}
        else:
            found = {part: parts.pop(part) for part in [*parts] if _is_optimizer(part, parts[part])}
        optimizers = {
            part: _named(one, names[part], has_numbers=not blocks)
            for part, one in found.items()
            if names.get(part)
        }
        step, epoch, place = (int(number) for number in saved["progress"])
        progress = {"step": step, "epoch": epoch, "place": place, "settings": saved["settings"]}
    except (state.CheckpointUnusable, OSError) as error:
        raise ExportRefused(str(error)) from error
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, RecursionError) as error:
        raise ExportRefused(f"the checkpoint in {folder} is damaged: {error!r:.200}") from error
    notes = tuple(_WITHOUT_NAMES.format(part=part) for part in found if part not in optimizers)
    return SavedState(model, tied, optimizers, parts, progress, notes)


def _tensors_of(path: Path) -> dict[str, SavedTensor]:
    file = MappedTensors(path)
    return {
        name: SavedTensor(shape, dtype, [((0,) * len(shape), shape, file)], name)
        for name, (shape, dtype) in file.shapes().items()
    }


def _model(part: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Tensors by standard names, and the names of those that are the same ones."""
    first: dict[int, str] = {}
    model: dict[str, Any] = {}
    tied: dict[str, str] = {}
    for name, value in part.items():
        name = _standard(name)
        if name in model or name in tied:
            raise ValueError(f"the model has {name} twice")
        kept = first.setdefault(id(value), name) if isinstance(value, SavedTensor) else name
        if kept == name:
            model[name] = value
        else:
            tied[name] = kept
    return model, tied


def _model_of_blocks(
    saved: Mapping[str, Any], blocks: Mapping[str, SavedTensor]
) -> tuple[dict[str, Any], dict[str, str]]:
    buffers = saved["parts"]["sharded"]["buffers"]
    tensors = {name.removeprefix("model/"): one for name, one in blocks.items() if name.startswith("model/")}
    tensors.update(buffers)
    # Without names it is of an older version, and buffers that the model does not save cannot be distinguished from
    # others.
    names = dict(saved.get("model", {name: name for name in tensors}))
    return _model({name: tensors[kept] for name, kept in names.items()})


def _of_blocks(part: Mapping[str, Any], blocks: Mapping[str, SavedTensor]) -> dict[str, Any]:
    """The state of the optimizer of a sharded model, by names of parameters."""
    found: dict[str, dict[str, Any]] = {name: dict(values) for name, values in part["scalars"].items()}
    for path, one in blocks.items():
        kind, _, rest = path.partition("/")
        name, _, key = rest.rpartition("/")
        if kind == "optimizer":
            found.setdefault(name, {})[key] = one
    used = {name: values for name, values in found.items() if values}
    return {"state": used, "param_groups": part["groups"]}


def _is_optimizer(part: object, value: object) -> bool:
    is_named = isinstance(part, str) and (part == "optimizer" or part.removeprefix("optimizer-").isdecimal())
    return is_named and isinstance(value, Mapping) and value.keys() == {"state", "param_groups"}


def _named(saved: Mapping[str, Any], names: list[list[str]], *, has_numbers: bool) -> SavedOptimizer:
    """An optimizer's state with standard names; raises ValueError where a parameter has none."""
    given = [[_standard(name) for name in group] for group in names]
    if any(not name for group in given for name in group):
        raise ValueError("the optimizer has parameters without names")
    known: dict[Any, str] = {name: _standard(name) for group in names for name in group}
    if has_numbers:
        pairs = zip(saved["param_groups"], given, strict=True)
        known = {
            number: name for group, own in pairs for number, name in zip(group["params"], own, strict=True)
        }
    groups = [
        {**{str(key): value for key, value in group.items()}, "params": own}
        for group, own in zip(saved["param_groups"], given, strict=True)
    ]
    for group in groups:
        group.pop("param_names", None)
    return SavedOptimizer({known[key]: dict(value) for key, value in saved["state"].items()}, groups)


def _standard(name: object) -> str:
    """A parameter's name without what wrappers put into it."""
    if not isinstance(name, str):
        raise TypeError(f"{name!r} is no name of a tensor")
    for one in _WRAPPERS:
        name = name.replace(one, "")
    return name
