"""The flat layout of a model's gradients: a few large tensors instead of many small ones.

The last bucket has a *tail* of numbers that travel with the gradients, so that they cost no collective of their own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

#: Bytes of a bucket; the first one is small, so that communication begins early.
_FIRST_BYTES = 1 << 20
_BUCKET_BYTES = 25 << 20


@dataclass(frozen=True)
class Bucket:
    """Some parameters of one type on one device, in the order in which their gradients usually come."""

    dtype: torch.dtype
    device: torch.device
    parameters: tuple[torch.Tensor, ...]
    #: Elements of the tail behind the gradients.
    tail: int = 0

    @cached_property
    def gradient_size(self) -> int:
        """Elements of the gradients."""
        return sum(parameter.numel() for parameter in self.parameters)

    @cached_property
    def size(self) -> int:
        """Elements of the gradients and the tail."""
        return self.gradient_size + self.tail


class Flats:
    """One set of flat tensors, one per bucket, with the parts that belong to each parameter."""

    def __init__(self, buckets: Sequence[Bucket], padding: int) -> None:
        """Empty ones, with `padding` elements more than the buckets need."""
        self.buckets = buckets
        self.tensors = [
            torch.empty(one.size + padding, dtype=one.dtype, device=one.device) for one in buckets
        ]
        #: In the shape of its parameter each.
        self._views = [
            [
                part.view(owner.shape)
                for part, owner in zip(
                    flat[: bucket.gradient_size].split([owner.numel() for owner in bucket.parameters]),
                    bucket.parameters,
                    strict=True,
                )
            ]
            for bucket, flat in zip(buckets, self.tensors, strict=True)
        ]

    @property
    def tail(self) -> torch.Tensor:
        """The numbers that travel behind the gradients."""
        last = self.buckets[-1]
        return self.tensors[-1][last.gradient_size : last.size]

    def fill(self, number: int) -> None:
        """Copy the gradients of a bucket into its flat tensor; zeros where there is none."""
        targets, gradients = [], []
        for view, parameter in zip(self._views[number], self.buckets[number].parameters, strict=True):
            if parameter.grad is None:
                view.zero_()
            else:
                targets.append(view)
                gradients.append(parameter.grad)
        if targets:
            torch._foreach_copy_(targets, gradients)

    def spread(self, number: int, is_used: Sequence[bool]) -> None:
        """Copy a flat tensor back into the gradients of its bucket; those of unused parameters become None."""
        targets, sources = [], []
        owners = self.buckets[number].parameters
        for view, parameter, used in zip(self._views[number], owners, is_used, strict=True):
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
    groups: list[list[torch.Tensor]] = []
    size = 0
    for parameter in reversed(parameters):
        limit = _FIRST_BYTES if len(groups) == 1 else _BUCKET_BYTES
        last = groups[-1][-1] if groups else None
        if last is None or (last.dtype, last.device) != (parameter.dtype, parameter.device) or size >= limit:
            groups.append([])
            size = 0
        groups[-1].append(parameter)
        size += parameter.numel() * parameter.element_size()
    buckets = [Bucket(group[0].dtype, group[0].device, tuple(group)) for group in groups]
    if not buckets or buckets[-1].dtype != torch.float32:
        device = parameters[-1].device if parameters else torch.device("cpu")
        buckets.append(Bucket(torch.float32, device, ()))
    buckets[-1] = dataclasses.replace(buckets[-1], tail=tail)
    return buckets
