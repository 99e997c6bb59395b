"""Whether all ranks that hold copies of the same shard of a sharded state hold the same.

Three kinds of copies are compared by digests, as `remora.torch.agreement` makes them: what all ranks hold (buffers,
numbers of the optimizer such as its learning rates, scheduler and scaler); a shard of the model and the optimizer on
the ranks of different copies of the model, or of one tensor-parallel group that does not split it; and each rank's
shard with the copy of it in the newest snapshot, which must be one of this very step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from remora.torch.agreement import (
    ROUNDING,
    difference_text,
    digest,
    gathered,
    is_near,
    norm_of,
    stacked,
    sum_of,
    weighed,
)
from remora.torch.group import Group
from remora.torch.loop_settings import repr_hash
from remora.torch.sharded.grid import TENSOR, Grid
from remora.torch.sharded.process_groups import gather_objects
from remora.torch.sharded.state_shards import ShardedState, ShardOffsets

#: What numbers that are no tensors, such as learning rates, may differ in, as a share of their size.
_NUMBERS = 1e-6
#: Elements of tensors that are smaller than this on average count as this large.
_SMALL = 1e-2

Kind = Literal["shared", "number", "word", "shard", "backup"]


@dataclass(frozen=True)
class BackupCopy:
    """This rank's copy of a shard, from the newest snapshot."""

    memory: torch.Tensor
    offsets: ShardOffsets
    #: For each rank the one whose shard its copy is of.
    owners: list[int]


@dataclass(frozen=True)
class Difference:
    """The first thing that differs, and the ranks that do not hold what they should."""

    kind: Kind
    name: str
    ranks: list[int]
    #: What rank `ranks[0]` should hold is what this one holds.
    of: int

    def text(self, steps_done: int, agreed_after: int | None) -> str:
        """The error message about it."""
        if self.kind != "backup":
            held = "weights" if self.kind == "shard" else "state"
            return difference_text(self.name, self.ranks, steps_done, agreed_after, held=held, of=self.of)
        return (
            f"After step {steps_done} the state of rank {self.of} is not what its snapshot holds, first in {self.name}:"
            " it was changed after the step's end and before step.backward, where no snapshot has it; change it after"
            " step.backward. If the script does not, a memory is faulty."
        )


class ReplicaDigests:
    """Digests of what one rank holds at one moment."""

    def __init__(
        self, grid: Grid, sharded: ShardedState, shared: Mapping[str, Any], backup: BackupCopy
    ) -> None:
        self._grid = grid
        self._backup = backup
        leaves = list(leaves_of(shared))
        shards = {name: one.detach().to_local() for name, one in sharded.tensors()}
        #: Whether tensor parallelism leaves each shard whole, so that all of its group hold the same.
        self._is_whole = [_is_whole(one) for _, one in sharded.tensors()]
        copies = [backup.offsets.view(backup.memory, name) for name in shards]
        self._entries: list[tuple[Kind, str]] = [(kind, name) for name, kind, _ in leaves]
        self._entries += [(kind, display_name(name)) for kind in ("shard", "backup") for name in shards]
        self._values = [*(value for _, _, value in leaves), *shards.values(), *copies]
        self._first = len(leaves)
        self._count = len(shards)

    def difference(self, host_group: Group) -> Difference | None:
        """Compare with all others, which call this too; raises PeerLost."""
        digests = _row([digest(one) for one in self._values], torch.int64)
        rows = gathered(host_group, self._summary(digests))
        ranks, owners = self._references(host_group.world_size), self._backup.owners
        names, shared, own, whole, copied = rows.T
        if bool((names != names[0]).any()):
            return self._other_names(host_group)
        firsts = torch.tensor(ranks)
        is_same = shared == shared[0]
        is_same &= own == own[firsts[:, 0]]
        is_same &= whole == whole[firsts[:, 1]]
        is_same &= copied == own[torch.tensor(owners)]
        return None if bool(is_same.all()) else self._first_of(host_group, digests, ranks)

    def _summary(self, digests: torch.Tensor) -> torch.Tensor:
        """The digests of all names, and of all values of each kind."""
        shared, own, copied = digests.split([self._first, self._count, self._count])
        whole = own * torch.tensor(self._is_whole, dtype=torch.int64)
        sums = [weighed(one) for one in (shared, own, whole, copied)]
        return torch.stack([torch.tensor(repr_hash(self._entries)), *sums])

    def _references(self, world_size: int) -> list[tuple[int, int]]:
        """For each rank the first one with the same shard, and the first one of its tensor-parallel group there."""
        shards = map(self._grid.state_shard_of, range(world_size))
        return [(shard, shard // self._grid.tensor * self._grid.tensor) for shard in shards]

    def _first_of(
        self, host_group: Group, digests: torch.Tensor, ranks: Sequence[tuple[int, int]]
    ) -> Difference | None:
        of = self._reference_ranks(ranks)
        columns = torch.arange(len(self._entries))
        columns[self._first + self._count :] -= self._count
        all_ = gathered(host_group, digests)
        differ = all_ != all_[of, columns]
        sizes = gathered(host_group, self._sizes()).view(host_group.world_size, 3, -1)
        rounding = torch.tensor([_rounding(kind) for kind, _ in self._entries], dtype=torch.float64)
        differ &= ~is_near(sizes[:, :2], sizes.transpose(1, 2)[of, columns].transpose(1, 2), rounding)
        if not bool(differ.any()):
            return None
        first = int(differ.any(0).nonzero()[0])
        found: list[int] = differ[:, first].nonzero().flatten().tolist()
        kind, name = self._entries[first]
        return Difference(kind, name, found, int(of[found[0], first]))

    def _reference_ranks(self, ranks: Sequence[tuple[int, int]]) -> torch.Tensor:
        """For each rank and entry, the rank whose value it should be.  [ranks, entries]"""
        rows = []
        for (own, whole), owner in zip(ranks, self._backup.owners, strict=True):
            shards = [whole if is_whole else own for is_whole in self._is_whole]
            rows.append([0] * self._first + shards + [owner] * self._count)
        return torch.tensor(rows)

    def _sizes(self) -> torch.Tensor:
        """Sums, norms, and what counts as small, of all values, one after the other."""
        values = [
            one if one.is_floating_point() or one.is_complex() else one.double() for one in self._values
        ]
        floors = [
            0.0 if kind in ("number", "word") else _SMALL * one.numel() ** 0.5
            for (kind, _), one in zip(self._entries, values, strict=True)
        ]
        rows = [map(sum_of, values), map(norm_of, values), floors]
        return torch.cat([_row(row, torch.float64) for row in rows])

    def _other_names(self, host_group: Group) -> Difference:
        """Some ranks have not even the same things, as another number of groups in their optimizer."""
        all_ = gather_objects(host_group, self._entries)
        others = [rank for rank, one in enumerate(all_) if one != all_[0]]
        kind, name = min(set(all_[others[0]]) ^ set(all_[0]), default=all_[0][0])
        return Difference("shared" if kind == "backup" else kind, name, others, 0)


def leaves_of(value: Any, name: str = "") -> Iterator[tuple[str, Kind, torch.Tensor]]:
    """The tensors, numbers and words of a state by where they stand in it; of other things nothing is known."""
    if isinstance(value, torch.Tensor):
        yield name, "shared", value.detach()
    elif isinstance(value, bool | int | float):
        yield name, "number", torch.tensor(float(value), dtype=torch.float64)
    elif isinstance(value, str) or value is None:
        yield name, "word", torch.tensor(repr_hash(value))
    elif isinstance(value, Mapping):
        for key, one in value.items():
            yield from leaves_of(one, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list | tuple):
        for place, one in enumerate(value):
            yield from leaves_of(one, f"{name}.{place}")


def display_name(name: str) -> str:
    """The name of a sharded tensor for people."""
    kind, _, rest = name.partition("/")
    if kind == "model":
        return rest
    owner, _, key = rest.rpartition("/")
    return f"{key} of {owner}"


def _is_whole(tensor: Any) -> bool:
    placed = dict(zip(tensor.device_mesh.mesh_dim_names, tensor.placements, strict=True))
    return TENSOR in placed and bool(placed[TENSOR].is_replicate())


def _rounding(kind: Kind) -> float:
    """What a value may differ in, as a share of its size; copies have the same bits, and so have words."""
    return {"shared": ROUNDING, "shard": ROUNDING, "number": _NUMBERS}.get(kind, -1.0)


def _row(values: Any, dtype: torch.dtype) -> torch.Tensor:
    values = list(values)
    device = next((one.device for one in values if isinstance(one, torch.Tensor)), torch.device("cpu"))
    return stacked(values, dtype, device).cpu()
