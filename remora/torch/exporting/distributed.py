"""Writes a folder that `torch.distributed.checkpoint` reads, without a process group and without the model.

A tensor whose blocks lie in several files stays in these blocks, which are copied one by one: what is loaded may be cut
otherwise in any case.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.default_planner import create_default_local_save_plan
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import SavePlan, TensorWriteData, WriteItem, WriteItemType

from remora.torch.exporting.cut_files import loaded
from remora.torch.exporting.reading import SavedOptimizer, SavedState, is_tensor
from remora.torch.exporting.refusals import ExportRefused
from remora.torch.sharded.checkpoint_io import SavedTensor


def write_distributed(saved: SavedState, folder: Path) -> None:
    """Write the model as `model` and its optimizer as `optimizer`, as `get_state_dict` of PyTorch names them.

    A tied tensor is there under each of its names.  Raises OSError, TensorFileDamaged, and ExportRefused for what the
    format cannot hold.
    """
    model = {**saved.model, **{name: saved.model[kept] for name, kept in saved.tied.items()}}
    content = {"model": model, **_optimizers(saved.optimizers)}
    writer = dcp.FileSystemWriter(folder, thread_count=1)
    try:
        with warnings.catch_warnings():
            # It warns of what is meant: that there is no process group.
            warnings.simplefilter("ignore", UserWarning)
            dcp.save(content, storage_writer=writer, planner=_Planner(), no_dist=True)
    except (ValueError, TypeError, RuntimeError, dcp.CheckpointException) as error:
        text = (str(error) or type(error).__name__).splitlines()[-1]
        raise ExportRefused(f"torch.distributed.checkpoint cannot hold the state: {text}") from error


def _optimizers(optimizers: Mapping[str, SavedOptimizer]) -> dict[str, Any]:
    """Several are one, as `get_optimizer_state_dict` makes them one; not where they share parameters."""
    names = [name for one in optimizers.values() for name in one.state]
    if len(names) > len(set(names)):
        return {part: _optimizer([one]) for part, one in optimizers.items()}
    return {"optimizer": _optimizer(list(optimizers.values()))} if optimizers else {}


def _optimizer(optimizers: list[SavedOptimizer]) -> dict[str, Any]:
    state = {name: _in_lists(values) for one in optimizers for name, values in one.state.items()}
    return {"state": state, "param_groups": [_in_lists(group) for one in optimizers for group in one.groups]}


def _in_lists(value: Any, *, is_listed: bool = False) -> Any:
    """The same with tensors in place of what stands for them inside lists, which the planner does not look into."""
    if isinstance(value, Mapping):
        return {str(key): _in_lists(one, is_listed=is_listed) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_in_lists(one, is_listed=True) for one in value)
    return loaded(value) if is_listed and is_tensor(value) else value


class _Planner(dcp.DefaultSavePlanner):  # type: ignore[misc]  # torch is not checked
    """Writes tensors from where they lie in the checkpoint's files."""

    def create_local_plan(self) -> SavePlan:
        """One item for each block of a tensor."""
        items: list[WriteItem] = []
        for name, value in self.state_dict.items():
            if isinstance(value, SavedTensor):
                items.extend(_items(name, value))
            else:
                items.extend(create_default_local_save_plan({name: value}, is_coordinator=True).items)
        self.plan = SavePlan(items, planner_data=self.mappings)
        return self.plan

    def lookup_object(self, index: MetadataIndex) -> Any:
        """The block, or whatever else has this name."""
        value = self.state_dict[index.fqn]
        if not isinstance(value, SavedTensor):
            return super().lookup_object(index)
        file = next(file for offset, _, file in value.blocks if offset == tuple(index.offset))
        return file.view(value.name)


def _items(name: str, tensor: SavedTensor) -> Iterator[WriteItem]:
    properties = TensorProperties(dtype=tensor.dtype)
    kind = WriteItemType.TENSOR if len(tensor.blocks) == 1 else WriteItemType.SHARD
    for offset, shape, _ in tensor.blocks:
        chunk = ChunkStorageMetadata(torch.Size(offset), torch.Size(shape))
        data = TensorWriteData(chunk=chunk, properties=properties, size=torch.Size(tensor.size))
        yield WriteItem(index=MetadataIndex(name, torch.Size(offset)), type=kind, tensor_data=data)
