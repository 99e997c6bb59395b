"""Buffers that a forward pass changes, such as the running statistics of BatchNorm.

The rule: every shard begins a step with the buffers as they were when the step began, and what shard 0 makes of them is
what all workers have after it.  That is what DistributedDataParallel does for its rank 0, and it depends on no number
of workers.  Small ones travel with the gradients, byte by byte, so that a sum with the zeros of all other workers
changes none of their bits.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from remora.torch.group import Group

#: Elements up to which a buffer is compared; larger ones are masks and tables.
_SMALL = 1 << 14
#: Bytes of all buffers that travel with the gradients.
_RIDING_BYTES = 1 << 18


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
        self._riding = _riding(self._buffers)
        #: Elements of what `keep` returns.
        self.width = len(self._buffers) + sum(_bytes_of(self._buffers[number]) for number in self._riding)

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

    def keep(self) -> torch.Tensor:
        """Remember what shard 0 made of them.

        Returns float32 of shape (width,): 1 for each buffer that it changed and 0 for the others, then the bytes of
        those that travel.
        """
        self._kept = {number: self._buffers[number].detach().clone() for number in self._changed()}
        flags = [float(number in self._kept) for number in range(len(self._buffers))]
        carried = torch.tensor(flags)
        if not self._riding:
            return carried
        sent = [self._kept.get(number, self._buffers[number]) for number in self._riding]
        bytes_ = torch.cat([one.detach().reshape(-1).view(torch.uint8) for one in sent])
        return torch.cat([carried.to(bytes_.device), bytes_.to(torch.float32)])

    def finish(self, group: Group, carried: torch.Tensor) -> None:
        """Take over what shard 0 made, which rank 0 carries; `carried` is the sum of what all workers' `keep` returned.

        Raises PeerLost, and then `restore` is to be called.
        """
        count = len(self._buffers)
        changed = [number for number, flag in enumerate(carried[:count].tolist()) if flag > 0]
        values = self._kept
        if group.rank != 0:
            values = self._unpacked(carried[count:])
            for number in changed:
                values.setdefault(number, torch.empty_like(self._buffers[number]))
        share(group, [values[number] for number in changed if number not in self._riding])
        for number in self._changed():
            if number not in changed:
                self._set(number, self._before[number])
        for number in changed:
            self._set(number, values[number])

    def _unpacked(self, bytes_: torch.Tensor) -> dict[int, torch.Tensor]:
        """Values by number from the bytes of those that travel."""
        riding = [self._buffers[number] for number in self._riding]
        parts = bytes_.to(torch.uint8).split([_bytes_of(one) for one in riding])
        return {
            number: part.view(one.dtype).view(one.shape)
            for number, part, one in zip(self._riding, parts, riding, strict=True)
        }

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


def _bytes_of(tensor: torch.Tensor) -> int:
    return int(tensor.numel() * tensor.element_size())


def _riding(buffers: Sequence[torch.Tensor]) -> list[int]:
    """Numbers of the buffers that travel with the gradients; wide elements first, so that all lie where they may."""
    small = [
        number for number, one in enumerate(buffers) if 0 < one.numel() <= _SMALL and one.is_contiguous()
    ]
    small.sort(key=lambda number: -buffers[number].element_size())
    riding, bytes_ = [], 0
    for number in small:
        bytes_ += _bytes_of(buffers[number])
        if bytes_ > _RIDING_BYTES:
            break
        riding.append(number)
    return riding


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
