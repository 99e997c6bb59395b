"""How many samples a step has, and how many steps training takes; pure.

Neither depends on the number of workers: a step has `per_device_train_batch_size x gradient_accumulation_steps x
shards` samples, as with `shards` devices.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from remora.torch.order import shard_size


@dataclass(frozen=True)
class SizeNames:
    """What a library calls its sizes, for errors."""

    micro_batch: str = "per_device_train_batch_size"
    accumulation: str = "gradient_accumulation_steps"
    #: What takes `shards` and `global_batch`.
    integration: str = "RemoraCallback"


@dataclass(frozen=True)
class Batches:
    """The samples of a step and their parts."""

    #: Most samples of one forward pass: `per_device_train_batch_size`.
    micro_batch: int
    #: Forward passes of a shard in a step: `gradient_accumulation_steps`.
    accumulation: int
    #: Parts of a step that workers carry.
    shards: int

    @property
    def global_batch(self) -> int:
        """Samples of a step of all workers together."""
        return self.micro_batch * self.accumulation * self.shards

    def micro_batches(self, samples: int) -> int:
        """Forward passes of a step of that many samples, of all workers together."""
        sizes = (shard_size(samples, shard, self.shards) for shard in range(self.shards))
        return sum(-(-size // self.micro_batch) for size in sizes)


def batches_of(
    micro_batch: int,
    accumulation: int,
    *,
    shards: int | None,
    global_batch: int | None,
    is_alone: bool,
    names: SizeNames | None = None,
) -> Batches:
    """The batches that arguments of the Trainer, callback and job describe.

    `is_alone`: the script was started by hand; without `shards` it trains as a Trainer on one device then.
    Raises ValueError when they describe none, or contradict each other.
    """
    unit = micro_batch * accumulation
    names = names or SizeNames()
    of_unit = f"{names.micro_batch} x {names.accumulation} ({micro_batch} x {accumulation})"
    if shards is None and global_batch is not None:
        if global_batch % unit:
            raise ValueError(
                f"a step of {global_batch} samples (global_batch) cannot be divided into shards of {of_unit}: choose"
                " numbers of which the one is a multiple of the other"
            )
        shards = global_batch // unit
    if shards is None and is_alone:
        shards = 1
    if shards is None:
        raise ValueError(
            f"say with {names.integration}(shards=...), or elastic.shards of the job, how many shards of {of_unit}"
            " samples a step has: their number is the greatest number of workers, and stays the same when workers come"
            " and go"
        )
    found = Batches(micro_batch, accumulation, shards)
    if global_batch not in (None, found.global_batch):
        raise ValueError(
            f"global_batch is {global_batch}, and {of_unit} times {shards} shards is {found.global_batch}: leave"
            " global_batch out, or change one of them"
        )
    return found


@dataclass(frozen=True)
class TrainingSteps:
    """The steps of training."""

    #: Steps of an epoch; of a dataset without a length all steps count as one epoch, as in the Trainer.
    steps_per_epoch: int
    total_steps: int
    epochs: int
    #: Samples that training reads, as the Trainer counts them for its speed.
    samples: float


def schedule_of(
    samples: int | None, batches: Batches, *, max_steps: int, num_train_epochs: float, drop_last: bool
) -> TrainingSteps:
    """The schedule for a dataset of `samples` samples (None: without a length, and `max_steps` is given).

    Raises ValueError for a dataset that makes no step.
    """
    if samples is None:
        return TrainingSteps(max_steps, max_steps, 1, max_steps * batches.global_batch)
    whole, rest = divmod(samples, batches.global_batch)
    steps_per_epoch = whole + (rest > 0 and not drop_last)
    if steps_per_epoch == 0:
        raise ValueError(
            f"{samples} samples make no step of {batches.global_batch}: use more data, a smaller batch or fewer"
            " shards, or dataloader_drop_last=False"
        )
    if max_steps > 0:
        epochs = -(-max_steps // steps_per_epoch)
        return TrainingSteps(steps_per_epoch, max_steps, epochs, max_steps * batches.global_batch)
    total = math.ceil(num_train_epochs * steps_per_epoch)
    return TrainingSteps(steps_per_epoch, total, math.ceil(num_train_epochs), samples * num_train_epochs)
