"""How a worker group changes in place: which workers stay or join, and which group follows (pure; time is an argument).

Workers have a *slot* and a local rank for life; ranks are assigned again for every group.  When a peer vanishes, every
other script parks at the state after its last step; so it does at an agreed step when a node goes or a worker comes.
When all of them are parked, the next group gets its ranks: those that stay keep their order, but those on on-demand
nodes come first; those that join come last.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from remora.spec.worker_sizes import WorkerSizes

#: Seconds in which the scripts of a broken worker group park, at least and at most; later ones count as lost.
PARK_S, PARK_CAP_S = 10.0, 600.0


@dataclass(frozen=True)
class WorkerLocation:
    """Where a slot's worker runs."""

    slot: int
    #: Ray's name of the node.
    node: str
    #: The node's address.
    address: str
    #: Its number among the workers of its node, for life: its script chose its device by it.
    local_rank: int


@dataclass(frozen=True)
class RankAssignment:
    """The ranks of one worker in a group."""

    slot: int
    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    node_rank: int
    num_nodes: int


def assign_ranks(locations: list[WorkerLocation]) -> list[RankAssignment]:
    """Ranks in the order of the locations, node ranks in order of first appearance; local ranks are as they were.

    Where a worker of a node is lost, local ranks have a gap until another one joins there, and may exceed the number
    of workers of the node.
    """
    counts = Counter(location.node for location in locations)
    node_ranks = {node: number for number, node in enumerate(counts)}
    return [
        RankAssignment(
            slot=location.slot,
            rank=rank,
            world_size=len(locations),
            local_rank=location.local_rank,
            local_world_size=counts[location.node],
            node_rank=node_ranks[location.node],
            num_nodes=len(counts),
        )
        for rank, location in enumerate(locations)
    ]


#: Why scripts are asked to park.
Asked = Literal["grow", "drain", "resize", "pause"]
#: Why a worker group is left: workers were lost, or as it was asked for.
Cause = Literal["loss", "grow", "drain", "resize"]


@dataclass
class Regrouping:
    """One change under way."""

    #: Number of the group that is broken or about to be left.
    generation: int
    #: For people.
    cause: Cause
    began_at: float
    #: Slots that go on, in the order of their ranks.
    staying: list[int]
    #: Slots that end: their node is lost, or they are frozen.
    leaving: set[int] = field(default_factory=set)
    #: Newest step of every parked slot; -1 for one that has no state yet.
    parked: dict[int, int] = field(default_factory=dict)
    #: Slots whose node drains: they are left behind unless the next group cannot do without them.
    draining: set[int] = field(default_factory=set)
    #: Slots on on-demand nodes, which the cloud does not take back.
    on_demand: set[int] = field(default_factory=set)
    #: Slots that go on and are not parked yet: it is needed for every message of every worker.
    missing: set[int] = field(init=False)

    def __post_init__(self) -> None:
        self.missing = set(self.staying) - self.parked.keys()

    def park(self, slot: int, step: int) -> None:
        """A script is parked with the state after `step`."""
        self.parked[slot] = step
        self.missing.discard(slot)

    def lose(self, slots: set[int]) -> None:
        """These slots end."""
        self.staying = [slot for slot in self.staying if slot not in slots]
        self.leaving |= slots
        self.missing -= slots

    def admit(self, slot: int) -> None:
        """A new worker is parked and wants to take part."""
        if slot not in self.staying and slot not in self.leaving:
            self.staying.append(slot)
            self.missing.add(slot)

    def try_again(self, generation: int, next_members: Iterable[int]) -> None:
        """Ranks of this generation were assigned to these slots: a worker that cannot join parks again."""
        self.generation = generation
        self.staying = list(next_members)
        self.parked.clear()
        self.missing = set(self.staying)

    @property
    def has_state(self) -> bool:
        """True while a slot that goes on holds the training state in its memory."""
        return self.newest_step >= 0

    @property
    def newest_step(self) -> int:
        """The newest step that a parked slot has done; -1 when none holds a state."""
        return self._newest(self.staying)

    @property
    def is_hopeless(self) -> bool:
        """True when no worker is left that holds, or might hold, the training state."""
        return not self.missing and not self.has_state

    def is_short(self, sizes: WorkerSizes) -> bool:
        """True when all are parked and hold the state, but more have to join before a group can follow."""
        return not self.missing and self.has_state and not sizes.fit(len(self.staying))

    def is_ready(self, sizes: WorkerSizes) -> bool:
        """True when the next group can be formed; at least one of it must hold the state."""
        return bool(self.next_members(sizes))

    def next_members(self, sizes: WorkerSizes) -> list[int]:
        """Slots of the next group, those with the state first, so that rank 0 holds it; [] while there is none.

        Of those with the state, the ones on nodes that stay come first.
        Slots whose node drains are left out, unless the others are too few or have an older state; and so are those
        beyond the largest size that fits.
        """
        if self.missing:
            return []
        for slots in ([one for one in self.staying if one not in self.draining], self.staying):
            newest = self._newest(slots)
            if (size := sizes.fit(len(slots))) and 0 <= newest == self.newest_step:
                ordered = sorted(slots, key=lambda slot: (-self.parked[slot], slot in self.draining))
                chosen = set(ordered[:size])
                return sorted((s for s in slots if s in chosen), key=self._order)
        return []

    def _order(self, slot: int) -> tuple[bool, bool]:
        return self.parked[slot] < 0, slot not in self.on_demand

    def _newest(self, slots: list[int]) -> int:
        return max((self.parked.get(slot, -1) for slot in slots), default=-1)


class Pace:
    """How long steps take, and so how long a script may need until it notices that it has to park."""

    def __init__(self) -> None:
        self._before: float | None = None
        self._durations: deque[float] = deque(maxlen=8)

    def step(self, at: float) -> None:
        """A step ended at that time of a monotonic clock."""
        if self._before is not None:
            self._durations.append(at - self._before)
        self._before = at

    def pause(self) -> None:
        """Time until the next step is not the duration of a step."""
        self._before = None

    @property
    def patience_s(self) -> float:
        """Seconds in which a script parks that is well: three of the longest steps of late, within bounds."""
        return min(PARK_CAP_S, max(PARK_S, 3 * max(self._durations, default=0.0)))
