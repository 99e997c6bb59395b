"""Elastic training of models that are sharded over the workers with FSDP: `ShardedLoop`, and `ShardedSteps` for loops
that are not ours.
"""

from remora.torch.sharded.sharded_loop import ShardedLoop
from remora.torch.sharded.sharded_steps import ShardedSteps

__all__ = ["ShardedLoop", "ShardedSteps"]
