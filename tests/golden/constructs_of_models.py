"""Scripts with `Loop` whose models are made or run in ways of their own, one construct each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional

from tests.golden.constructs import Construct, adam, loop_of, loss_of, run, table_of
from tests.golden.subjects import CLASSES, FEATURES, network


class Experts(nn.Module):
    """Each sample goes to one of several experts, which a gate chooses; few samples leave most of them unused."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(11)
        self.gate = nn.Linear(FEATURES, 8)
        self.experts = nn.ModuleList([nn.Linear(FEATURES, CLASSES) for _ in range(8)])

    def forward(self, samples: torch.Tensor) -> torch.Tensor:
        weights, chosen = self.gate(samples).softmax(dim=1).max(dim=1)
        result = samples.new_zeros(len(samples), CLASSES)
        for number in chosen.unique().tolist():
            rows = (chosen == number).nonzero().squeeze(1)
            result = result.index_copy(0, rows, self.experts[number](samples[rows]) * weights[rows, None])
        return result


def experts(folder: Path) -> nn.Module:
    model = Experts()
    optimizer = adam(model)
    run(loop_of(model, optimizer), optimizer)
    return model


def compiled(folder: Path) -> nn.Module:
    model = network("mlp")
    optimizer = adam(model)
    quick = torch.compile(model)
    run(
        loop_of(model, optimizer),
        optimizer,
        compute=lambda model, batch: functional.cross_entropy(quick(batch[0]), batch[1]),
    )
    return model


def compiled_as_a_whole(folder: Path) -> nn.Module:
    model = network("mlp")
    optimizer = adam(model)
    run(loop_of(torch.compile(model), optimizer), optimizer)
    return model


def recomputed_reentrantly(folder: Path) -> nn.Module:
    model = network("mlp")
    optimizer = adam(model)

    def compute(model: nn.Module, batch: Any) -> torch.Tensor:
        samples = batch[0].requires_grad_(True)
        inner = torch.utils.checkpoint.checkpoint(model[:4], samples, use_reentrant=True)
        return functional.cross_entropy(model[4:](inner), batch[1])

    run(loop_of(model, optimizer), optimizer, compute=compute)
    return model


def synchronized(folder: Path) -> nn.Module:
    model = nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(nn.BatchNorm1d(FEATURES), network("mlp")))
    optimizer = adam(model)
    run(loop_of(model, optimizer), optimizer, compute=loss_of)
    return model


def sharded(folder: Path) -> nn.Module:
    torch.distributed.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    model = fully_shard(network("mlp"), mesh=mesh)
    loop_of(model, adam(model))
    return model


def wrapped(folder: Path) -> nn.Module:
    torch.distributed.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(network("mlp"))
    loop_of(model, adam(model))
    return model


CONSTRUCTS = [
    Construct("a mixture of experts of which a step uses some (MoE)", "exact", experts),
    Construct("`torch.compile` of the model, called in the function given to `backward`", "exact", compiled),
    Construct("`Loop(torch.compile(model), ...)`", "exact", compiled_as_a_whole),
    Construct("activation checkpointing, `use_reentrant=True`", "exact", recomputed_reentrantly),
    Construct(
        "`SyncBatchNorm`", "refused", synchronized,
        "is a SyncBatchNorm, which meets other workers in the middle of a shard",
    ),
    Construct(
        "a model that FSDP2 has sharded (`fully_shard`)", "refused", sharded,
        "the model is sharded (FSDP): Loop trains models that every worker holds as a whole",
    ),
    Construct(
        "a `DistributedDataParallel` around the model", "refused", wrapped,
        "hand over the plain model (ddp.module): Loop reduces the gradients itself",
    ),
]  # fmt: skip


def table() -> str:
    """As `docs/elastic-training.md` has it."""
    return table_of(CONSTRUCTS, "construct of a model")


if __name__ == "__main__":
    print(table())
