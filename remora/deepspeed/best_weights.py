"""The weights with the best metric of a Trainer, kept until its end: whole ones, or this worker's partitions of them.

Stages 0 to 2 of ZeRO have all weights on each worker, and one file in a checkpoint.  With stage 3 a worker has a part
of each flattened parameter (`ds_tensor`), padded at the end of the last worker's: it keeps these, and each worker has a
file in a checkpoint.  Another number of workers splits the same parameters elsewhere.

Source: DeepSpeed, `runtime/zero/partition_parameters.py` (`_partition_param`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from remora.deepspeed.refusal import Refused

_WHOLE, _PARTITIONS = "best_weights.pt", "best_partitions-{rank}-of-{count}.pt"


class BestWeights(ABC):
    """The best weights, once there are any."""

    @property
    @abstractmethod
    def are_kept(self) -> bool:
        """There are some."""

    @abstractmethod
    def keep(self, model: Any) -> None:
        """Copy the present weights to the CPU; every worker calls it."""

    @abstractmethod
    def write(self, folder: Path, model: Any) -> None:
        """Write them into this worker's folder of a checkpoint; every worker calls it, once there are some."""

    @abstractmethod
    def write_for_trainer(self, file: Path) -> None:
        """Write them as the Trainer does where this worker has all of them; for the first worker."""

    @abstractmethod
    def load(self, model: Any) -> None:
        """Give the model these weights; every worker calls it."""


def best_weights_of(stage: int, saved: Path | None) -> BestWeights:
    """The kind for a stage of ZeRO, with what the checkpoint in the folder `saved` has of it.

    Raises Refused where that is not complete.
    """
    return PartitionedBest(saved) if stage == 3 else WholeBest(saved)


class WholeBest(BestWeights):
    """All weights, but for frozen ones, on each worker."""

    def __init__(self, saved: Path | None) -> None:
        self._weights: dict[str, torch.Tensor] = {}
        if saved is not None and (saved / _WHOLE).is_file():
            self._weights = torch.load(saved / _WHOLE, map_location="cpu", weights_only=True)

    @property
    def are_kept(self) -> bool:
        """There are some."""
        return bool(self._weights)

    def keep(self, model: Any) -> None:
        """Copy the present weights to the CPU."""
        frozen = {name for name, one in model.named_parameters() if not one.requires_grad}
        self._weights = {
            name: one.detach().to("cpu", copy=True)
            for name, one in model.state_dict().items()
            if hasattr(one, "detach") and name not in frozen
        }

    def write(self, folder: Path, model: Any) -> None:  # noqa: ARG002
        """Write them, on the first worker."""
        if dist.get_rank() == 0:
            torch.save(self._weights, folder / _WHOLE)

    def write_for_trainer(self, file: Path) -> None:
        """Write them as the Trainer does."""
        torch.save(self._weights, file)

    def load(self, model: Any) -> None:
        """Give the model these weights."""
        model.load_state_dict(self._weights, strict=False)


class PartitionedBest(BestWeights):
    """This worker's part of each flattened parameter, and all buffers."""

    def __init__(self, saved: Path | None) -> None:
        #: By name; None: there are none, or they are still in `_files`.
        self._parts: dict[str, torch.Tensor] | None = None
        self._buffers: dict[str, torch.Tensor] = {}
        #: Files of the workers that wrote a checkpoint, by rank.
        self._files = [] if saved is None else _files_of(saved)

    @property
    def are_kept(self) -> bool:
        """There are some."""
        return self._parts is not None or bool(self._files)

    def keep(self, model: Any) -> None:
        """Copy this worker's parts to the CPU."""
        self._parts = {name: _part(one).to("cpu", copy=True) for name, one in _trained(model)}
        self._buffers = {name: one.detach().to("cpu", copy=True) for name, one in model.named_buffers()}
        self._files = []

    def write(self, folder: Path, model: Any) -> None:
        """Write this worker's parts."""
        name = _PARTITIONS.format(rank=dist.get_rank(), count=dist.get_world_size())
        torch.save({"parts": self._own(model), "buffers": self._buffers}, folder / name)

    def write_for_trainer(self, file: Path) -> None:
        """Nothing: no worker has a whole parameter."""

    def load(self, model: Any) -> None:
        """Give each parameter these values, on all workers."""
        parts = self._own(model)
        parameters = [one for _, one in _trained(model)]
        whole = [one for one in parameters if one.ds_status.name == "AVAILABLE"]
        if whole:
            # What is gathered is a copy.
            whole[0].partition(whole)
        with torch.no_grad():
            for name, one in _trained(model):
                _part(one).copy_(parts[name])
            for name, buffer in model.named_buffers():
                if name in self._buffers:
                    buffer.copy_(self._buffers[name])
        # Small ones stay gathered between steps.
        if kept := [one for one in parameters if one.ds_persist]:
            kept[0].all_gather(kept)

    def _own(self, model: Any) -> dict[str, torch.Tensor]:
        """This worker's parts, cut out of those of the workers that wrote the checkpoint."""
        if self._parts is None:
            saved = [torch.load(one, map_location="cpu", mmap=True, weights_only=True) for one in self._files]
            try:
                self._parts = {
                    name: recut([one["parts"][name] for one in saved], one.ds_numel, _part(one).numel())
                    for name, one in _trained(model)
                }
                self._buffers = {name: one.clone() for name, one in saved[0]["buffers"].items()}
            except KeyError as missing:
                raise Refused(
                    f"the checkpoint has no best weights of {missing}: resume it with the model that wrote it"
                ) from None
            self._files = []
        return self._parts


def recut(parts: list[torch.Tensor], count: int, size: int, rank: int | None = None) -> torch.Tensor:
    """The part of `size` values that worker `rank` (None: this one) has of a parameter of `count` values.

    `parts` are those of the workers that cut it before, in the order of their ranks: flat, of one size, and with values
    that mean nothing behind the last one of the parameter.
    """
    whole = torch.cat([one.flatten() for one in parts])[:count]
    begin = (dist.get_rank() if rank is None else rank) * size
    own = torch.zeros(size, dtype=whole.dtype)
    found = whole[begin : begin + size]
    own[: found.numel()] = found
    return own


def _trained(model: Any) -> Iterator[tuple[str, Any]]:
    return ((name, one) for name, one in model.named_parameters() if one.requires_grad)


def _part(parameter: Any) -> torch.Tensor:
    """This worker's part of a parameter; a view of what training uses."""
    part: torch.Tensor = parameter.ds_tensor.detach()
    return part


def _files_of(saved: Path) -> list[Path]:
    """Files of all workers in a checkpoint, in the order of their ranks; [] where it has none.

    Raises Refused where some are missing.
    """
    found = list(saved.glob(_PARTITIONS.format(rank="*", count="*")))
    if not found:
        return []
    expected = [saved / _PARTITIONS.format(rank=rank, count=len(found)) for rank in range(len(found))]
    if set(found) != set(expected):
        raise Refused("the checkpoint lacks best weights of some workers: resume from an older one")
    return expected
