"""Scripts with `ShardedLoop` whose models or data are made or run in ways of their own, one construct each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard
from torch.utils.checkpoint import checkpoint

from tests.golden.beside_constructs import EVERY, Elsewhere, right_of
from tests.golden.constructs import Construct, Weights, loss_of, table_of
from tests.golden.constructs_of_models import Experts
from tests.golden.sampler_constructs import Groups, Shuffled
from tests.golden.sharded_constructs import cut, loop_of, trained, whole
from tests.golden.subjects import CLASSES, FEATURES, PlacedStream, network


class Recomputed(nn.Sequential):
    """Computes its first layers once more in the backward pass."""

    def __init__(self, *, use_reentrant: bool) -> None:
        super().__init__(*network("mlp"))
        self.use_reentrant = use_reentrant

    def forward(self, samples: torch.Tensor) -> torch.Tensor:
        inner = samples.requires_grad_(self.use_reentrant)
        layers = list(self)
        for layer in layers[:4]:
            inner = checkpoint(layer, inner, use_reentrant=self.use_reentrant)
        for layer in layers[4:]:
            inner = layer(inner)
        return inner


def recomputed(folder: Path, *, use_reentrant: bool = False) -> Weights:
    def build(mesh: Any) -> Any:
        model = cut(Recomputed(use_reentrant=use_reentrant), mesh)
        return model, torch.optim.AdamW(model.parameters(), lr=3e-3)

    return trained(loop_of(build))


def recomputed_reentrantly(folder: Path) -> Weights:
    return recomputed(folder, use_reentrant=True)


def experts(folder: Path) -> Weights:
    def build(mesh: Any) -> Any:
        model = fully_shard(Experts(), mesh=mesh)
        # Adam would divide what rounds to zero by its size.
        return model, torch.optim.SGD(model.parameters(), lr=0.05)

    return trained(loop_of(build))


class Block(nn.Module):
    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.layer = nn.Linear(inputs, 32)

    def forward(self, inner: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.layer(inner))


class Blocks(nn.Module):
    """PyTorch compiles no `forward` of its own files, as that of `nn.Sequential`, and no loop over sharded layers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(11)
        self.first, self.second = Block(FEATURES), Block(32)
        self.dropout, self.head = nn.Dropout(0.3), nn.Linear(32, CLASSES)

    def forward(self, samples: torch.Tensor) -> torch.Tensor:
        return self.head(self.second(self.dropout(self.first(samples))))


def compiled(folder: Path) -> Weights:
    def build(mesh: Any) -> Any:
        model = Blocks()
        for block in (model.first, model.second):
            block.compile(fullgraph=True)
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
        return model, torch.optim.AdamW(model.parameters(), lr=3e-3)

    return trained_compiled(build)


def compiled_as_a_whole(folder: Path) -> Weights:
    def build(mesh: Any) -> Any:
        model = Blocks()
        for block in (model.first, model.second):
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh).compile()
        return model, torch.optim.AdamW(model.parameters(), lr=3e-3)

    return trained_compiled(build)


def trained_compiled(build: Any) -> Weights:
    weights = trained(loop_of(build))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] >= 2, "each block runs as compiled"
    return weights


def offloaded(folder: Path) -> Weights:
    """Only with a GPU beside it can host memory be pinned."""

    def build(mesh: Any) -> Any:
        model, policy = network("mlp"), CPUOffloadPolicy(pin_memory=False)
        for layer in (model[0], model[3], model):
            fully_shard(layer, mesh=mesh, offload_policy=policy)
        return model, torch.optim.AdamW(model.parameters(), lr=3e-3)

    loop = loop_of(build)
    for step in loop:
        step.backward(loss_of)
        nn.utils.clip_grad_norm_(loop.model.parameters(), 0.1)
        loop.optimizer.step()
    return whole(loop)


def scaled(folder: Path) -> Weights:
    # It overflows in the second step, and its optimizer leaves that one out.
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**126, growth_interval=1)
    loop = loop_of(scaler=scaler)
    for step in loop:
        step.backward(loss_of)
        scaler.step(loop.optimizer)
        scaler.update()
    return whole(loop)


def sampled(folder: Path) -> Weights:
    return trained(loop_of(sampler=Shuffled(60)))


def in_own_batches(folder: Path) -> Weights:
    return trained(loop_of(batch_sampler=Groups()))


def read_ahead(folder: Path) -> Weights:
    return trained(loop_of(data=PlacedStream(60), num_workers=1, prefetch_factor=3))


def evaluated(folder: Path, num_workers: int = 0) -> Weights:
    loop, held, found = loop_of(), Elsewhere(29) if num_workers else PlacedStream(29), []
    for step in loop:
        step.backward(loss_of)
        loop.optimizer.step()
        if step.number % EVERY == 0:
            means = loop.evaluate(held, right_of, batch_size=3, num_workers=num_workers)
            found.append([means["loss"], means["right"]])
    return Weights({"found": torch.tensor(found), **whole(loop).state_dict()})


def evaluated_ahead(folder: Path) -> Weights:
    return evaluated(folder, num_workers=1)


CONSTRUCTS: list[Construct] = [
    Construct("activation checkpointing, `use_reentrant=False`", "exact", recomputed),
    Construct("the same with `use_reentrant=True`", "exact", recomputed_reentrantly),
    Construct("a mixture of experts of which a step uses some (MoE), sharded as a whole", "exact", experts),
    Construct("blocks with `block.compile(fullgraph=True)` before `fully_shard(block)`", "exact", compiled),
    Construct("`model.compile()` in `build`", "exact", compiled_as_a_whole),
    Construct("`CPUOffloadPolicy(pin_memory=False)`, with CPUs as the devices", "exact", offloaded),
    Construct("a `GradScaler`, also where gradients overflow", "exact", scaled),
    Construct("a sampler", "exact", sampled),
    Construct("a `batch_sampler` with batches of unlike size", "exact", in_own_batches),
    Construct("`evaluate` of a stream with `state_dict`", "exact", evaluated),
    Construct("the same with `num_workers`", "exact", evaluated_ahead),
    Construct("a stream with `state_dict`, `num_workers` and `prefetch_factor`", "exact", read_ahead),
]


def table() -> str:
    """As `docs/elastic-training.md` has it."""
    return table_of(CONSTRUCTS, "construct of a model or its data with `ShardedLoop`")


if __name__ == "__main__":
    print(table())
