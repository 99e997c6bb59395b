"""Scripts of DeepSpeed as users write them; nothing of Remora is in them."""

from __future__ import annotations

import json
from pathlib import Path

_EXAMPLE = Path(__file__).parents[3] / "examples" / "deepspeed"
#: The example: its script and its configuration.
EXAMPLE = {name: (_EXAMPLE / name).read_text() for name in ("train.py", "ds_config.json")}
COMMAND = ["python", "train.py", "--deepspeed", "--deepspeed_config", "ds_config.json"]


def with_config(**changes: object) -> dict[str, str]:
    """The example with other values in its configuration."""
    config = {**json.loads(EXAMPLE["ds_config.json"]), **changes}
    return {**EXAMPLE, "ds_config.json": json.dumps(config)}


#: Layers whose tensors DeepSpeed splits in two; as many copies of the model as the workers make.
TENSOR_PARALLEL = """
import sys, time
import deepspeed, torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

BATCH = 8
steps, pause = int(sys.argv[1]), float(sys.argv[2])
deepspeed.init_distributed()
torch.manual_seed(0)

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)
    def forward(self, x):
        return x + self.down(torch.tanh(self.up(x)))

model = nn.Sequential(Block(), Block(), nn.Linear(16, 4))
specs = [
    {"patterns": [".*[.]up[.]weight$"], "partition_type": "column"},
    {"patterns": [".*[.]down[.]weight$"], "partition_type": "row"},
]
config = {
    "train_batch_size": "auto", "train_micro_batch_size_per_gpu": 2,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "torch_adam": True}},
    "zero_optimization": {"stage": 1}, "steps_per_print": 1000000,
    "tensor_parallel": {
        "autotp_size": 2, "partition_config": {"use_default_specs": False, "layer_specs": specs},
    },
}
engine, _, _, _ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
_, client = engine.load_checkpoint("checkpoints")
begin = client["step"] if client else 0
copies, mine = dist.get_world_size() // 2, dist.get_rank() // 2
if dist.get_rank() == 0:
    print(f"{copies} copies begin after step {begin}", flush=True)

for step in range(begin + 1, steps + 1):
    g = torch.Generator().manual_seed(step)
    x, y = torch.randn(BATCH, 16, generator=g), torch.randint(0, 4, (BATCH,), generator=g)
    total = torch.zeros(())
    for part in torch.arange(BATCH).chunk(copies)[mine].split(engine.train_micro_batch_size_per_gpu()):
        loss = F.cross_entropy(engine(x[part]), y[part])
        engine.backward(loss)
        engine.step()
        total += loss.detach() * len(part)
    dist.all_reduce(total)
    if dist.get_rank() == 0:
        print(f"step {step} loss {total.item() / BATCH / 2:.7f}", flush=True)
    if step % 5 == 0 or step == steps:
        engine.save_checkpoint("checkpoints", client_state={"step": step})
    time.sleep(pause)
"""

#: A pipeline of two stages; as many copies of it as the workers make.
PIPELINE = """
import os, sys, time
import deepspeed, torch
import torch.nn.functional as F
from torch import nn
from deepspeed.pipe import PipelineModule

BATCH, MICRO = 8, 2
steps, pause = int(sys.argv[1]), float(sys.argv[2])
deepspeed.init_distributed()
torch.manual_seed(0)
layers = [nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 4)]
model = PipelineModule(layers=layers, num_stages=2, loss_fn=F.cross_entropy, partition_method="uniform")
config = {
    "train_batch_size": "auto", "train_micro_batch_size_per_gpu": MICRO,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "torch_adam": True}},
    "zero_optimization": {"stage": 1}, "steps_per_print": 1000000,
}
engine, _, _, _ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
_, client = engine.load_checkpoint("checkpoints")
begin = client["step"] if client else 0
copies, mine = engine.grid.data_parallel_size, engine.grid.get_data_parallel_rank()
if engine.global_rank == 0:
    print(f"{copies} copies begin after step {begin}", flush=True)

def batches(step):
    g = torch.Generator().manual_seed(step)
    x, y = torch.randn(BATCH, 16, generator=g), torch.randint(0, 4, (BATCH,), generator=g)
    for part in torch.arange(BATCH).chunk(copies)[mine].split(MICRO):
        yield x[part], y[part]

for step in range(begin + 1, steps + 1):
    loss = engine.train_batch(batches(step))
    if engine.global_rank == 0:
        print(f"step {step} loss {loss.item():.7f}", flush=True)
    if step % 5 == 0 or step == steps:
        engine.save_checkpoint("checkpoints", client_state={"step": step})
    time.sleep(pause)
"""

#: The same with so few layers that DeepSpeed cannot split its checkpoint again for another number of copies.
SHORT_PIPELINE = PIPELINE.replace("nn.Tanh(), ", "")
