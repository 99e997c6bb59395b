"""`Trainer` of Hugging Face transformers, and those of TRL, with an elastic number of workers and the same result.

    from remora.integrations.transformers import RemoraCallback

    trainer = Trainer(model, args, train_dataset=dataset, callbacks=[RemoraCallback(shards=4)])
    trainer.train()

Import it before `TrainingArguments(...)`: from then on transformers and accelerate see one process, and
`remora.torch.Loop` adds up the gradients of all workers.  Needs torch, transformers and accelerate.
"""

from remora.integrations.transformers.callback import RemoraCallback
from remora.integrations.transformers.take_over import take_over
from remora.integrations.transformers.world import be_one_process

__all__ = ["RemoraCallback"]

be_one_process()
take_over()
