"""Elastic training with PyTorch: three lines turn a plain loop into one whose result does not depend on its workers.

    from remora.torch import Loop

    loop = Loop(model, optimizer, data=dataset, global_batch=96, shards=12, total_steps=1000)
    for step in loop:
        loss = step.backward(lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]))
        optimizer.step()
        step.report(loss=loss)

Needs torch, which the rest of `remora` does not.
"""

from remora.torch.agreement import Diverged
from remora.torch.group import PeerLost
from remora.torch.learning_rate import linear_scaling
from remora.torch.loop import Loop
from remora.torch.loop_settings import Exactness
from remora.torch.nonfinite import NotFinite
from remora.torch.sharded_stream import ShardedStream
from remora.torch.state import CheckpointUnusable
from remora.torch.state import read as read_checkpoint
from remora.torch.step import Step
from remora.torch.steps import OpenStep, Steps

__all__ = [
    "CheckpointUnusable",
    "Diverged",
    "Exactness",
    "Loop",
    "NotFinite",
    "OpenStep",
    "PeerLost",
    "ShardedStream",
    "Step",
    "Steps",
    "linear_scaling",
    "read_checkpoint",
]
