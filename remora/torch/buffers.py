"""Buffers that a forward pass changes, such as the running statistics of BatchNorm.

The rule: every shard begins a step with the buffers as they were when the step began, and what shard 0 makes of them is
what all workers have after it.  That is what DistributedDataParallel does for its rank 0, and it depends on no number
of workers.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from remora.torch.group import Group

#: Elements up to which a buffer is compared; larger ones are masks and tables.
_SMALL = 1 << 14


class Buffers:
    """The buffers of one model."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._buffers: list[torch.Tensor] = list(model.buffers())
        numbers = {id(buffer): number for number, buffer in enumerate(self._buffers)}
        #: Numbers of the buffers of each module, which move together.
        self._modules = [
            own for one in model.modules() if (own := [numbers[id(b)] for b in one.buffers(recurse=False)])
        ]
        self._before: list[torch.Tensor] = [buffer.detach().clone() for buffer in self._buffers]
        self._versions: list[int] = [buffer._version for buffer in self._buffers]
        self._kept: dict[int, torch.Tensor] = {}

    def __len__(self) -> int:
        return len(self._buffers)

    def begin(self) -> None:
        """A step begins with what is there now."""
        for number in self._changed():
            self._before[number].copy_(self._buffers[number])
            self._versions[number] = self._buffers[number]._version
        self._kept = {}

    def restore(self) -> None:
        """Put everything back to where the step began."""
        for number in self._changed():
            self._set(number, self._before[number])
            self._versions[number] = self._buffers[number]._version

    def keep(self) -> list[float]:
        """Remember what shard 0 made of them; returns 1 for each buffer that it changed and 0 for the others."""
        self._kept = {number: self._buffers[number].detach().clone() for number in self._changed()}
        return [float(number in self._kept) for number in range(len(self._buffers))]

    def finish(self, group: Group, is_changed: Sequence[bool]) -> None:
        """Take over what shard 0 made, which rank 0 carries; raises PeerLost and leaves them as they were then."""
        self.restore()
        numbers = [number for number, changed in enumerate(is_changed) if changed]
        if group.rank == 0:
            values = [self._kept[number] for number in numbers]
        else:
            values = [torch.empty_like(self._buffers[number]) for number in numbers]
        share(group, values)
        for number, value in zip(numbers, values, strict=True):
            self._set(number, value)

    def share(self, part: Group) -> None:
        """Give the buffers of rank 0 of `part` to the others in it; raises PeerLost."""
        values = [buffer.detach().clone() for buffer in self._buffers]
        share(part, values)
        if part.rank != 0:
            for number, value in enumerate(values):
                self._set(number, value)

    def _changed(self) -> list[int]:
        """Buffers that are not as they were when the step began."""
        return sorted({number for own in self._modules if self._has_changed(own) for number in own})

    def _has_changed(self, own: Sequence[int]) -> bool:
        # torch counts most changes, and looking at a counter costs nothing; but it does not count what `batch_norm`
        # does to running statistics, which shows in their module's counter of batches or only in the values.
        return any(self._buffers[n]._version != self._versions[n] for n in own) or any(
            self._buffers[n].numel() <= _SMALL and not torch.equal(self._buffers[n], self._before[n])
            for n in own
        )

    def _set(self, number: int, value: torch.Tensor) -> None:
        with torch.no_grad():
            self._buffers[number].copy_(value)


def share(group: Group, tensors: Sequence[torch.Tensor], limit: int = 8 << 20) -> None:
    """Overwrite `tensors` with those of rank 0 of the group, packed into messages of about `limit` elements."""
    packs: dict[tuple[torch.dtype, torch.device], list[list[torch.Tensor]]] = {}
    for tensor in tensors:
        lots = packs.setdefault((tensor.dtype, tensor.device), [[]])
        if sum(one.numel() for one in lots[-1]) >= limit:
            lots.append([])
        lots[-1].append(tensor)
    under_way = []
    for lot in (lot for lots in packs.values() for lot in lots):
        flat = torch.cat([one.detach().reshape(-1) for one in lot])
        under_way.append((group.broadcast(flat, 0), flat, lot))
    for ticket, flat, lot in under_way:
        group.wait(ticket)
        if group.rank != 0:
            for part, one in zip(flat.split([one.numel() for one in lot]), lot, strict=True):
                with torch.no_grad():
                    one.copy_(part.view(one.shape))
