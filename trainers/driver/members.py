"""The workers of an attempt: which are in its worker group, join it, leave it and have left it.

A worker has a *slot*, its name for its whole life, and a local rank; its rank is assigned again with every worker
group.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from collections.abc import Iterable, Set
from dataclasses import dataclass, field

from remora.script import channel
from trainers.driver.calls import Calls
from trainers.driver.regrouping import RankAssignment, WorkerLocation
from trainers.plan import AttemptPlan
from trainers.ray_train import Member
from trainers.worker_identity import WorkerIdentity


@dataclass
class Joiner:
    """A worker on its way into the worker group."""

    #: When it was started, by a monotonic clock.
    since: float
    #: Step of its state once it is parked (-1: it has none); None: its script still loads.
    step: int | None = None
    #: When its command was started; None: it was not yet.
    started_at: float | None = None
    #: The command was forked from a process that had loaded the libraries.
    is_warm: bool = False


class GroupMembers:
    """Workers by slot; touched on the driver's event loop only."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        #: Every worker that Ray Train runs for this attempt.
        self.by_slot: dict[int, Member] = {}
        #: Rank of each slot in the present worker group.
        self.ranks: dict[int, int] = {}
        #: Slots whose script can change its worker group in place.
        self.elastic: set[int] = set()
        #: Slots on their way into the worker group.
        self.joining: dict[int, Joiner] = {}
        #: Slots whose node drains.
        self.draining: set[int] = set()
        #: Slots that are lost, or were asked to leave.
        self.departed: set[int] = set()
        self._present: set[int] = set()
        #: Slots whose supervisor has reported how its command ended, or why there was none.
        self.ended: set[int] = set()

    # --- membership

    def open(self, members: Iterable[Member]) -> None:
        """A new worker group of new workers; nothing of the one before counts any more."""
        self.by_slot = {member.slot: member for member in members}
        self.ranks = {slot: member.rank for slot, member in self.by_slot.items()}
        for one in (self.elastic, self.joining, self.draining, self.departed, self.ended):
            one.clear()
        self._present = set(self.ranks)

    @property
    def present(self) -> Set[int]:
        """Slots of the worker group that have not left; stored, because every message of a worker needs it."""
        return self._present

    @property
    def unranked(self) -> set[int]:
        """Slots outside the worker group: they have left it, or have not joined it yet."""
        return self.by_slot.keys() - self.ranks.keys()

    @property
    def is_elastic(self) -> bool:
        """True when every script of the worker group can change it in place."""
        return bool(self._present) and self._present <= self.elastic

    def ranks_of(self, slots: Iterable[int]) -> set[int]:
        """Ranks of those of the slots that are in the worker group."""
        return {self.ranks[slot] for slot in slots if slot in self.ranks}

    def slots_of(self, ranks: Iterable[int]) -> set[int]:
        """Slots of the worker group that have these ranks."""
        wanted = set(ranks)
        return {slot for slot, rank in self.ranks.items() if rank in wanted}

    @property
    def on_demand(self) -> set[int]:
        """Slots on on-demand nodes, which the cloud does not take back."""
        return {slot for slot, member in self.by_slot.items() if member.is_on_demand}

    def in_order(self) -> list[int]:
        """Slots that are present, in the order of their ranks."""
        return sorted(self.present, key=lambda slot: self.ranks[slot])

    @property
    def workers(self) -> dict[str, int]:
        """How many workers of the worker group run on each node, by the address under which Ray knows the node."""
        return dict(Counter(self.addresses))

    @property
    def addresses(self) -> list[str]:
        """The address of each rank's node, in the order of their ranks."""
        return [self.by_slot[slot].address for slot in self.in_order()]

    # --- joining and leaving

    def expect(self, members: Iterable[Member], now: float) -> None:
        """These workers are about to be started, to join."""
        for member in members:
            self.by_slot[member.slot] = member
            self.joining[member.slot] = Joiner(since=now)

    def forget(self, slots: Iterable[int]) -> None:
        """These workers do not exist any more."""
        for slot in slots:
            self.by_slot.pop(slot, None)
            self.joining.pop(slot, None)
            self.elastic.discard(slot)

    def ready_joiners(self) -> dict[int, int]:
        """Slots that are parked and can join, with the step of their state."""
        return {slot: one.step for slot, one in self.joining.items() if one.step is not None}

    def locations(self, slots: Iterable[int]) -> list[WorkerLocation]:
        """Where the workers of these slots run, in the same order."""
        found = [self.by_slot[slot] for slot in slots]
        return [WorkerLocation(one.slot, one.ray_node_id, one.address, one.local_rank) for one in found]

    def apply_ranks(self, assigned: list[RankAssignment]) -> set[int]:
        """Give the worker group new ranks; returns the slots that are not in it any more."""
        before = set(self.ranks)
        self.ranks = {one.slot: one.rank for one in assigned}
        for slot in self.ranks:
            self.joining.pop(slot, None)
        out = before - self.ranks.keys()
        self.leave(out)
        return out

    def leave(self, slots: Iterable[int]) -> None:
        """These are lost, or were asked to leave."""
        self.departed.update(slots)
        self._present = self.ranks.keys() - self.departed

    # --- instructions

    async def send(self, message: channel.Message, rank: int | None = None) -> set[int]:
        """Instruct a rank of the worker group, or all of it; a stop goes to those that join it, too.

        Returns the slots that did not take it.
        """
        everybody = self.by_slot.keys() if message["type"] == "stop" else self.ranks.keys()
        wanted = {slot for slot in everybody - self.departed if rank in (None, self.ranks.get(slot))}
        return await self.send_to(wanted, message)

    async def send_to(self, slots: Iterable[int], message: channel.Message) -> set[int]:
        """Give slots the same instruction; returns those that did not take it."""
        return await self.instruct(dict.fromkeys(slots, message))

    async def instruct(self, messages: dict[int, channel.Message]) -> set[int]:
        """Give slots an instruction each; returns those that did not take it."""
        slots = [slot for slot in messages if slot in self.by_slot]
        took = await asyncio.gather(
            *(self._calls.instruct(self.by_slot[slot], messages[slot]) for slot in slots)
        )
        return {slot for slot, taken in zip(slots, took, strict=True) if not taken}

    async def free_port(self, slot: int) -> int | None:
        """A free port of a worker's node; None when it does not answer."""
        member = self.by_slot.get(slot)
        return None if member is None else await self._calls.free_port(member)

    async def find_dead(self, slots: Iterable[int]) -> set[int]:
        """Those of the slots whose process or node is gone."""
        members = [self.by_slot[slot] for slot in slots if slot in self.by_slot]
        return await self._calls.find_dead(members) if members else set()


@dataclass(frozen=True, kw_only=True)
class RendezvousEndpoint:
    """Where the workers of a worker group rendezvous."""

    #: Of rank 0.
    address: str
    port: int
    #: `address:port` of every rank, in their order; empty when the backend does not ask for them.
    peers: tuple[str, ...] = ()
    key: str = field(default_factory=lambda: secrets.token_hex(16), repr=False)


def place_of(
    plan: AttemptPlan, member: Member, size: tuple[int, int], generation: int, endpoint: RendezvousEndpoint
) -> WorkerIdentity:
    """The place in which a worker starts, in a worker group of `size`: workers, and the nodes they are on."""
    world_size, num_nodes = size
    return WorkerIdentity(
        job_id=plan.job_id,
        attempt_id=plan.attempt_id,
        attempt=plan.attempt,
        generation=generation,
        rank=member.rank,
        world_size=world_size,
        local_rank=member.local_rank,
        local_world_size=member.local_world_size,
        node_rank=member.node_rank,
        num_nodes=num_nodes,
        master_addr=endpoint.address,
        master_port=endpoint.port,
        peers=endpoint.peers,
        key=endpoint.key,
    )
