"""Exports a checkpoint: what stands in which file of the new folder, and how it is loaded."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from remora.export_formats import CONFIG, CONFIG_FILES, DEFAULT_SHARD_BYTES, ExportFormat
from remora.torch.exporting.cut_files import write_files, write_json
from remora.torch.exporting.distributed import write_distributed
from remora.torch.exporting.reading import SavedState, Value, is_tensor, read_state
from remora.torch.exporting.refusals import ExportRefused, Kind, kind_of, plain_files
from remora.torch.sharded.checkpoint_io import SavedTensor
from remora.torch.tensor_files import TensorFileDamaged, fits

#: Everything but tensors: progress, groups of the optimizers, schedulers.
STATE = "training_state.json"
#: The tensors of what is neither model nor optimizer.
_OTHERS = "other_state"
#: How many times the bytes of its files a checkpoint may become: tied weights are there twice in some formats.
_MOST = 4
#: Bytes of a file that describes a model.
_MAX_CONFIG = 256 << 20


@dataclass(frozen=True)
class Exported:
    """What was written."""

    #: Sizes in bytes by relative names.
    files: dict[str, int]
    #: What is left out, or missing, and what to do about it; sentences for people.
    notes: tuple[str, ...]
    #: A line of Python that loads it; `FOLDER` stands for where it is.
    load: str


def export_checkpoint(
    source: Path,
    target: Path,
    form: ExportFormat = ExportFormat.SAFETENSORS,
    *,
    max_shard_bytes: int = DEFAULT_SHARD_BYTES,
    config: Path | None = None,
) -> Exported:
    """Write the checkpoint in the folder `source` into the empty folder `target`.

    `max_shard_bytes`: of each file of tensors.  `config`: a folder with `config.json` and files of a tokenizer, for
    huggingface.  No more than one tensor is in memory at a time.
    Raises ExportRefused for what cannot be exported, and OSError.
    """
    try:
        files = plain_files(source)
        kind = kind_of(source, files)
        if kind in (Kind.REPLICATED, Kind.SHARDED):
            notes = _write(read_state(source, kind), files, target, form, max_shard_bytes)
        else:
            _copy_through(kind, source, files, target, form)
            notes = ()
    except TensorFileDamaged as error:
        raise ExportRefused(f"the checkpoint in {source} cannot be read: {error}") from error
    if form is ExportFormat.HUGGINGFACE:
        notes = (*notes, *_add_config(source, config, target))
    written = {name: path.stat().st_size for name, path in plain_files(target).items()}
    return Exported(written, notes, _load(form, written))


def _write(
    saved: SavedState, files: Mapping[str, Path], target: Path, form: ExportFormat, max_bytes: int
) -> tuple[str, ...]:
    """Write a state; returns notes."""
    if not saved.model:
        raise ExportRefused("the checkpoint's model has no tensors")
    left: list[str] = []
    model = _tensors_alone(saved.model, left)
    optimizers, others, state = _rest(saved, left)
    sizes = sum(path.stat().st_size for path in files.values())
    everything = [
        model,
        *optimizers.values(),
        others,
        {name: model.get(kept) for name, kept in saved.tied.items()},
    ]
    if sum(_nbytes(one) for tensors in everything for one in tensors.values()) > _MOST * sizes:
        raise ExportRefused("the checkpoint is damaged: its tensors are larger than its files")
    if form is ExportFormat.DCP:
        write_distributed(saved, target)
    else:
        write_files(model, target, "model", max_bytes, saved.tied)
        for part, tensors in optimizers.items():
            write_files(_known(tensors, left), target, part, max_bytes)
    write_files(_known(others, left), target, _OTHERS, max_bytes)
    write_json(state, target / STATE)
    return (
        *saved.notes,
        *(f"{name} is left out: it is no tensor, number or text of a known kind" for name in left),
    )


def _rest(
    saved: SavedState, left: list[str]
) -> tuple[dict[str, dict[str, Value]], dict[str, Value], dict[str, Any]]:
    """Tensors of each optimizer, those of other parts, and everything else."""
    optimizers: dict[str, dict[str, Value]] = {}
    state: dict[str, Any] = {**saved.progress, "optimizers": {}, "parts": {}}
    for part, optimizer in saved.optimizers.items():
        tensors: dict[str, Value] = {}
        values = {"state": optimizer.state, "param_groups": optimizer.groups}
        state["optimizers"][part] = taken_apart(values, "", tensors, left)
        optimizers[part] = tensors
    others: dict[str, Value] = {}
    state["parts"] = taken_apart(saved.parts, "", others, left)
    state["settings"] = taken_apart(saved.progress["settings"], "settings", others, left)
    return optimizers, others, state


def taken_apart(value: Any, path: str, tensors: dict[str, Value], left: list[str]) -> Any:
    """A value without its tensors, as JSON can hold it.

    Tensors go into `tensors` by the keys that lead to them with dots between; what JSON cannot hold, into `left`.
    """
    if is_tensor(value):
        tensors[path] = value
        return None
    if isinstance(value, Mapping):
        found: dict[str, Any] = {}
        for key, one in value.items():
            below = _free(f"{path}.{key}" if path else str(key), tensors)
            plain = taken_apart(one, below, tensors, left)
            if not is_tensor(one) and not (isinstance(one, Mapping) and one and not plain):
                found[str(key)] = plain
        return found
    if isinstance(value, list | tuple):
        return [
            taken_apart(one, _free(f"{path}.{place}", tensors), tensors, left)
            for place, one in enumerate(value)
        ]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    left.append(path)
    return None


def _free(path: str, tensors: Mapping[str, Value]) -> str:
    """A name that no tensor has yet: keys of different types may read the same."""
    while path in tensors:
        path += "'"
    return path


def _tensors_alone(model: Mapping[str, Any], left: list[str]) -> dict[str, Value]:
    left.extend(f"model.{name}" for name, value in model.items() if not is_tensor(value))
    return {name: value for name, value in model.items() if is_tensor(value)}


def _known(tensors: Mapping[str, Value], left: list[str]) -> dict[str, Value]:
    """Those that a file of safetensors can hold."""
    left.extend(name for name, one in tensors.items() if not _fits(one))
    return {name: one for name, one in tensors.items() if _fits(one)}


def _fits(value: Value) -> bool:
    return isinstance(value, SavedTensor) or fits(value)


def _nbytes(value: Value | None) -> int:
    return 0 if value is None or not _fits(value) else int(value.nbytes)


def _copy_through(
    kind: Kind, source: Path, files: Mapping[str, Path], target: Path, form: ExportFormat
) -> None:
    """Copy a checkpoint that has the form already; raises ExportRefused for another form."""
    own = ExportFormat.DCP if kind is Kind.DISTRIBUTED else ExportFormat.HUGGINGFACE
    has_it = form is own or (
        form is ExportFormat.SAFETENSORS and any(map(_is_safe, files)) and kind is Kind.PRETRAINED
    )
    if not has_it:
        raise ExportRefused(
            f"the checkpoint in {source} was written in the form {own}, and is copied with --format {own}; another one"
            " is for the script to write, which knows its model"
        )
    for name, path in files.items():
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target / name, follow_symlinks=False)


def _is_safe(name: str) -> bool:
    return name.startswith("model") and name.endswith(".safetensors")


def _add_config(source: Path, config: Path | None, target: Path) -> tuple[str, ...]:
    """Copy what describes the model, from `config` or the checkpoint itself; returns notes."""
    for folder in (config, source):
        for name in sorted(CONFIG_FILES):
            if folder is None or not (path := folder / name).is_file() or (target / name).exists():
                continue
            if path.stat().st_size > _MAX_CONFIG:
                raise ExportRefused(f"{path} is larger than 256 MiB: it does not describe a model")
            shutil.copyfile(path, target / name)
    if config is not None and not (config / CONFIG).is_file():
        raise ExportRefused(f"{config} holds no {CONFIG}")
    if (target / CONFIG).exists():
        return ()
    return (
        f"there is no {CONFIG}, which from_pretrained needs: give the folder that it stands in with --config FOLDER"
        " (model.config.save_pretrained(FOLDER) writes it)",
    )


def _load(form: ExportFormat, files: Mapping[str, int]) -> str:
    if form is ExportFormat.DCP:
        return 'torch.distributed.checkpoint.load({"model": ..., "optimizer": ...}, checkpoint_id="FOLDER")'
    if form is ExportFormat.HUGGINGFACE:
        return 'transformers.AutoModel.from_pretrained("FOLDER")'
    if "model.safetensors" in files:
        return 'safetensors.torch.load_model(model, "FOLDER/model.safetensors")'
    return (
        'for file in pathlib.Path("FOLDER").glob("model-*.safetensors"):'
        " model.load_state_dict(safetensors.torch.load_file(file), strict=False)"
    )
