"""Elastic training of models that are sharded over the workers with FSDP.

from remora.torch.sharded import ShardedLoop

def build(mesh):
model = Net()
for block in model.blocks:
fully_shard(block, mesh=mesh)
fully_shard(model, mesh=mesh)
return model, torch.optim.AdamW(model.parameters())

loop = ShardedLoop(build, data=dataset, global_batch=96, shards=12, total_steps=1000)
for step in loop:
loss = step.backward(lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]))
loop.optimizer.step()
step.report(loss=loss)
"""

from remora.torch.sharded.sharded_loop import ShardedLoop
from remora.torch.sharded.sharded_steps import ShardedSteps

__all__ = ["ShardedLoop", "ShardedSteps"]
