"""How samples become batches, and the processes that read them ahead: in training and in evaluations alike."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader, get_worker_info

from remora.torch.sampling import Sampling

Collate = Callable[[list[Any]], Any]


@dataclass(frozen=True)
class Loading:
    """How samples become batches."""

    #: None: that of torch.
    collate: Collate | None = None
    #: Processes that read ahead, and micro-batches for each of them; None: as many as torch would.
    num_workers: int = 0
    prefetch_factor: int | None = None
    #: The script's own order; None: a seeded permutation, or that of the dataset.
    sampling: Sampling | None = None


def loader_of(dataset: Any, places: Iterable[Any] | None, loading: Loading) -> Any:
    """Reads a dataset of batches at these places; None: as it iterates."""
    # A generator of its own: the loader must not draw from the random numbers of the script.
    return DataLoader(
        dataset,
        batch_size=None,
        sampler=places,
        num_workers=loading.num_workers,
        prefetch_factor=loading.prefetch_factor,
        collate_fn=_as_it_is,
        generator=torch.Generator(),
        pin_memory=torch.cuda.is_available(),
    )


def every_nth() -> tuple[int, int]:
    """Of a stream's batches a loader process makes every n-th one: the number of the first, and n.

    A loader asks its processes one after the other, so what they make comes in the order of the batches.
    """
    process = get_worker_info()
    return (0, 1) if process is None else (process.id, process.num_workers)


def _as_it_is(loaded: Any) -> Any:
    return loaded
