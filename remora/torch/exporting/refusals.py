"""What kind of checkpoint a folder holds, and why some cannot be exported.

The person who exports a checkpoint need not be its author.  So no link in it is followed, no file is unpickled that may
hold code, and what is made of it has bounds.
"""

from __future__ import annotations

import os
import pickle
import stat
import zipfile
from collections.abc import Iterable, Mapping
from enum import Enum, auto
from pathlib import Path
from typing import Any

import torch

from remora.errors import RemoraError
from remora.export_formats import CONFIG
from remora.torch import layout

#: Bytes of a file with everything but the tensors that is still believed.
_MAX_SKELETON = 1 << 30
#: Most values in it, counted as often as they are reached: as many as it has bytes, since each value takes some unless
#: it is reached on several ways.  A small file may have the second number more.
_MAX_VALUES, _FEW_VALUES = 10_000_000, 10_000
#: Values within each other, and folders.
_MAX_VALUES_DEPTH, _MAX_DEPTH = 100, 16
_MAX_FILES = 100_000


class ExportRefused(RemoraError):
    """A checkpoint cannot be exported, for the reason that the message gives."""


class Kind(Enum):
    """What wrote a checkpoint that can be exported."""

    #: `Loop` or `Steps`: each worker held the whole model.
    REPLICATED = auto()
    #: `ShardedLoop` or `ShardedSteps`: each worker wrote its blocks.
    SHARDED = auto()
    #: `save_pretrained` of transformers, such as a Trainer's own checkpoint.
    PRETRAINED = auto()
    #: `torch.distributed.checkpoint`.
    DISTRIBUTED = auto()


_SCRIPTS_OWN = (
    "was not written by remora.torch, so only the script that wrote it knows its format: load it there, and save the"
    " model with save_pretrained or safetensors.torch.save_file"
)
_DEEPSPEED = (
    "was written by DeepSpeed: convert it with its own `python zero_to_fp32.py FOLDER OUT --safe_serialization`,"
    " and for another number of workers with ds_to_universal"
)
_LIGHTNING = (
    "was written by Lightning: load it with LightningModule.load_from_checkpoint, and save the model there with"
    " save_pretrained or safetensors.torch.save_file"
)


def plain_files(folder: Path) -> dict[str, Path]:
    """All files of a folder by their relative names; raises ExportRefused for links, devices and too many of them."""
    found: dict[str, Path] = {}
    waiting = [(folder, "", 0)]
    while waiting:
        inside, prefix, depth = waiting.pop()
        for entry in sorted(os.scandir(inside), key=lambda one: one.name):
            name = f"{prefix}{entry.name}"
            mode = entry.stat(follow_symlinks=False).st_mode
            if stat.S_ISDIR(mode) and depth < _MAX_DEPTH:
                waiting.append((Path(entry.path), f"{name}/", depth + 1))
            elif stat.S_ISREG(mode) and len(found) < _MAX_FILES:
                found[name] = Path(entry.path)
            else:
                raise ExportRefused(f"{name!r} in {folder} is no plain file: the checkpoint is refused")
    return found


def kind_of(folder: Path, names: Iterable[str]) -> Kind:
    """What wrote a checkpoint with files of these names; raises ExportRefused where no such kind is known."""
    top = {name for name in names if "/" not in name}
    if any(_is_deepspeeds(name.rpartition("/")[2]) for name in names):
        raise ExportRefused(f"the checkpoint in {folder} {_DEEPSPEED}")
    if layout.FILE in top:
        is_sharded = any(name.startswith("sharded-") and name.endswith(".safetensors") for name in top)
        return Kind.SHARDED if is_sharded else Kind.REPLICATED
    if CONFIG in top and any(name.endswith((".safetensors", ".bin")) for name in top):
        return Kind.PRETRAINED
    if ".metadata" in top:
        return Kind.DISTRIBUTED
    if not top:
        raise ExportRefused(f"there is no checkpoint in {folder}: it holds no file")
    is_lightnings = any(name.endswith(".ckpt") for name in top)
    raise ExportRefused(f"the checkpoint in {folder} {_LIGHTNING if is_lightnings else _SCRIPTS_OWN}")


def check_skeleton(path: Path) -> None:
    """Raise ExportRefused where the file with everything but the tensors would fill the memory, or take for ever."""
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
    except (OSError, zipfile.BadZipFile) as error:
        raise ExportRefused(f"{path} cannot be read: {error}") from error
    is_packed = any(one.compress_type != zipfile.ZIP_STORED for one in entries)
    if is_packed or sum(one.file_size for one in entries) > _MAX_SKELETON:
        raise ExportRefused(f"{path} was not written by remora.torch: it is compressed, or larger than 1 GiB")
    try:
        most = min(_MAX_VALUES, _FEW_VALUES + sum(one.file_size for one in entries))
        count_values(torch.load(path, map_location="cpu", weights_only=True), most, path)
    except (RuntimeError, EOFError, ValueError, TypeError, pickle.UnpicklingError) as error:
        raise ExportRefused(f"{path} cannot be read: {_first_line(error)}") from error


def count_values(value: Any, most: int, path: Path) -> None:
    """Raise ExportRefused for more values than `most`, or deeper ones than a state of training has."""
    waiting, count = [(value, 0)], 0
    while waiting:
        one, depth = waiting.pop()
        count += 1
        if count > most or depth > _MAX_VALUES_DEPTH:
            raise ExportRefused(f"{path} was not written by remora.torch: it holds too many values")
        if isinstance(one, Mapping):
            waiting.extend((each, depth + 1) for each in one.values())
        elif isinstance(one, list | tuple | set | frozenset):
            waiting.extend((each, depth + 1) for each in one)


def _is_deepspeeds(name: str) -> bool:
    return name.startswith(("zero_pp_rank_", "bf16_zero_pp_rank_")) or (
        name.startswith("mp_rank_") and name.endswith("_model_states.pt")
    )


def _first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
