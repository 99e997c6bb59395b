"""Checkpoints of a sharded state: every rank writes its own shard, and any number of workers reads them.

The tensors are written by `torch.distributed.checkpoint`; what is the same on all ranks lies beside them in one file.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp

from remora.torch.sharded.state_shards import ShardedState, TensorSpec, like
from remora.torch.state import CheckpointUnusable, read, write


def save(folder: Path, sharded: ShardedState, state: Mapping[str, Any] | None) -> None:
    """Write this rank's part into its own folder; rank 0 adds `state`.  All ranks call it; raises what goes wrong."""
    dcp.save(dict(sharded.tensors()), storage_writer=dcp.FileSystemWriter(folder, sync_files=False))
    if state is not None:
        write(state, folder)


def load(folder: Path, sharded: ShardedState) -> dict[str, Any]:
    """Take over the tensors in a checkpoint's folder, and return the rest; no rank needs another one for it.

    Raises CheckpointUnusable for what another script has written.
    """
    state = read(folder)
    reader = dcp.FileSystemReader(folder)
    try:
        saved = reader.read_metadata().state_dict_metadata
    except (OSError, EOFError) as error:
        raise CheckpointUnusable(
            f"{folder} holds no sharded state: it was not written by ShardedLoop, or files are missing"
        ) from error
    parameters = sharded.parameters
    tensors = {}
    for name, one in saved.items():
        kind, _, rest = name.partition("/")
        owner = rest if kind == "model" else rest.rpartition("/")[0]
        if owner not in parameters or (kind == "model" and parameters[owner].shape != one.size):
            raise CheckpointUnusable(f"the saved {name} does not fit the script's model")
        if kind == "model":
            tensors[name] = parameters[owner].detach()
        else:
            tensors[name] = _empty(sharded, name, TensorSpec(tuple(one.size), one.properties.dtype, ()))
    missing = [name for name in parameters if f"model/{name}" not in tensors]
    if missing:
        raise CheckpointUnusable(f"the checkpoint holds no {missing[0]}: it is one of another model")
    dcp.load(tensors, storage_reader=reader, no_dist=True)
    for name, one in tensors.items():
        if name.startswith("optimizer/"):
            owner, _, key = name.removeprefix("optimizer/").rpartition("/")
            sharded.optimizer.state[parameters[owner]][key] = one
    return state


def _empty(sharded: ShardedState, name: str, spec: TensorSpec) -> Any:
    here = sharded.as_split_here(name, spec)
    block = torch.zeros(tuple(map(len, here.box(sharded.shard))), dtype=spec.dtype)
    return like(sharded.owner(name), block, here)
