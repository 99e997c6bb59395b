"""Files of ModelCheckpoint that outlive the worker that wrote them."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO

from remora import training


class RemoraCheckpointIO(TorchCheckpointIO):  # type: ignore[misc]  # lightning is not checked
    """The worker of rank 0 writes a file, and all workers keep its content in memory until it is removed.

    The contents are a part of the training state, so a worker that becomes rank 0, also in another attempt, writes
    those that its node does not have.
    """

    def __init__(self) -> None:
        super().__init__()
        #: Contents by path, each one tensor of bytes.
        self._contents: dict[str, torch.Tensor] = {}

    @property
    def contents(self) -> dict[str, torch.Tensor]:
        """The files that are kept: uint8, by path."""
        return dict(self._contents)

    def replace(self, contents: Mapping[str, torch.Tensor]) -> None:
        """Keep these and no others."""
        self._contents = dict(contents)

    def keeps(self, path: str | os.PathLike[str]) -> bool:
        """Whether a file of this path is kept."""
        return os.fspath(path) in self._contents

    def write_missing(self) -> None:
        """Write the files that are kept and not there, on the worker that has rank 0."""
        for path, content in self._contents.items():
            if not Path(path).exists():
                self._write(path, content)

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | os.PathLike[str], storage_options: Any = None
    ) -> None:
        """Keep a checkpoint, and write it on the worker of rank 0; raises TypeError for storage options."""
        if storage_options is not None:
            raise TypeError("storage_options are for other stores: RemoraCheckpointIO writes files")
        buffer = io.BytesIO()
        torch.save(checkpoint, buffer)
        content = torch.frombuffer(bytearray(buffer.getbuffer()), dtype=torch.uint8)
        self._contents[os.fspath(path)] = content
        if training.world().rank == 0:
            self._write(os.fspath(path), content)

    def load_checkpoint(
        self,
        path: str | os.PathLike[str],
        map_location: Callable[..., Any] | None = lambda storage, _: storage,
        weights_only: bool | None = None,
    ) -> dict[str, Any]:
        """Read a file, or what is kept of it; raises FileNotFoundError."""
        kept = self._contents.get(os.fspath(path))
        if kept is None or Path(path).exists():
            loaded: dict[str, Any] = super().load_checkpoint(path, map_location, weights_only)
            return loaded
        source = io.BytesIO(kept.numpy().tobytes())
        found: dict[str, Any] = torch.load(source, map_location=map_location, weights_only=bool(weights_only))
        return found

    def remove_checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Keep it no longer, and remove the file on the worker of rank 0."""
        self._contents.pop(os.fspath(path), None)
        if training.world().rank == 0:
            super().remove_checkpoint(path)

    @staticmethod
    def _write(path: str, content: torch.Tensor) -> None:
        partial = Path(f"{path}.part")
        partial.parent.mkdir(parents=True, exist_ok=True)
        partial.write_bytes(content.numpy().tobytes())
        partial.replace(path)
