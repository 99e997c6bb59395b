"""Writes tensors as files in the safetensors format, split as `save_pretrained` of transformers splits them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from remora.torch.exporting.reading import Value
from remora.torch.exporting.refusals import ExportRefused
from remora.torch.sharded.checkpoint_io import SavedTensor
from remora.torch.tensor_files import fits, nbytes_of, write_each

#: Of new files; the umask takes its share.
_MODE = 0o666


def write_files(
    tensors: Mapping[str, Value],
    folder: Path,
    stem: str,
    max_bytes: int,
    tied: Mapping[str, str] | None = None,
) -> None:
    """Write `stem`.safetensors, or several files of at most `max_bytes` each with an index; one tensor at a time.

    A tensor that is larger has a file of its own.  `tied`: further names of tensors, which are written once; the header
    has them as `save_model` of safetensors writes them.
    Raises OSError, TensorFileDamaged, and ExportRefused for tensors that the format does not know.
    """
    kinds = {name: _kind(name, tensors[name]) for name in sorted(tensors)}
    files = list(cut({name: nbytes_of(*kind) for name, kind in kinds.items()}, max_bytes))
    weight_map = {}
    for number, names in enumerate(files, start=1):
        file = (
            f"{stem}.safetensors"
            if len(files) == 1
            else f"{stem}-{number:05d}-of-{len(files):05d}.safetensors"
        )
        others = {name: kept for name, kept in (tied or {}).items() if kept in names}
        write_each(
            {name: kinds[name] for name in names},
            lambda name: loaded(tensors[name]),
            folder / file,
            {**others, "format": "pt"},
            _MODE,
        )
        weight_map.update(dict.fromkeys(names, file))
    if len(files) > 1:
        total = sum(nbytes_of(*kind) for kind in kinds.values())
        index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
        write_json(index, folder / f"{stem}.safetensors.index.json")


def cut(sizes: Mapping[str, int], max_bytes: int) -> Iterator[list[str]]:
    """Names in their order, in lists whose sizes in bytes are at most `max_bytes` in all, or one name each."""
    names: list[str] = []
    total = 0
    for name, size in sizes.items():
        if names and total + size > max_bytes:
            yield names
            names, total = [], 0
        names.append(name)
        total += size
    if names:
        yield names


def loaded(value: Value) -> torch.Tensor:
    """The tensor itself, which must not be changed; raises TensorFileDamaged."""
    return value.whole() if isinstance(value, SavedTensor) else value


def write_json(value: Any, path: Path) -> None:
    """Write a new file of JSON; raises OSError."""
    with path.open("x", encoding="utf-8") as file:
        json.dump(value, file, indent=2)
        file.write("\n")


def _kind(name: str, value: Value) -> tuple[tuple[int, ...], torch.dtype]:
    if isinstance(value, SavedTensor):
        kind = value.size, value.dtype
    elif fits(value):
        kind = tuple(value.shape), value.dtype
    else:
        raise ExportRefused(f"safetensors has no form for {name} ({value.dtype}): export with --format dcp")
    if name == "__metadata__":
        raise ExportRefused("a tensor is named __metadata__, which safetensors keeps for itself")
    return kind
