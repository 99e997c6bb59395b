"""The steps of training as the batches of a data loader, as a Trainer of Lightning reads them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch.utils.data import DataLoader

from remora.integrations.loader_data import training_data
from remora.integrations.sizes import Batches, schedule_of
from remora.torch import OpenStep


class StepLoader:
    """Has one batch for each step of an epoch; raises ValueError and TypeError for data that have none."""

    def __init__(
        self, loader: Any, seed: int, batches: Callable[[int], Batches], take: Callable[[], OpenStep | None]
    ) -> None:
        if not isinstance(loader, DataLoader):
            raise TypeError(
                f"the training data are a {type(loader).__name__}, and RemoraStrategy reads the dataset of a"
                " torch.utils.data.DataLoader: hand over one"
            )
        if loader.batch_size is None:
            raise ValueError("the training DataLoader makes no batches: give it a batch_size")
        self.data = training_data(loader, seed)
        if self.data.samples is None:
            raise ValueError(
                "the training dataset has no length, and Lightning would read ahead of the step under way: give it"
                " __len__ and __getitem__"
            )
        self.batches = batches(loader.batch_size)
        schedule = schedule_of(
            self.data.samples, self.batches, max_steps=-1, num_train_epochs=1, drop_last=self.data.drop_last
        )
        self._steps_per_epoch = schedule.steps_per_epoch
        self._take = take

    def __len__(self) -> int:
        return self._steps_per_epoch

    def __iter__(self) -> Iterator[OpenStep]:
        """The steps that are left; Lightning takes those of one epoch."""
        while (step := self._take()) is not None:
            yield step

    def state_dict(self) -> dict[str, Any]:
        """Nothing: the place in the data is a part of the state of `Steps`."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing."""
