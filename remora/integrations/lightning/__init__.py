"""`Trainer` of Lightning with an elastic number of workers and the same result.

    import lightning.pytorch as pl
    from remora.integrations.lightning import RemoraStrategy

    trainer = pl.Trainer(strategy=RemoraStrategy(shards=4), max_epochs=3)
    trainer.fit(module, loader)

The Trainer sees one process, whose batches are steps of `remora.torch.Steps`.  Needs torch and lightning.
"""

from remora.integrations.lightning.checkpoint_io import RemoraCheckpointIO
from remora.integrations.lightning.environment import RemoraEnvironment
from remora.integrations.lightning.strategy import RemoraStrategy

__all__ = ["RemoraCheckpointIO", "RemoraEnvironment", "RemoraStrategy"]
