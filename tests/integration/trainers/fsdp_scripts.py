"""Scripts with FSDP2 as users write them: one with `ShardedLoop`, one that knows nothing of Remora."""

from __future__ import annotations

#: usage: train.py STEPS PAUSE_S [shard|tensor WORKERS]; WORKERS of them hold one copy, or compute a layer together.
SHARDED = """
import sys, time
import torch, torch.nn.functional as F
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from remora.torch.sharded import ShardedLoop

torch.set_num_threads(1)
steps, pause = int(sys.argv[1]), float(sys.argv[2])
layout = {sys.argv[3]: int(sys.argv[4])} if len(sys.argv) > 4 else {}
features = torch.randn(48, 8, generator=torch.Generator().manual_seed(5))
data = torch.utils.data.TensorDataset(features, features.argmax(1))

def build(mesh):
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 8))
    if "tensor" in layout:
        parallelize_module(model, mesh["tensor"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
        mesh = mesh["shard"]
    fully_shard(model[0], mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)

loop = ShardedLoop(build, data=data, global_batch=12, shards=6, total_steps=steps, seed=3, **layout)
for step in loop:
    time.sleep(pause)
    loss = step.backward(lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]))
    loop.optimizer.step()
    step.report(loss=loss)
"""

#: FSDP2 and DCP as their tutorials have them, under any launcher.  usage: train.py FOLDER STEPS PAUSE_S
UNMODIFIED = """
import pathlib, sys, time
import torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

folder, steps, pause = pathlib.Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
torch.set_num_threads(1)
dist.init_process_group("gloo")
torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 8))
for layer in (model[0], model[2], model):
    fully_shard(layer)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

def state():
    weights, moments = get_state_dict(model, optimizer)
    return {"model": weights, "optimizer": moments}

done = 0
saved = sorted(path.parent for path in folder.glob("*/.metadata"))
if saved:
    loaded = state()
    dcp.load(loaded, checkpoint_id=saved[-1])
    set_state_dict(model, optimizer, model_state_dict=loaded["model"], optim_state_dict=loaded["optimizer"])
    done = int(saved[-1].name)
print(f"rank {dist.get_rank()} of {dist.get_world_size()} begins after step {done}", flush=True)
for step in range(done + 1, steps + 1):
    time.sleep(pause)
    inputs = torch.randn(4, 8, generator=torch.Generator().manual_seed(step))
    optimizer.zero_grad()
    (model(inputs) - inputs).square().mean().backward()
    optimizer.step()
    if step % 20 == 0:
        dcp.save(state(), checkpoint_id=folder / f"{step:06d}")
print(f"rank {dist.get_rank()} ends after step {steps}", flush=True)
dist.destroy_process_group()
"""
