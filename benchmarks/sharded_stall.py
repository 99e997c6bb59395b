"""What a checkpoint of 200 MB of state costs `ShardedLoop`, beside `torch.distributed.checkpoint` in the same process.

One worker trains a network of 16.8 million parameters, sharded by FSDP, with AdamW on one core; the snapshot in host
memory is taken after each step, with a checkpoint or without.  The time is that from before the checkpoint to the end
of the next optimizer step, and the result its ratio to that of a step without any, as medians.  `dcp_save` is
how `ShardedLoop` wrote until it wrote from the snapshot: with `torch.distributed.checkpoint`, while the loop waits.
What goes on writing behind a step is waited for before the next measurement.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn import functional
from torch.utils.data import TensorDataset

from benchmarks.stall import in_own_process, supervised
from remora import training
from remora.torch.sharded import ShardedLoop

#: Width of each of four square layers: 16.8 million parameters, 67 MB, and twice that for AdamW.
_WIDTH = 2048
#: Samples in a step of about one second on one core.
_BATCH = 1024
_WARM_STEPS = 3
_ROUNDS = 7

#: Writes a checkpoint of a step; what it returns waits until it is written.
Way = Callable[[int], Callable[[], Any]]


def run() -> dict[str, float]:
    """Ratios to a step without a checkpoint, and its seconds (`step_s`); in a process of its own."""
    return in_own_process("benchmarks.sharded_stall")


def main() -> None:
    """Measure here, and print the result as JSON."""
    torch.set_num_threads(1)
    with supervised() as (folder, stored):
        print(json.dumps(_measure(folder, stored)))


def _build(mesh: Any) -> Any:
    model = nn.Sequential(*[layer for _ in range(4) for layer in (nn.Linear(_WIDTH, _WIDTH), nn.ReLU())])
    fully_shard(model, mesh=mesh)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-4)


def _compute(model: nn.Module, batch: Any) -> torch.Tensor:
    return functional.mse_loss(model(batch[0]), batch[0])


class _Measured(ShardedLoop):
    """Writes at the end of each step in the way that is next, in place of what a supervisor asks for."""

    def prepare(self, folder: Path, stored: Any) -> None:
        self._folder, self._stored = folder, stored
        self.ways: dict[str, Way] = {
            "without": lambda _: lambda: None,
            "remora": self._in_background,
            "dcp_save": self._as_before,
        }
        self.times: dict[str, list[float]] = {name: [] for name in self.ways}
        self._way, self._began = "without", 0.0
        self._done: Callable[[], object] = lambda: None

    def optimizer_stepped(self) -> None:
        """The next step after a checkpoint is through its optimizer."""
        taken = time.perf_counter() - self._began
        self._done()
        # The first round warms everything up.
        if self.steps_done >= _WARM_STEPS + len(self.ways):
            self.times[self._way].append(taken)

    def _carry_out(self, decided: str | None) -> None:
        assert decided is None
        step = self._progress.step
        self._way = list(self.ways)[step % len(self.ways)]
        # The exchange of the snapshot is part of every step.
        self._began = time.perf_counter()
        self._done = self.ways[self._way](step)

    def _in_background(self, _step: int) -> Callable[[], Any]:
        self._checkpoint(is_last=False)
        return self._stored.recv  # type: ignore[no-any-return]

    def _as_before(self, step: int) -> Callable[[], Any]:
        with training.checkpoint(step) as folder:
            writer = dcp.FileSystemWriter(folder, sync_files=False)
            dcp.save(dict(self._present.sharded.tensors()), storage_writer=writer)
        return self._stored.recv  # type: ignore[no-any-return]


def _measure(folder: Path, stored: Any) -> dict[str, float]:
    data = TensorDataset(torch.randn(_BATCH, _WIDTH))
    loop = _Measured(
        _build, data=data, global_batch=_BATCH, shards=1, total_steps=10**6, check_every=0, shuffle=False
    )
    loop.prepare(folder, stored)
    for step in loop:
        step.backward(_compute)
        loop.optimizer.step()
        if step.number > 1:
            loop.optimizer_stepped()
        if step.number > _WARM_STEPS + len(loop.ways) * (_ROUNDS + 1):
            break
    medians = {name: statistics.median(one) for name, one in loop.times.items()}
    step_s = medians.pop("without")
    return {**{name: round(one / step_s, 4) for name, one in medians.items()}, "step_s": round(step_s, 4)}


if __name__ == "__main__":
    main()
