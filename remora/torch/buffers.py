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

#: Elements up to which a buffer is always compared; larger ones are mostly masks and tables.
_SMALL = 1 << 14
#: Bytes of all buffers that travel with the gradients.
_RIDING_BYTES = 1 << 18


class Buffers:
    """The buffers of one model.

    They are known by where they stand, because `self.mean = ...` puts another tensor into the place of one.  One that
    is replaced by a tensor of another shape is a cache of its worker.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        #: Where each stands: its module and its name there; one that stands in several places is known by the first.
        self._places: list[tuple[torch.nn.Module, str]] = []
        self._names: list[str] = []
        #: What stood there when the step began.
        self._buffers: list[torch.Tensor] = []
        #: Numbers of the buffers of each module, which move together.
        self._modules: list[list[int]] = []
        seen: set[int] = set()
        for path, module in model.named_modules():
            own = [pair for pair in module.named_buffers(recurse=False) if id(pair[1]) not in seen]
            if own:
                self._modules.append(list(range(len(self._buffers), len(self._buffers) + len(own))))
            for name, buffer in own:
                seen.add(id(buffer))
                self._places.append((module, name))
                self._names.append(f"{path}.{name}" if path else name)
                self._buffers.append(buffer)
        self._before: list[torch.Tensor] = [buffer.detach().clone() for buffer in self._buffers]
        self._versions: list[int] = [buffer._version for buffer in self._buffers]
        self._kept: dict[int, torch.Tensor] = {}
        self._riding = _riding(self._buffers)
        #: Numbers of those that are compared: small ones, and large ones that have changed once.
        self._compared = {number for number, one in enumerate(self._buffers) if one.numel() <= _SMALL}
        #: Whether all of them are, as in the first step.
        self._compares_all = True
        #: Elements of what `keep` returns.
        self.width = len(self._buffers) + sum(_bytes_of(self._buffers[number]) for number in self._riding)

    def begin(self) -> None:
        """A step begins with what is there now."""
        for number in self._changed():
            now = self._now(number)
            self._buffers[number] = now
            self._before[number].copy_(now.detach())
            self._versions[number] = now._version
        self._kept = {}

    def restore(self) -> None:
        """Put everything back to where the step began."""
        for number in self._changed():
            self._set(number, self._before[number])
            self._versions[number] = self._buffers[number]._version

    def held(self) -> dict[str, torch.Tensor]:
        """Those that are saved, by name."""
        return {
            name: self._now(number)
            for number, (name, (module, own)) in enumerate(zip(self._names, self._places, strict=True))
            if own not in module._non_persistent_buffers_set
        }

    def keep(self) -> torch.Tensor:
        """Remember what shard 0 made of them.

        Returns float32 of shape (width,): 1 for each buffer that it changed and 0 for the others, then the bytes of
        those that travel.
        """
        self._kept = {number: self._now(number).detach().clone() for number in self._changed()}
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
        self._compared.update(changed)
        self._compares_all = False

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
        values = [self._now(number).detach().clone() for number in range(len(self._buffers))]
        share(part, values)
        if part.rank != 0:
            for number, value in enumerate(values):
                self._set(number, value)

    def _now(self, number: int) -> torch.Tensor:
        """What stands in its place now."""
        module, name = self._places[number]
        found, known = module._buffers.get(name), self._buffers[number]
        if found is None or (found.shape, found.dtype, found.device) != (
            known.shape,
            known.dtype,
            known.device,
        ):
            return known
        return found

    def _changed(self) -> list[int]:
        """Buffers that are not as they were when the step began."""
        return sorted({number for own in self._modules if self._has_changed(own) for number in own})

    def _has_changed(self, own: Sequence[int]) -> bool:
        # torch counts most changes, and looking at a counter costs nothing; but it does not count what `batch_norm`
        # does to running statistics, which shows in their module's counter of batches or only in the values, nor what
        # is done to `buffer.data`.
        now = {number: self._now(number) for number in own}
        return any(
            one is not self._buffers[number] or one._version != self._versions[number]
            for number, one in now.items()
        ) or any(
            (self._compares_all or number in self._compared) and not torch.equal(one, self._before[number])
            for number, one in now.items()
        )

    def _set(self, number: int, value: torch.Tensor) -> None:
        module, name = self._places[number]
        target = self._buffers[number]
        if self._now(number) is not target:
            module._buffers[name] = target
        with torch.no_grad():
            target.copy_(value)


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
        blocks = packs.setdefault((tensor.dtype, tensor.device), [[]])
        if sum(one.numel() for one in blocks[-1]) >= limit:
            blocks.append([])
        blocks[-1].append(tensor)
    under_way = []
    for block in (block for blocks in packs.values() for block in blocks):
        flat = torch.cat([one.detach().reshape(-1) for one in block])
        under_way.append((group.broadcast(flat, 0), flat, block))
    for ticket, flat, block in under_way:
        group.wait_in_stream(ticket)
        if group.rank != 0:
            for part, one in zip(flat.split([one.numel() for one in block]), block, strict=True):
                with torch.no_grad():
                    one.copy_(part.view(one.shape))
    if under_way:
        group.synchronize()
