"""One contestant of `benchmarks.steady`: the same model, data and optimizer in a plain DDP loop or in `remora.torch`.

Trains in blocks of steps.  Before each block it waits for the file `FOLDER/NAME-N.go`; after it rank 0 writes the
seconds of every step into `FOLDER/NAME-N.json`.  After the last block it waits for `FOLDER/end`.

usage: steady_train.py NAME plain|sample-exact|bitwise digits|gpt FOLDER BLOCKS STEPS
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from alternation import Alternation, wait_for
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler, TensorDataset

WORKERS = 2


def digits() -> tuple[nn.Module, Dataset, int]:
    """The network and the data of `examples/elastic`, and samples of a global batch."""
    from elastic_example import load_data, network

    data, _, _ = load_data()
    return network(), data, 96


def gpt() -> tuple[nn.Module, Dataset, int]:
    """The byte-level GPT of `examples/bytegpt` on fixed windows of its text."""
    from bytegpt_example import ByteGPT, load_text, windows

    text, _ = load_text(1_000_000)
    stretches = windows(text, 5, 4096)
    return ByteGPT(), TensorDataset(stretches[:, :-1].contiguous(), stretches[:, 1:].contiguous()), 12


def loss_of(model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
    """Mean cross entropy of classes, or of the next bytes."""
    logits = model(batch[0])
    return F.cross_entropy(logits.flatten(0, -2), batch[1].flatten())


def plain(model: nn.Module, data: Dataset, batch: int, alternation: Alternation) -> None:
    """As a tutorial writes it."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    wrapped = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    sampler = DistributedSampler(data, seed=3)
    loader = DataLoader(data, batch_size=batch // WORKERS, sampler=sampler)

    def batches() -> Iterator[list[torch.Tensor]]:
        for epoch in range(1_000_000):
            sampler.set_epoch(epoch)
            yield from loader

    source = batches()
    for _ in range(alternation.total):
        alternation.before()
        inputs = next(source)
        optimizer.zero_grad()
        loss = loss_of(wrapped, inputs)
        loss.backward()
        optimizer.step()
        loss.item()
        alternation.after(rank)


def elastic(model: nn.Module, data: Dataset, batch: int, alternation: Alternation, exactness: str) -> None:
    """The same with `remora.torch`, one shard per worker, and the loss reported in every step."""
    from remora.torch import Loop

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loop = Loop(
        model, optimizer, data=data, global_batch=batch, shards=WORKERS, total_steps=alternation.total, seed=3,
        exactness=exactness,
    )  # fmt: skip
    steps = iter(loop)
    for _ in range(alternation.total):
        alternation.before()
        step = next(steps)
        loss = step.backward(loss_of)
        optimizer.step()
        step.report(loss=loss)
        alternation.after(loop.world.rank)


def main() -> None:
    """Train one contestant."""
    name, loop, what, folder, blocks, steps = sys.argv[1:7]
    torch.manual_seed(3)
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    models: dict[str, Callable[[], tuple[nn.Module, Dataset, int]]] = {"digits": digits, "gpt": gpt}
    model, data, batch = models[what]()
    alternation = Alternation(name, Path(folder), int(blocks), int(steps))
    if loop == "plain":
        plain(model, data, batch, alternation)
    else:
        elastic(model, data, batch, alternation, loop)
    wait_for(Path(folder) / "end")


if __name__ == "__main__":
    main()
