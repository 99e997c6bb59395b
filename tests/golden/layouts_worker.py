"""Scripts of DeepSpeed whose workers hold one model together, every rank in a process of its own; nothing of Remora.

usage: layouts_worker.py OUT save|resume LAYOUT; WORLD_SIZE, MASTER_ADDR and MASTER_PORT are those of torchrun.  Rank 0
writes the loss of every step into OUT/losses-MODE-WORLD_SIZE.json.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
import torch.nn.functional as F
from deepspeed.pipe import PipelineModule
from deepspeed.runtime.pipe.topology import PipeModelDataParallelTopology
from torch import nn

STEPS, SAVED, BATCH = 6, 3, 8
WIDTH, HIDDEN, CLASSES = 16, 32, 4

#: Seconds of a step do not matter here, and what is summed by several workers stays equal to 1e-6.
CONFIG: dict[str, Any] = {
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": 2,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "torch_adam": True}},
    "zero_optimization": {"stage": 1},
    "steps_per_print": 1_000_000,
}


class Block(nn.Module):
    """What a tensor is cut in: the first layer by its outputs, the second one by its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.tanh(self.up(x)))


class _Copied(torch.autograd.Function):
    """The same for all parts; their gradients are summed."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        return x

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        total = gradients[0].clone()
        dist.all_reduce(total, group=ctx.group)
        return total, None


class _Summed(torch.autograd.Function):
    """The sum of all parts; each has its gradient."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        total = x.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return gradients[0], None


class CutBlock(nn.Module):
    """The same block as Megatron splits it, by hand."""

    def __init__(self, parts: int, topology: PipeModelDataParallelTopology) -> None:
        super().__init__()
        whole = Block()
        rank = dist.get_rank()
        for ranks in topology.get_axis_comm_lists("model"):
            group = dist.new_group(ranks)
            if rank in ranks:
                self._group, part = group, ranks.index(rank)
        self.up = nn.Parameter(whole.up.weight.detach().chunk(parts)[part].clone())
        self.up_bias = nn.Parameter(whole.up.bias.detach().chunk(parts)[part].clone())
        self.down = nn.Parameter(whole.down.weight.detach().chunk(parts, dim=1)[part].clone())
        self.down_bias = nn.Parameter(whole.down.bias.detach().clone())
        for cut in (self.up, self.up_bias, self.down):
            cut.model_parallel = True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        own = torch.tanh(F.linear(_Copied.apply(x, self._group), self.up, self.up_bias))
        return x + _Summed.apply(F.linear(own, self.down), self._group) + self.down_bias


def batches(step: int, copies: int, mine: int, size: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Micro-batches of one copy of the model."""
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(BATCH, WIDTH, generator=generator)
    y = torch.randint(0, CLASSES, (BATCH,), generator=generator)
    return [(x[part], y[part]) for part in torch.arange(BATCH).chunk(copies)[mine].split(size)]


def tensor(stage: int = 1) -> tuple[Any, Callable[[int], float]]:
    """DeepSpeed splits the layers that the configuration names (AutoTP)."""
    model = nn.Sequential(Block(), Block(), nn.Linear(WIDTH, CLASSES))
    specs = [
        {"patterns": [r".*\.up\.weight$"], "partition_type": "column"},
        {"patterns": [r".*\.down\.weight$"], "partition_type": "row"},
    ]
    cut = {"autotp_size": 2, "partition_config": {"use_default_specs": False, "layer_specs": specs}}
    config = {**CONFIG, "zero_optimization": {"stage": stage}, "tensor_parallel": cut}
    engine, _, _, _ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), config=config
    )  # fmt: skip
    copies, mine = dist.get_world_size() // 2, dist.get_rank() // 2

    def train(step: int) -> float:
        total = torch.zeros(())
        for x, y in batches(step, copies, mine, engine.train_micro_batch_size_per_gpu()):
            loss = F.cross_entropy(engine(x), y)
            engine.backward(loss)
            engine.step()
            total += loss.detach() * len(x)
        dist.all_reduce(total)
        return total.item() / BATCH / 2

    return engine, train


def pipeline(blocks: list[nn.Module], **cut: Any) -> tuple[Any, Callable[[int], float]]:
    """Two stages, which DeepSpeed splits."""
    layers = [*blocks, nn.Linear(WIDTH, CLASSES)]
    model = PipelineModule(layers=layers, loss_fn=F.cross_entropy, partition_method="uniform", **cut)
    engine, _, _, _ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=CONFIG)
    copies, mine = engine.grid.data_parallel_size, engine.grid.get_data_parallel_rank()

    def train(step: int) -> float:
        return engine.train_batch(
            iter(batches(step, copies, mine, engine.train_micro_batch_size_per_gpu()))
        ).item()

    return engine, train


def three_dimensions() -> tuple[Any, Callable[[int], float]]:
    """Two stages of blocks whose tensors are cut in two, in as many copies as there are workers for."""
    topology = PipeModelDataParallelTopology(num_pp=2, num_mp=2, num_dp=dist.get_world_size() // 4)
    if topology.world_size() != dist.get_world_size():
        # Who does not fit has no place among the groups; DeepSpeed is to see it first.
        PipelineModule(layers=[], topology=topology)
    return pipeline([Block(), CutBlock(2, topology), CutBlock(2, topology)], topology=topology)


LAYOUTS: dict[str, Callable[[], tuple[Any, Callable[[int], float]]]] = {
    "tensor": tensor,
    "tensor, stage 3": lambda: tensor(3),
    "pipeline": lambda: pipeline([Block(), Block(), Block()], num_stages=2),
    "short pipeline": lambda: pipeline([Block(), Block()], num_stages=2),
    "3d": three_dimensions,
}


def run(rank: int, out: Path, mode: str, layout: str) -> None:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
    if mode == "resume":
        # What a supervisor sends a script that goes on.
        scratch = out / f"scratch-{os.environ['WORLD_SIZE']}-{rank}"
        scratch.mkdir()
        os.environ |= {"REMORA_RESUME_DIR": str(out / "saved"), "REMORA_SCRATCH_DIR": str(scratch)}
    deepspeed.init_distributed(dist_backend="gloo")
    # Who refuses its layout ends at once, which a worker that still connects would take for a death.
    dist.barrier()
    torch.manual_seed(0)
    engine, train = LAYOUTS[layout]()
    _, client = engine.load_checkpoint(str(out / "saved"))
    begin = client["step"] if client else 0
    losses = {}
    for step in range(begin + 1, STEPS + 1):
        losses[step] = train(step)
        if step == SAVED and not begin:
            engine.save_checkpoint(str(out / "saved"), client_state={"step": step})
    if rank == 0:
        (out / f"losses-{mode}-{dist.get_world_size()}.json").write_text(json.dumps(losses))
    dist.destroy_process_group()


def main() -> None:
    out, mode, layout = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    torch.set_num_threads(1)
    # Forked, so that DeepSpeed is imported once.
    fork = multiprocessing.get_context("fork")
    ranks = [
        fork.Process(target=run, args=(rank, out, mode, layout))
        for rank in range(int(os.environ["WORLD_SIZE"]))
    ]
    for one in ranks:
        one.start()
    for one in ranks:
        one.join()
    sys.exit(any(one.exitcode for one in ranks))


if __name__ == "__main__":
    main()
