"""Which blocks of a checkpoint's tensors lie on which ranks; pure.

A state has thousands of tensors, and of those of one size that are split alike each rank reads blocks at the same
places.  So a rank says the places once for each kind of tensor.  The names of a kind are the same on almost all ranks:
each says the digest of its `Listing`, and one rank of each digest the listing itself.  What all ranks say together, and
what each computes of it, is linear in the number of ranks and small.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from remora.torch.loop_settings import repr_hash
from remora.torch.sharded.checkpoint_io import SavedTensor

#: Offset and shape of a block in its tensor.
Place = tuple[tuple[int, ...], tuple[int, ...]]
#: The blocks that a rank reads of each tensor, for each kind in a rank's listing.
Places = tuple[tuple[Place, ...], ...]


@dataclass(frozen=True)
class ReadAlike:
    """Tensors of which a rank reads blocks at the same places."""

    size: tuple[int, ...]
    dtype: torch.dtype
    names: tuple[str, ...]


@dataclass(frozen=True)
class Listing:
    """The tensors of which a rank reads blocks."""

    kinds: tuple[ReadAlike, ...]

    @property
    def digest(self) -> int:
        """The same for the same listing."""
        return repr_hash(self.kinds)


def listed(own: Mapping[str, SavedTensor]) -> tuple[Listing, Places]:
    """What a rank says of the tensors in the files that it reads."""
    names: dict[tuple[tuple[int, ...], torch.dtype, tuple[Place, ...]], list[str]] = {}
    for name in sorted(own):
        one = own[name]
        places = tuple((offset, shape) for offset, shape, _ in one.blocks)
        names.setdefault((one.size, one.dtype, places), []).append(name)
    kinds = tuple(ReadAlike(size, dtype, tuple(alike)) for (size, dtype, _), alike in names.items())
    return Listing(kinds), tuple(places for *_, places in names)


@dataclass(frozen=True)
class SavedAlike:
    """Tensors whose blocks lie at the same places of the same ranks."""

    size: tuple[int, ...]
    dtype: torch.dtype
    names: tuple[str, ...]
    #: Of each block: the rank that reads it, and its number among the blocks that this rank reads of a tensor.
    holders: tuple[int, ...]
    numbers: tuple[int, ...]
    places: tuple[Place, ...]

    @property
    def is_whole(self) -> bool:
        """Whether the blocks have as many elements as the tensor."""
        return sum(math.prod(shape) for _, shape in self.places) == math.prod(self.size)

    def boxes(self) -> torch.Tensor:
        """The blocks as `plan_transfers` takes them: (block, dimension, start and stop)."""
        starts = torch.tensor([offset for offset, _ in self.places], dtype=torch.int64)
        lengths = torch.tensor([shape for _, shape in self.places], dtype=torch.int64)
        return torch.stack((starts, starts + lengths), 2).view(len(self.places), len(self.size), 2)


def together(
    listings: Mapping[int, Listing], digests: Sequence[int], places: Sequence[Places]
) -> Iterator[SavedAlike]:
    """What all ranks have said, by tensors whose blocks lie alike; in the same order on all ranks.

    `listings` by digest; `digests` and `places` by rank.  Raises ValueError where a tensor is not the same in all
    files.
    """
    ranks: dict[int, list[int]] = {digest: [] for digest in sorted(listings)}
    for rank, digest in enumerate(digests):
        ranks[digest].append(rank)
    for where, names in _named_alike({digest: listings[digest] for digest in ranks}).items():
        kinds = [listings[digest].kinds[kind] for digest, kind in where]
        size, dtype = kinds[0].size, kinds[0].dtype
        if any((one.size, one.dtype) != (size, dtype) for one in kinds):
            raise ValueError(f"{names[0]} is not the one of other files")
        blocks = sorted(
            (rank, number, place)
            for digest, kind in where
            for rank in ranks[digest]
            for number, place in enumerate(places[rank][kind])
        )
        holders, numbers, found = zip(*blocks, strict=True)
        yield SavedAlike(size, dtype, tuple(names), holders, numbers, found)


def _named_alike(listings: Mapping[int, Listing]) -> dict[tuple[tuple[int, int], ...], list[str]]:
    """Names by where they are listed: by digest, and the number of their kind there."""
    where: dict[str, list[tuple[int, int]]] = {}
    for digest, listing in listings.items():
        for number, kind in enumerate(listing.kinds):
            for name in kind.names:
                where.setdefault(name, []).append((digest, number))
    alike: dict[tuple[tuple[int, int], ...], list[str]] = {}
    for name in sorted(where):
        alike.setdefault(tuple(where[name]), []).append(name)
    return alike
