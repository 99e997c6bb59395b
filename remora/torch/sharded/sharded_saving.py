"""Checkpoints of a sharded loop that no rank waits for: each writes its shard from the snapshot in host memory.

The snapshot's memory is used for nothing else, and stays until the file is written, whatever training does meanwhile.
No rank asks another one for anything.  So where one is lost, its file is missing, and the checkpoint never counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from remora.torch.layout import Writer
from remora.torch.saving import CheckpointThread, hand_over
from remora.torch.sharded import checkpoint_io
from remora.torch.sharded.grid import Grid
from remora.torch.sharded.snapshots import OwnCopy


class ShardedSaving:
    """At most one checkpoint under way."""

    def __init__(self) -> None:
        self._thread = CheckpointThread()

    def save(
        self, own: OwnCopy, names: Mapping[str, Any], writer: Writer, grid: Grid, *, in_background: bool
    ) -> None:
        """Write this rank's share of a snapshot and hand it over, once the one before is; raises what went wrong.

        `names`: what else the state says of the tensors, as `ShardedState.names` has it.
        """
        self.wait()
        if in_background:
            self._thread.start(lambda: _hand_over(own, names, writer, grid))
        else:
            _hand_over(own, names, writer, grid)

    def wait(self) -> None:
        """Wait until nothing is under way; raises what went wrong in it."""
        self._thread.wait()


def _hand_over(own: OwnCopy, names: Mapping[str, Any], writer: Writer, grid: Grid) -> None:
    blocks = checkpoint_io.blocks_of(own.layout, own.offsets, own.memory(), grid, writer.rank)
    state = {**own.whole["state"], **names} if writer.rank == 0 else None

    def write(folder: Path) -> None:
        checkpoint_io.save(folder, blocks, writer, state)

    size_bytes = sum(one.tensor.nbytes for one in blocks.values())
    hand_over(own.snapshot_id.step, size_bytes, writer.generation, write)
