"""Which workers train together, and how their group changes while they do."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

import torch

from remora.script.channel import Message
from remora.script.link import Link, Rendezvous
from remora.torch.buffers import Buffers
from remora.torch.group import Formation, Group, PeerLost, form
from remora.torch.hardware import decode, difference, encode, hardware
from remora.torch.order import shards_of
from remora.torch.reduction import Reduction
from remora.torch.state import receive, send
from remora.torch.state_sync import SyncPlan, WorkersDiffer, WorkerState, evaluators, plan_sync


class Membership:
    """This worker's membership in its group, and how it joins the next one.

    Without a supervisor that can form another group, a lost peer ends the script with PeerLost.
    """

    def __init__(
        self, link: Link | None, shards: int, reduction: Reduction, buffers: Buffers, device: torch.device
    ) -> None:
        self._link = link
        self._shards = shards
        self._reduction = reduction
        self._buffers = buffers
        self._device = device
        self._group: Group | None = None
        #: Subgroups that have done what they were formed for.
        self._subgroups: list[Group] = []
        #: Ranks that evaluate in the step under way; None: all do.
        self.evaluators: tuple[int, ...] | None = None
        #: How far each rank was in that when the group was formed.
        self.evaluations: list[int] = []
        self.generation = number_from_environment("REMORA_GENERATION", 0)
        #: This process was started to join workers that already train.
        self.is_joiner = link is not None and os.environ.get("REMORA_JOIN") == "1"
        if link is not None:
            link.on_leave = self._on_leave
            link.send({"type": "elastic"})

    @property
    def group(self) -> Group:
        """The present group."""
        assert self._group is not None
        return self._group

    def begin(self, state: WorkerState, capture: Callable[[], Any], restore: Callable[[Any], None]) -> None:
        """Form the first group, or wait for one as a joiner; afterwards all workers hold the same state."""
        if self.is_joiner:
            self.change(state, "joining", capture, restore)
            return
        try:
            self._form_group(place_from_environment(self.generation), state, capture, restore)
        except PeerLost as lost:
            self.change(state, str(lost), capture, restore)

    def subgroup(self, members: Sequence[int], name: str) -> Group:
        """A group of some ranks until this group is left; all of them call it.  Raises PeerLost."""
        with self._subgroup(self.group, members, name) as part:
            return part

    def leave(self) -> None:
        """Leave the group; before this returns the device may wait for a peer that is lost, and must not be used."""
        if self._group is not None:
            self._group.abandon()

    def change(
        self, state: WorkerState, why: str, capture: Callable[[], Any], restore: Callable[[Any], None]
    ) -> bool:
        """Leave the group, wait for the next one, and come to the same state as all others in it.

        Returns True when this worker got the result of the step that it had under way.
        Raises PeerLost when there is no supervisor that can form another group.
        """
        seen_at = None if self._group is None else self._group.broken_at
        self.leave()
        while self._subgroups:
            self._subgroups.pop().close()
        if self._link is None:
            raise PeerLost(
                f"{why}; without Remora the worker group has to be started again, and resumes from a checkpoint"
            )
        while True:
            parked = parked_message(self.generation, state.step, why, seen_at)
            self._link.send(parked)
            place = self._link.await_regroup(self.generation)
            self.generation = place.generation
            try:
                return self._form_group(place, state, capture, restore)
            except PeerLost as lost:
                why = str(lost)
                seen_at = None
                if self._group is not None:
                    self._group.abandon()

    def _form_group(
        self,
        place: Rendezvous,
        state: WorkerState,
        capture: Callable[[], Any],
        restore: Callable[[Any], None],
    ) -> bool:
        shards_of(place.rank, place.world_size, self._shards)  # raises when there are too many workers
        self._group = None
        group = form(
            place,
            check=lambda: self._check(place.generation),
            on_cuda=self._device.type == "cuda",
            device=self._device,
        )
        self._group, formed_at = group, time.monotonic()
        self._check(place.generation)
        states = self._compare(group, state)
        if len({one.fingerprint for one in states}) == 1 < len({one.hardware for one in states}):
            self._refuse_hardware(group)
        plan = plan_sync(states)
        inside = evaluators(states, plan.behind)
        self.evaluators = inside if inside is not None and group.rank in inside else None
        self.evaluations = [one.evaluation for one in states]
        if plan.behind and group.rank in (plan.root, *plan.behind):
            with self._subgroup(group, (plan.root, *plan.behind), "behind") as part:
                self._reduction.share(part)
                self._buffers.share(part)
        if plan.joining and group.rank in (plan.root, *plan.joining):
            self._send_state(group, plan, capture, restore)
        # From here on no worker overwrites what another one may still need.
        self._reduction.use(group)
        self._reduction.confirm()
        if self._link is not None:
            self._link.set_boundary(state.step if group.rank in plan.behind else plan.step)
            self._link.send(joined_message(place.generation, plan.step, group.formation, formed_at))
        return group.rank in plan.behind

    def _send_state(
        self, group: Group, plan: SyncPlan, capture: Callable[[], Any], restore: Callable[[Any], None]
    ) -> None:
        with self._subgroup(group, (plan.root, *plan.joining), "joining") as part:
            if group.rank == plan.root:
                send(part, capture(), self._device)
            else:
                restore(receive(part, self._device))

    @contextmanager
    def _subgroup(self, group: Group, members: Sequence[int], name: str) -> Iterator[Group]:
        part = group.subgroup(members, name)
        try:
            yield part
        except BaseException:
            part.abandon()
            raise
        # Others may still read what this worker wrote: its end of the connections stays open for now.
        self._subgroups.append(part)

    def _compare(self, group: Group, state: WorkerState) -> list[WorkerState]:
        numbers = [state.step, int(state.is_fresh), state.fingerprint, state.hardware]
        # As many numbers as every release sends, so that a worker of another one is refused by its fingerprint.
        numbers.append(int(state.is_rolled_back) + 2 * state.evaluation)
        own = torch.tensor(numbers, device=self._device)
        all_ = torch.empty(len(numbers) * group.world_size, dtype=own.dtype, device=self._device)
        group.wait(group.gather(all_, own))
        return [
            WorkerState(step, bool(fresh), fingerprint, hardware, bool(packed % 2), packed // 2)
            for step, fresh, fingerprint, hardware, packed in all_.view(group.world_size, -1).tolist()
        ]

    def check(self) -> None:
        """Raise PeerLost where the present group is to be left."""
        self._check(self.generation)

    def _refuse_hardware(self, group: Group) -> NoReturn:
        own = encode(hardware(self._device)).to(self._device)
        all_ = torch.empty(own.numel() * group.world_size, dtype=own.dtype, device=self._device)
        group.wait(group.gather(all_, own))
        workers = [decode(one) for one in all_.view(group.world_size, -1).tolist()]
        raise WorkersDiffer(
            f"exactness is bitwise, and {difference(workers)}: use machines of one kind (placement.pools of the job),"
            " or sample-exact"
        )

    def _check(self, generation: int) -> None:
        if self._link is not None and self._link.must_leave(generation):
            raise PeerLost("the supervisor said that the group is to be left")

    def _on_leave(self, generation: int) -> None:
        group = self._group
        if group is not None and group.rendezvous.generation <= generation:
            group.break_off("the supervisor said that the group is to be left")


def parked_message(generation: int, step: int, why: str, seen_at: float | None) -> Message:
    """What a worker says when it is parked; `seen_at`: when it saw that its group is broken, by `time.monotonic`."""
    message: Message = {"type": "parted", "generation": generation, "step": step, "why": why}
    return message if seen_at is None else {**message, "noticed_s": round(time.monotonic() - seen_at, 6)}


def joined_message(generation: int, step: int, formation: Formation, formed_at: float) -> Message:
    """What a worker says when it works in a new group, which was formed at that time of `time.monotonic`."""
    return {
        "type": "joined",
        "generation": generation,
        "step": step,
        "connect_s": round(formation.connect_s, 6),
        "form_s": round(formation.form_s, 6),
        "move_s": round(time.monotonic() - formed_at, 6),
    }


def place_from_environment(generation: int) -> Rendezvous:
    """The rendezvous of the first group by torchrun's environment variables; a group of one without them."""
    world_size = number_from_environment("WORLD_SIZE", 1) if "MASTER_ADDR" in os.environ else 1
    return Rendezvous(
        generation=generation,
        rank=number_from_environment("RANK", 0) if world_size > 1 else 0,
        world_size=world_size,
        local_rank=number_from_environment("LOCAL_RANK", 0),
        local_world_size=number_from_environment("LOCAL_WORLD_SIZE", 1),
        node_rank=number_from_environment("NODE_RANK", 0),
        master_addr=os.environ.get("MASTER_ADDR", "127.0.0.1"),
        master_port=number_from_environment("MASTER_PORT", 0),
    )


def number_from_environment(name: str, default: int) -> int:
    """A whole number from the environment; `default` where there is none."""
    try:
        return int(os.environ[name])
    except (KeyError, ValueError):
        return default
