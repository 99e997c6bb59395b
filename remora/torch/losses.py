"""The losses and metrics of micro-batches, as their shares of the global batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from remora.torch.feed import MicroBatch
from remora.torch.step import Outcome


class Losses:
    """What the script's function returns, checked, noted and scaled."""

    def __init__(self, scaler: Any, device: torch.device) -> None:
        self._scaler = scaler
        self._device = device
        #: Names of the means beside the loss.
        self.metric_names: tuple[str, ...] = ()
        #: Whether the loss, and each metric, comes as a sum with its count.
        self._are_sums: tuple[bool, ...] | None = None

    def share(
        self, found: Outcome, micro_batch: MicroBatch, note: Callable[[int, torch.Tensor], None]
    ) -> torch.Tensor:
        """Loss of one micro-batch, as its share of the global batch; `note` gets it with its metrics.

        Raises TypeError for a script that returns means at one time and sums at another.
        """
        if found.metrics:
            self.metric_names = tuple(found.metrics)
        self._check_counts(found)
        for place, numbers in found.notes(*_parts_of_batch(micro_batch), self._number):
            note(place, numbers)
        return self.scaled(found, micro_batch)

    def scaled(self, found: Outcome, micro_batch: MicroBatch) -> torch.Tensor:
        """The loss whose backward pass adds the micro-batch's part to the gradients."""
        share = found.share(*_parts_of_batch(micro_batch))
        if self._scaler is None:
            return share
        scaled: torch.Tensor = self._scaler.scale(share)
        return scaled

    def _check_counts(self, found: Outcome) -> None:
        """Means and sums do not add up."""
        are_sums = tuple(count is not None for count in found.counts)
        if self._are_sums not in (None, are_sums):
            raise TypeError(
                "the function given to backward returns (sum, count) for every batch, or for none"
            )
        self._are_sums = are_sums

    def _number(self, value: Any) -> torch.Tensor:
        return torch.as_tensor(value, dtype=torch.float32, device=self._device).detach().reshape(())


def _parts_of_batch(micro_batch: MicroBatch) -> tuple[float, float]:
    """What a micro-batch is of the global batch's samples, and what one sample is."""
    return len(micro_batch.samples) / micro_batch.total, 1.0 / micro_batch.total
