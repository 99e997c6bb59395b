"""The flat layout of a model's gradients: a few large tensors instead of many small ones.

The last bucket has a *tail* of numbers that travel with the gradients, so that they cost no collective of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

#: Bytes of a bucket; the first one is small, so that communication begins early.
_FIRST_BYTES = 1 << 20
_BUCKET_BYTES = 25 << 20


@dataclass
class Bucket:
    """Some parameters of one type on one device, in the order in which their gradients usually come."""

    dtype: torch.dtype
    device: torch.device
    parameters: list[torch.Tensor] = field(default_factory=list)
    #: Elements of the tail behind the gradients.
    tail: int = 0

    @property
    def gradient_size(self) -> int:
        """Elements of the gradients."""
        return sum(parameter.numel() for parameter in self.parameters)

    @property
    def size(self) -> int:
        """Elements of the gradients and the tail."""
        return self.gradient_size + self.tail

    def new(self, room: int = 0) -> torch.Tensor:
        """An empty flat tensor for it, with `room` elements more."""
        return torch.empty(self.size + room, dtype=self.dtype, device=self.device)

    def views(self, flat: torch.Tensor) -> list[torch.Tensor]:
        """The parts of a flat tensor that belong to each parameter, in its shape."""
        sizes = [parameter.numel() for parameter in self.parameters]
        parts = flat[: self.gradient_size].split(sizes)
        return [part.view(owner.shape) for part, owner in zip(parts, self.parameters, strict=True)]

    def fill(self, flat: torch.Tensor) -> None:
        """Copy the gradients into a flat tensor; zeros where there is none."""
        targets, gradients = [], []
        for view, parameter in zip(self.views(flat), self.parameters, strict=True):
            if parameter.grad is None:
                view.zero_()
            else:
                targets.append(view)
                gradients.append(parameter.grad)
        if targets:
            torch._foreach_copy_(targets, gradients)

    def spread(self, flat: torch.Tensor, is_used: Sequence[bool]) -> None:
        """Copy a flat tensor back into the gradients; those of unused parameters become None."""
        targets, sources = [], []
        for view, parameter, used in zip(self.views(flat), self.parameters, is_used, strict=True):
            if not used:
                parameter.grad = None
            elif parameter.grad is None:
                parameter.grad = view.clone()
            else:
                targets.append(parameter.grad)
                sources.append(view)
        if targets:
            torch._foreach_copy_(targets, sources)


def lay_out(parameters: Sequence[torch.Tensor], tail: int) -> list[Bucket]:
    """Buckets of all parameters, last parameters first, as their gradients come in a backward pass.

    The tail lies in the last bucket, which has one of its own where the last parameters are not float32.
    """
    buckets: list[Bucket] = []
    size = 0
    for parameter in reversed(parameters):
        bytes_ = parameter.numel() * parameter.element_size()
        limit = _FIRST_BYTES if len(buckets) == 1 else _BUCKET_BYTES
        last = buckets[-1] if buckets else None
        if last is None or (last.dtype, last.device) != (parameter.dtype, parameter.device) or size >= limit:
            buckets.append(Bucket(parameter.dtype, parameter.device))
            size = 0
        buckets[-1].parameters.append(parameter)
        size += bytes_
    if not buckets or buckets[-1].dtype != torch.float32:
        device = parameters[-1].device if parameters else torch.device("cpu")
        buckets.append(Bucket(torch.float32, device))
    buckets[-1].tail = tail
    return buckets
