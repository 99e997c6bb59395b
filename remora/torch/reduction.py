"""Gradients of a step, averaged over all its samples, in one of two ways.

`SampleExact` adds up what a worker has and leaves the rest to an all-reduce.  `Bitwise` does no arithmetic inside a
collective: it adds along a tree over the shards (`order.py`), so that the bits depend on the shards alone.  Both start
the collectives of a bucket while the backward pass of the last micro-batch still runs.

When a peer is lost between two steps, a worker that is ahead can send the result to those that are behind.  For that
the result of a step stays untouched until all workers have it, which needs no message: steps alternate between two sets
of tensors, and a collective of the next step that ended here was begun by all workers, after they had this result.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch

from remora.torch.buckets import Bucket, Flats, lay_out
from remora.torch.group import Group, PeerLost
from remora.torch.order import Node, cover, parents, shards_of, total
from remora.torch.ticket import Ticket
from remora.torch.verification import Watched, digest_of_gradients


class Reduction(ABC):
    """What both ways share; a step is: `begin`, `note` and `leaf` for each shard, `arm` before the last, `finish`."""

    def __init__(self, parameters: Sequence[torch.Tensor], shards: int, notes: int) -> None:
        self._shards = shards
        self._notes = notes
        #: Results of the last reduced step.
        self._flats: Flats | None = None
        #: What the step under way is reduced in.
        self._next: Flats | None = None
        self._group: Group | None = None
        self._confirmation: tuple[Ticket | None, torch.Tensor] | None = None
        self._is_armed = False
        self._failure: PeerLost | None = None
        self._launched = 0
        self._missing: list[int] = []
        #: Parameters with a hook on their gradients, by id.
        self._hooked: dict[int, torch.Tensor] = {}
        self._parameters: list[torch.Tensor] = []
        self.train(parameters)

    def train(self, parameters: Sequence[torch.Tensor]) -> None:
        """From the next step on these have gradients, and no others; all workers call it between the same two steps.

        The result of the last step stays as it is, for workers that have not got it yet.
        """
        for one in self._parameters:
            one.grad = None
        self._parameters = list(parameters)
        self._buckets = lay_out(self._parameters, self._notes + len(self._parameters))
        self._tail = torch.zeros(self._notes, device=self._buckets[-1].device)
        self._home = {
            id(parameter): number
            for number, bucket in enumerate(self._buckets)
            for parameter in bucket.parameters
        }
        for one in self._parameters:
            if id(one) not in self._hooked:
                self._hooked[id(one)] = one
                one.register_post_accumulate_grad_hook(self._on_gradient)

    @property
    def group(self) -> Group:
        """The group that the next step is reduced in."""
        assert self._group is not None
        return self._group

    def use(self, group: Group) -> None:
        """Reduce in this group from now on."""
        self._group = group
        self._confirmation = None

    def begin(self) -> None:
        """Start a step from zero gradients."""
        for parameter in self._parameters:
            parameter.grad = None
        self._tail.zero_()
        self._is_armed = False
        self._failure = None
        self._launched = 0
        self._missing = [len(bucket.parameters) for bucket in self._buckets]

    def note(self, place: int, values: torch.Tensor) -> None:
        """Add numbers of a micro-batch to those that travel with the gradients."""
        self._tail[place : place + len(values)] += values

    def arm(self) -> None:
        """The next backward pass is this worker's last one of the step."""
        self._is_armed = True

    def leaf(self, shard: int) -> None:  # noqa: B027 - nothing by default
        """The gradients of a shard are complete; not called for the last one."""

    def finish(self) -> torch.Tensor:
        """Wait for the sums, put them into the gradients, and return the notes' sums; raises PeerLost.

        The sums are to be read before the next step begins.
        """
        self._is_armed = False
        if self._failure is not None:
            raise self._failure
        while self._launched < len(self._buckets):
            self._launch_next()
        self._complete()
        # The one wait of a step on the host: no optimizer gets gradients of a group that broke meanwhile.
        self.group.synchronize()
        self._launched = 0
        self._flats, self._next = self._next, self._flats
        return self.spread()

    def spread(self) -> torch.Tensor:
        """Put the result of the last reduced step into the gradients; returns the notes' sums."""
        assert self._flats is not None
        tail = self._flats.tail
        # Buckets have the parameters in the reverse order.
        flags = iter(tail[self._notes :].tolist()[::-1])
        for number, bucket in enumerate(self._flats.buckets):
            self._flats.spread(number, [next(flags) > 0 for _ in bucket.parameters])
        return tail[: self._notes]

    def confirm(self) -> None:
        """Start to confirm to the others that this worker has the result of its last step."""
        flag = torch.ones(1, device=self._tail.device)
        self._confirmation = self.group.sum(flag), flag

    def await_confirmation(self) -> None:
        """Wait until all have confirmed, if this worker did; raises PeerLost."""
        self.group.check()
        if self._confirmation is not None:
            self.group.wait(self._confirmation[0])
            self._confirmation = None

    def drop(self) -> None:
        """Forget the step under way.

        A collective that was left may still write into its tensors, so they are not used again.
        """
        self._is_armed = False
        if self._launched:
            self._next = None

    def share(self, part: Group) -> None:
        """Give the result of the last reduced step from rank 0 of `part` to the others in it; raises PeerLost."""
        if part.rank != 0 or self._flats is None:
            self._flats = Flats(self._buckets, self._shards)
        tickets = [part.broadcast(flat, 0) for flat in self._flats.tensors]
        for ticket in tickets:
            part.wait_in_stream(ticket)
        part.synchronize()

    def check_hooks(self) -> None:
        """Raise RuntimeError where another hook looks at, or changes, what this worker alone has summed."""
        hooks = (
            hook for one in self._parameters for hook in (one._post_accumulate_grad_hooks or {}).values()
        )
        if not all(isinstance(getattr(hook, "__self__", None), Reduction) for hook in hooks):
            raise RuntimeError(
                "a hook of register_post_accumulate_grad_hook sees what one worker alone has summed: use register_hook,"
                " which sees the gradient of each micro-batch, or change gradients after step.backward"
            )

    def _on_gradient(self, parameter: torch.Tensor) -> None:
        if parameter.grad is not None and parameter.grad.is_sparse:
            raise RuntimeError(
                f"a parameter of shape {tuple(parameter.shape)} has sparse gradients, which Loop does not add up over"
                " workers: build its layer with sparse=False"
            )
        if not self._is_armed or self._failure is not None:
            return
        number = self._home.get(id(parameter))
        if number is None:
            # It is frozen since the last step, and another loop may train it.
            return
        self._missing[number] -= 1
        if self._missing[number] < 0:
            raise RuntimeError(
                "a parameter got its gradient twice in one backward pass: "
                "checkpoint activations with use_reentrant=False"
            )
        try:
            while self._launched < len(self._buckets) and self._missing[self._launched] == 0:
                self._launch_next()
        except PeerLost as lost:
            # The backward pass shall end as on all workers; `finish` raises it.
            self._failure = lost

    def _launch_next(self) -> None:
        if self._launched == 0:
            self.await_confirmation()
            if self._next is None or self._next.buckets is not self._buckets:
                self._next = Flats(self._buckets, self._shards)
        number = self._launched
        self._launched += 1
        assert self._next is not None
        self._fill(number, self._next)
        self._launch(number, self._buckets[number], self._next)

    def _fill(self, number: int, flats: Flats) -> None:
        """Gradients and, where the bucket has it, the tail."""
        flats.fill(number)
        if number == len(self._buckets) - 1:
            tail = flats.tail
            tail[: self._notes] = self._tail
            flags = [float(parameter.grad is not None) for parameter in self._parameters]
            if all(flags):
                tail[self._notes :] = 1.0
            else:
                tail[self._notes :] = torch.tensor(flags)

    @abstractmethod
    def _launch(self, number: int, bucket: Bucket, flats: Flats) -> None:
        """Start to reduce a bucket, whose own part is in `flats`."""

    @abstractmethod
    def _complete(self) -> None:
        """Let `flats` have the sums; on a GPU when it comes there."""


class SampleExact(Reduction):
    """Sums in the order that the all-reduce takes: equal for all numbers of workers up to rounding."""

    def __init__(self, parameters: Sequence[torch.Tensor], shards: int, notes: int) -> None:
        super().__init__(parameters, shards, notes)
        self._tickets: list[Ticket | None] = []

    def begin(self) -> None:
        """Start a step from zero gradients."""
        super().begin()
        self._tickets = []

    def finish(self) -> torch.Tensor:
        """Wait for the sums, put them into the gradients, and return the notes' sums; raises PeerLost."""
        if self.group.world_size > 1:
            return super().finish()
        self.group.check()
        return self._tail

    def arm(self) -> None:
        """The next backward pass is this worker's last one of the step."""
        self._is_armed = self.group.world_size > 1

    def _launch(self, number: int, bucket: Bucket, flats: Flats) -> None:
        self._tickets.append(self.group.sum(flats.tensors[number][: bucket.size]))

    def _complete(self) -> None:
        for ticket in self._tickets:
            self.group.wait_in_stream(ticket)


class Bitwise(Reduction):
    """Sums along the tree over the shards: equal bit for bit for all numbers of workers."""

    def __init__(self, parameters: Sequence[torch.Tensor], shards: int, notes: int) -> None:
        super().__init__(parameters, shards, notes)
        #: Sums of subtrees, from left to right, each with a flat tensor per bucket.
        self._stack: list[tuple[Node, Flats]] = []
        self._spare: list[Flats] = []
        #: What came for each bucket, the subtrees that it sums, and where the whole sum goes.
        self._exchanges: list[tuple[Ticket | None, torch.Tensor, Any, torch.Tensor]] = []
        #: The shard whose gradients are complete; None: the last one of this worker.
        self._filling: int | None = None
        #: What is looked at of the step under way.
        self.watched = Watched()

    def train(self, parameters: Sequence[torch.Tensor]) -> None:
        """From the next step on these have gradients, and no others."""
        super().train(parameters)
        self._stack, self._spare = [], []

    def begin(self) -> None:
        """Start a step from zero gradients."""
        super().begin()
        self._spare.extend(flats for _, flats in self._stack)
        self._stack = []
        self._exchanges = []
        self._filling = None

    def drop(self) -> None:
        """Forget the step under way."""
        super().drop()
        self._stack, self._spare = [], []

    def leaf(self, shard: int) -> None:
        """Take a shard's gradients away, and add those that are neighbours in the tree."""
        flats = self._spare.pop() if self._spare else Flats(self._buckets, self._shards)
        self._filling = shard
        for number in range(len(self._buckets)):
            self._fill(number, flats)
        self._filling = None
        for parameter in self._parameters:
            parameter.grad = None
        self._tail.zero_()
        self._stack.append(((shard, shard + 1), flats))
        while merged := _merged([node for node, _ in self._stack], self._shards):
            (_, left), (_, right) = self._stack[-2:]
            torch._foreach_add_(left.tensors, right.tensors)
            self._spare.append(right)
            self._stack[-2:] = [(merged, left)]

    def digest_of_gradients(self) -> int:
        """A number that follows from the bits of the gradients that the parameters have now."""
        flats = self._spare.pop() if self._spare else Flats(self._buckets, self._shards)
        found = digest_of_gradients(flats)
        self._spare.append(flats)
        return found

    def _fill(self, number: int, flats: Flats) -> None:
        """Gradients and, where the bucket has it, the tail."""
        super()._fill(number, flats)
        last = shards_of(self.group.rank, self.group.world_size, self._shards).stop - 1
        self.watched.see(last if self._filling is None else self._filling, number, flats)

    def _launch(self, number: int, bucket: Bucket, flats: Flats) -> None:
        group = self.group
        own = shards_of(group.rank, group.world_size, self._shards)
        last = flats.tensors[number]
        leaves = {node: sums.tensors[number] for node, sums in self._stack}
        leaves[own.stop - 1, own.stop] = last
        sums = [
            total(node, leaves, lambda left, right: left.add_(right)) for node in cover(own, self._shards)
        ]
        if group.world_size == 1:
            last.copy_(sums[0])
            self._exchanges.append((None, last, None, last))
            return
        size = -(-bucket.size // group.world_size)
        covers = [
            cover(shards_of(rank, group.world_size, self._shards), self._shards)
            for rank in range(group.world_size)
        ]
        padded = [one[: size * group.world_size] for one in sums]
        # Chunk j of every sum lies together, because it goes to rank j.
        sent = padded[0]
        if len(padded) > 1:
            sent = torch.stack([one.view(-1, size) for one in padded], dim=1).view(-1)
        received = torch.empty(sum(map(len, covers)) * size, dtype=bucket.dtype, device=bucket.device)
        ticket = group.exchange(
            received,
            sent,
            counts_in=[len(nodes) * size for nodes in covers],
            counts_out=[len(sums) * size] * group.world_size,
        )
        nodes = [node for nodes in covers for node in nodes]
        self._exchanges.append((ticket, received, nodes, last))

    def _complete(self) -> None:
        group = self.group
        gathers = []
        for ticket, received, nodes, flat in self._exchanges:
            group.wait_in_stream(ticket)
            if nodes is None:
                continue
            known = dict(zip(nodes, received.view(len(nodes), -1), strict=True))
            chunk = total((0, self._shards), known, lambda left, right: left.add_(right))
            gathers.append((group.gather(flat[: chunk.numel() * group.world_size], chunk), chunk))
        for ticket, _ in gathers:
            group.wait_in_stream(ticket)


def _merged(nodes: Sequence[Node], shards: int) -> Node | None:
    """The parent of the last two subtrees, when they are its halves."""
    family = parents(shards)
    for left, right in pairwise(nodes[-2:]):
        if family.get(left) is not None and family.get(left) == family.get(right):
            return family[left]
    return None
