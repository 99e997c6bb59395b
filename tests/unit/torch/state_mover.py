"""One of two workers: rank 0 has trained a step, rank 1 joins; says how far its memory rose over what it holds."""

from __future__ import annotations

import gc
import hashlib
import os
import time
from pathlib import Path
from typing import Any

import torch

from remora.torch.buffers import Buffers
from remora.torch.members import Membership
from remora.torch.state import LoopState, Progress
from remora.torch.state_sync import WorkerState

#: Bytes of the model; with Adam's averages it is three times as much.
MODEL_BYTES = 200_000_000 // 3


class NoReduction:
    """Of a group that does no steps: its gradients would be memory of their own."""

    def use(self, group: Any) -> None:
        pass

    def confirm(self) -> None:
        pass


def memory(name: str) -> int:
    """Bytes that the kernel says of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) << 10
    raise LookupError(name)


def digest(state: Any) -> str:
    found = hashlib.sha256()
    for part in (state["parts"]["model"], *state["parts"]["optimizer"]["state"].values()):
        for name, tensor in part.items():
            found.update(name.encode())
            found.update(memoryview(tensor.contiguous().view(-1).view(torch.uint8).numpy()))
    return found.hexdigest()


def main() -> None:
    rank = int(os.environ["RANK"])
    torch.manual_seed(rank)
    # One tensor that is larger than a message, and many that are smaller.
    width = 1000
    layers = [
        torch.nn.Linear(width, MODEL_BYTES * 3 // 5 // 4 // width),
        *(torch.nn.Linear(100, 100) for _ in range(660)),
    ]
    model = torch.nn.ModuleList(layers)
    optimizer = torch.optim.Adam(model.parameters())
    if rank == 0:
        for one in model.parameters():
            one.grad = torch.randn_like(one)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    loop_state = LoopState({"model": model, "optimizer": optimizer}, {})
    progress = Progress(5, 0, 5)
    moved_s = 0.0

    def restore(state: Any) -> None:
        nonlocal progress
        progress = loop_state.restore(state)

    members = Membership(None, 2, NoReduction(), Buffers(model), torch.device("cpu"))  # type: ignore[arg-type]
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")
    before, began_at = memory("VmRSS"), time.monotonic()
    members.begin(
        WorkerState(5 if rank == 0 else -1, False, 1), lambda: loop_state.capture(progress), restore
    )
    moved_s = time.monotonic() - began_at
    peak = memory("VmHWM")
    own = before if rank == 0 else before + 2 * sum(one.numel() * 4 for one in model.parameters())
    print("rise", peak - own)
    print("seconds", round(moved_s, 3))
    print("digest", digest(loop_state.capture(progress)))
    members.leave()


if __name__ == "__main__":
    main()
