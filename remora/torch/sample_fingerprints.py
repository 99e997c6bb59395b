"""Fingerprints of samples: workers compare them, because Loop divides one dataset among all workers.

A dataset that a script has already divided by rank, as for DistributedSampler, would be divided twice.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from remora.torch.agreement import ROUNDING, gathered
from remora.torch.group import Group


@dataclass(frozen=True)
class SampleFingerprint:
    """What one sample holds, in a few numbers that workers compare."""

    #: Its number, and that of the epoch it is read in.
    sample: int
    epoch: int
    #: Hashes of the sample's content: `words` of whole numbers, text and shapes, `bits` of everything.
    words: int
    bits: int
    #: Sum and norm of its numbers with a fraction, and of its pictures.
    total: float
    norm: float


def sample_fingerprint(sample: int, epoch: int, item: Any) -> SampleFingerprint:
    """The fingerprint of a sample; what is no tensor, array, picture, number or text does not count."""
    words, bits = hashlib.blake2b(digest_size=8), hashlib.blake2b(digest_size=8)
    total, squares = 0.0, 0.0
    for leaf in _leaves(item):
        if isinstance(leaf, torch.Tensor):
            held = leaf.detach().cpu().contiguous()
            bits.update(held.view(-1).view(torch.uint8).numpy().tobytes())
            if held.is_floating_point() or held.dtype == torch.uint8:
                # Decoded and transformed by each machine, which may round in another way.
                words.update(str(tuple(held.shape)).encode())
                numbers = held.double().nan_to_num(0.0, 0.0, 0.0)
                total, squares = total + numbers.sum().item(), squares + numbers.square().sum().item()
            else:
                words.update(held.view(-1).view(torch.uint8).numpy().tobytes())
        elif isinstance(leaf, float):
            bits.update(leaf.hex().encode())
            if math.isfinite(leaf):
                total, squares = total + leaf, squares + leaf * leaf
        else:
            words.update(repr(leaf).encode())
    bits.update(words.digest())
    return SampleFingerprint(
        sample, epoch, _number(words.digest()), _number(bits.digest()), total, squares**0.5
    )


def first_different_rank(
    group: Group, own: SampleFingerprint, device: torch.device, *, is_bitwise: bool
) -> int | None:
    """The first rank whose sample is not that of rank 0, None where all read the same; raises PeerLost.

    All workers call it for the same step.  Without `is_bitwise` what rounding explains is no difference.
    """
    exact = torch.tensor([own.sample, own.epoch, own.words, own.bits], dtype=torch.int64)
    inexact = torch.tensor([own.total, own.norm], dtype=torch.float64).view(torch.int64)
    found = gathered(group, torch.cat([exact, inexact]).to(device)).cpu()
    exacts, inexacts = found[:, :4], found[:, 4:].contiguous().view(torch.float64)
    differ = (exacts != exacts[0])[:, : 4 if is_bitwise else 3].any(1)
    if not is_bitwise:
        differ |= ((inexacts - inexacts[0]).abs() > ROUNDING * inexacts[0, 1].clamp(min=1e-6)).any(1)
    return int(differ.nonzero()[0]) if bool(differ.any()) else None


def different_sample_text(rank: int, fingerprint: SampleFingerprint, *, is_sampled: bool = False) -> str:
    """The error for a rank whose dataset, or whose sampler where there is one, is not that of rank 0."""
    if is_sampled:
        return (
            f"rank {rank} draws other samples than rank 0 in epoch {fingerprint.epoch}, or reads another one for number"
            f" {fingerprint.sample}: hand the whole dataset and one sampler of it to all workers alike, not a part for"
            " each rank, because Loop divides its samples"
        )
    return (
        f"rank {rank} reads another sample than rank 0 for number {fingerprint.sample} of the dataset in epoch"
        f" {fingerprint.epoch}: hand the whole dataset to all workers alike, not a part for each rank, because Loop"
        " divides its samples"
    )


def _leaves(item: Any) -> Iterator[Any]:
    """Tensors, floats, and what is compared by its text."""
    if isinstance(item, torch.Tensor):
        if not item.is_sparse and not item.is_complex():
            yield item
    elif isinstance(item, Mapping):
        for key, one in item.items():
            yield str(key)
            yield from _leaves(one)
    elif isinstance(item, str | bytes | bool | int | float):
        yield item
    elif isinstance(item, Sequence):
        for one in item:
            yield from _leaves(one)
    elif hasattr(item, "__array__"):
        # Arrays and pictures.
        try:
            yield torch.as_tensor(item.__array__())
        except TypeError:
            return


def _number(digest: bytes) -> int:
    return int.from_bytes(digest, "big") >> 1
