"""The process groups of a sharded training: how a worker leaves them, and joins those of the next generation."""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Callable
from typing import Any

import torch

from remora.script.link import Link, Rendezvous
from remora.torch.group import Group, PeerLost, form
from remora.torch.hardware import refuse_amd
from remora.torch.members import (
    joined_message,
    number_from_environment,
    parked_message,
    place_from_environment,
)
from remora.torch.sharded.mesh import close_mesh
from remora.torch.state_messages import bytes_of


class StateLost(RuntimeError):
    """No worker of a group holds all that is needed to go on from memory."""


class ProcessGroups:
    """The present group, with a second one in host memory for snapshots.

    `resume` is called in every new group and brings this worker to the step that it returns; it raises PeerLost, and
    StateLost when only the storage can help.  `held_step` is the newest step that this worker holds, -1 for none.
    """

    def __init__(
        self, link: Link | None, device: torch.device, resume: Callable[[], int], held_step: Callable[[], int]
    ) -> None:
        refuse_amd(device)
        self._link = link
        self._device = device
        self._resume = resume
        self._held_step = held_step
        self._group: Group | None = None
        self._host_group: Group | None = None
        self.generation = number_from_environment("REMORA_GENERATION", 0)
        #: This process was started to join workers that already train.
        self.is_joiner = link is not None and os.environ.get("REMORA_JOIN") == "1"
        if link is not None:
            link.on_leave = self._on_leave
            link.send({"type": "elastic"})

    @property
    def group(self) -> Group:
        """The group whose tensors lie where the model is."""
        assert self._group is not None
        return self._group

    @property
    def host_group(self) -> Group:
        """The same workers, for tensors in host memory."""
        assert self._host_group is not None
        return self._host_group

    def begin(self) -> None:
        """Form the first group, or wait for one as a joiner.

        Raises PeerLost when there is no supervisor that can form another group.
        """
        if self.is_joiner:
            self.change("joining")
            return
        try:
            self._form_group(place_from_environment(self.generation))
        except PeerLost as lost:
            self.change(str(lost))

    def change(self, why: str) -> None:
        """Leave the group, and come to a common state in the next one.

        Raises PeerLost when there is no supervisor that can form another group.
        """
        while True:
            seen_at = None if self._group is None else self._group.broken_at
            self._leave()
            if self._link is None:
                raise PeerLost(
                    f"{why}; without Remora the worker group has to be started again, and resumes from a checkpoint"
                )
            step = self._held_step()
            self._link.send(parked_message(self.generation, step, why, seen_at))
            place = self._link.await_regroup(self.generation)
            self.generation = place.generation
            try:
                self._form_group(place)
            except (PeerLost, StateLost) as lost:
                why = str(lost)
            else:
                return

    def check(self) -> None:
        """Raise PeerLost when the group is to be left."""
        if self._link is not None and self._link.must_leave(self.generation):
            raise PeerLost("the supervisor said that the group is to be left")
        self.group.check()

    def synchronize(self) -> None:
        """Raise PeerLost when the group is to be left, also because of what a GPU still had to do: that is waited for.

        A step counts after it: what the script had the layers communicate since its gradients were there is whole.
        """
        self.check()
        self.group.synchronize()

    def _form_group(self, place: Rendezvous) -> None:
        def check() -> None:
            if self._link is not None and self._link.must_leave(place.generation):
                raise PeerLost("the supervisor said that the group is to be left")

        self._group = form(place, check=check, on_cuda=self._device.type == "cuda", device=self._device)
        formed_at = time.monotonic()
        check()
        self._host_group = self._group.subgroup(range(place.world_size), "snapshots", on_cuda=False)
        step = self._resume()
        if self._link is not None:
            self._link.set_boundary(step)
            self._link.send(joined_message(place.generation, step, self._group.formation, formed_at))

    def _leave(self) -> None:
        close_mesh()
        for group in (self._host_group, self._group):
            if group is not None:
                group.abandon()
        self._host_group = self._group = None

    def _on_leave(self, generation: int) -> None:
        group = self._group
        if group is not None and group.rendezvous.generation <= generation:
            group.break_off("the supervisor said that the group is to be left")


def gather_objects(host_group: Group, value: Any) -> list[Any]:
    """The values of all ranks; raises PeerLost.  What comes from a worker of the same job is code of the same user."""
    own = torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8)
    lengths = torch.empty(host_group.world_size, dtype=torch.int64)
    host_group.wait(host_group.gather(lengths, torch.tensor([len(own)])))
    size = int(lengths.max())
    rows = torch.empty(size * host_group.world_size, dtype=torch.uint8)
    host_group.wait(host_group.gather(rows, torch.nn.functional.pad(own, (0, size - len(own)))))
    pairs = zip(rows.view(host_group.world_size, size), lengths.tolist(), strict=True)
    return [pickle.loads(bytes_of(row[:length])) for row, length in pairs]  # noqa: S301


def broadcast_object(host_group: Group, root: int, value: Any) -> Any:
    """The value of rank `root`; raises PeerLost."""
    is_root = host_group.rank == root
    own = torch.frombuffer(bytearray(pickle.dumps(value if is_root else None)), dtype=torch.uint8)
    length = torch.tensor([len(own)])
    host_group.wait(host_group.broadcast(length, root))
    text = own if is_root else torch.empty(int(length.item()), dtype=torch.uint8)
    host_group.wait(host_group.broadcast(text, root))
    return value if is_root else pickle.loads(bytes_of(text))  # noqa: S301
