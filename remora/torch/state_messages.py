"""Tensors travel to other workers in messages of bounded size, one of which is under way at a time.

A worker that joins must not make the one that sends it the state hold that state twice.  So large tensors travel in
parts, small ones together, and beside the state each side has two buffers of one message at most: the next message is
packed, and the last one unpacked, while one travels.  What comes in is copied out of such a buffer only when it is
whole, because a collective that was left may still write into its tensor.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence

import torch

from remora.torch.group import Group
from remora.torch.ticket import Ticket

#: Bytes of one message.
MESSAGE_BYTES = 8 << 20
#: Bytes that every tensor's offset in a message is a multiple of: the width of the widest element.
_ALIGNMENT = 16

#: Tensors, or parts of tensors, with their offsets in bytes.
_Message = list[tuple[int, torch.Tensor]]


def share(
    group: Group,
    tensors: Sequence[torch.Tensor],
    *,
    device: torch.device | None = None,
    limit: int = MESSAGE_BYTES,
) -> None:
    """Overwrite `tensors` with those of rank 0 of the group, whose tensors are only read.

    Messages of at most `limit` bytes are made on `device`, by default the one of the tensors.  Raises PeerLost, and
    then some of the tensors may be overwritten.
    """
    if not tensors or group.world_size == 1:
        return
    place = device or next((one.device for one in tensors if one.device.type != "cpu"), tensors[0].device)
    buffers = _Buffers(place, min(limit, sum(map(_aligned_bytes, tensors))))
    under_way: tuple[Ticket | None, torch.Tensor, _Message] | None = None
    with torch.no_grad():
        for message in messages(tensors, limit):
            travels = _packed(message, buffers) if group.rank == 0 else buffers.take(_size_of(message))
            if under_way is not None:
                group.wait(under_way[0])
            ticket = group.broadcast(travels, 0)
            if under_way is not None and group.rank != 0:
                _unpack(*under_way[1:])
            under_way = ticket, travels, message
        if under_way is not None:
            group.wait(under_way[0])
            if group.rank != 0:
                _unpack(*under_way[1:])
    group.forget_done()


def messages(tensors: Sequence[torch.Tensor], limit: int) -> Iterator[_Message]:
    """The messages in which tensors travel; they depend on nothing but their shapes and types."""
    message: _Message = []
    end = 0
    for part in (part for one in tensors for part in parts_of(one.detach(), limit)):
        if message and end + _bytes_in(part) > limit:
            yield message
            message, end = [], 0
        message.append((end, part))
        end += _aligned_bytes(part)
    if message:
        yield message


def parts_of(tensor: torch.Tensor, limit: int) -> Iterator[torch.Tensor]:
    """A tensor in views of at most `limit` bytes, which depend on its shape and type alone; none of an empty one."""
    size = _bytes_in(tensor)
    if size == 0:
        return
    if size <= limit or tensor.dim() == 0:
        yield tensor
        return
    rows = limit // (size // len(tensor))
    if rows == 0:
        for row in tensor:
            yield from parts_of(row, limit)
        return
    for first in range(0, len(tensor), rows):
        yield tensor[first : first + rows]


def bytes_of(tensor: torch.Tensor) -> bytes:
    """What a tensor of bytes holds."""
    held = tensor.cpu().contiguous()
    return ctypes.string_at(held.data_ptr(), held.numel())


class _Buffers:
    """Two buffers of `length` bytes, which are used alternately; each is made when it is first needed."""

    def __init__(self, device: torch.device, length: int) -> None:
        self.device = device
        self._length = length
        self._made: list[torch.Tensor] = []
        self._taken = 0

    def take(self, size: int) -> torch.Tensor:
        """The first bytes of the buffer that was not taken last."""
        place = self._taken % 2
        self._taken += 1
        if len(self._made) == place:
            self._made.append(torch.empty(self._length, dtype=torch.uint8, device=self.device))
        return self._made[place][:size]


def _size_of(message: _Message) -> int:
    offset, last = message[-1]
    return offset + _bytes_in(last)


def _bytes_in(tensor: torch.Tensor) -> int:
    return int(tensor.numel() * tensor.element_size())


def _aligned_bytes(tensor: torch.Tensor) -> int:
    """Bytes that it takes in a message."""
    return -(-_bytes_in(tensor) // _ALIGNMENT) * _ALIGNMENT


def _packed(message: _Message, buffers: _Buffers) -> torch.Tensor:
    """The message as bytes: where it is one tensor that lies there as it is sent, nothing is copied."""
    first = message[0][1]
    lies_so = first.is_contiguous() and not (first.is_conj() or first.is_neg())
    if len(message) == 1 and lies_so and first.device == buffers.device:
        return first.reshape(-1).view(torch.uint8)
    packed = buffers.take(_size_of(message))
    for offset, part in message:
        _within(packed, offset, part).copy_(part)
    return packed


def _unpack(packed: torch.Tensor, message: _Message) -> None:
    for offset, part in message:
        part.copy_(_within(packed, offset, part))


def _within(packed: torch.Tensor, offset: int, part: torch.Tensor) -> torch.Tensor:
    """The place of a part in its message."""
    return packed[offset : offset + _bytes_in(part)].view(part.dtype).view(part.shape)
