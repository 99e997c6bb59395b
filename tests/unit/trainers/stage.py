"""Workers without processes: scripts that park, join and agree as asked, until a test makes them fail."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from tests.attempt_plans import plan_of
from trainers.driver.account import Account
from trainers.driver.attempt import Attempt
from trainers.driver.in_place import InPlace
from trainers.driver.members import GroupMembers
from trainers.plan import AttemptPlan
from trainers.ray_train import Member

#: Seconds that the real calls wait for a frozen process.
CALL_S = 5.0
#: Seconds since 1970 at which every scene begins.
BEGIN = 1_000_000.0


class Stage:
    """The calls to workers, answered by the play; and the play itself."""

    def __init__(self, workers: int = 3, *, min_workers: int = 1, max_workers: int = 4, **plan: Any) -> None:
        self.dead: set[int] = set()
        #: Their processes and nodes stand still: none answers, and none is known to be dead.
        self.frozen: set[int] = set()
        #: Their supervisors answer, and their scripts do nothing.
        self.hanging: set[int] = set()
        #: Their supervisors have ended, and no other one follows.
        self.ended: set[int] = set()
        #: Scripts that need that number of seconds before they notice that they shall park.
        self.slow: dict[int, float] = {}
        #: Messages, by slot and kind, that scripts are too busy to notice.
        self.unheard: set[tuple[int, str]] = set()
        #: Step of the state of each script.
        self.steps: dict[int, int] = {}
        self.sent: list[tuple[int, dict[str, Any]]] = []
        #: Called with every message that a worker takes.
        self.watch: Callable[[int, dict[str, Any]], None] = lambda slot, message: None
        #: Called when all workers of a group have joined it.
        self.joined: Callable[[], None] = lambda: None
        self._assigned: dict[int, dict[int, dict[str, Any]]] = {}
        self.loop = asyncio.get_running_loop()
        #: Seconds by which the clock was set.
        self.set_by_s = 0.0
        self.account = Account(1 << 30, self.clock)
        self.group_members = GroupMembers(self)
        self.attempt = Attempt(
            _plan(min_workers, max_workers, **plan), self.account, self.group_members, self.now, self.clock
        )
        self.in_place = InPlace(self.attempt)
        self._slots = 0
        self.attempt.open_group(self.new_members(workers), None)
        for slot, rank in self.group_members.ranks.items():
            self.steps[slot] = 10
            self.say(slot, "elastic")
            self.attempt.receive(rank, {"type": "hello"})
            self.attempt.receive(rank, {"type": "report", "step": 10})

    # --- what a test does

    def now(self) -> float:
        return BEGIN + self.loop.time()

    def clock(self) -> float:
        """Seconds since 1970, as this machine believes."""
        return self.now() + self.set_by_s

    def new_members(self, count: int) -> list[Member]:
        """Workers on a node each."""
        first = self._slots
        self._slots += count
        return [
            Member(
                slot=slot,
                rank=slot - first,
                local_rank=0,
                local_world_size=1,
                node_rank=slot - first,
                ray_node_id=f"node-{slot}",
                address=f"10.0.0.{slot}",
                call=lambda *_: None,
            )
            for slot in range(first, self._slots)
        ]

    def say(self, slot: int, kind: str, **message: Any) -> None:
        """A script says something."""
        self.in_place.receive(slot, {"type": kind, **message})

    def park(self, slot: int, why: str = "a peer was lost") -> None:
        """A script notices by itself that a peer is lost."""
        self.say(slot, "parted", generation=self.attempt.generation, step=self.steps[slot], why=why)

    def kill(self, *slots: int) -> set[int]:
        """Nodes vanish, and Ray Train's controller notices; returns the slots that it shall drop."""
        self.dead |= set(slots)
        return self.in_place.absorb(set(slots), set(), set(slots))

    def join(self, *, is_ready: bool = True) -> int:
        """A worker is started, to join; returns its slot."""
        (member,) = self.new_members(1)
        generation = self.in_place.expect([member])
        self.steps[member.slot] = -1
        if is_ready:
            self.say(member.slot, "elastic")
            self.say(member.slot, "parted", generation=generation, step=-1, why="joining")
        return member.slot

    async def after(self, seconds: float) -> None:
        """Let that time go by, with the ticks of the driver's clock in it."""
        end = self.loop.time() + seconds
        while self.loop.time() < end:
            await asyncio.sleep(min(0.2, max(1e-4, end - self.loop.time())))
            self.attempt.tick()
            self.in_place.tick()

    async def settled(self, within_s: float = 4000.0) -> float:
        """Let time go by until no change is under way; returns how many seconds that took."""
        began = self.loop.time()
        while self.in_place.is_changing:
            assert self.loop.time() - began < within_s, "the change never ends"
            await self.after(0.2)
        return self.loop.time() - began

    # --- what a test sees

    @property
    def order(self) -> list[int]:
        """Slots of the present worker group by rank."""
        return sorted(self.group_members.ranks, key=lambda slot: self.group_members.ranks[slot])

    def messages(self, kind: str) -> list[int]:
        """Slots that were sent that, in order."""
        return [slot for slot, message in self.sent if message["type"] == kind]

    def events(self, kind: str) -> list[dict[str, Any]]:
        bodies = [one.body for one in self.account.records(0, 10_000) if one.kind == "event"]
        return [body["data"] for body in bodies if body["kind"] == kind]

    @property
    def regrouped(self) -> list[tuple[str, int]]:
        """Cause and size of every group that took over in place."""
        return [(data["cause"], data["world_size"]) for data in self.events("worker_group.regrouped")]

    @property
    def workers(self) -> list[dict[str, int]]:
        """Workers by the address of their node, every time that they were sent."""
        bodies = [one.body for one in self.account.records(0, 10_000) if one.kind == "progress"]
        return [body["workers"] for body in bodies if "world_size" in body]

    @property
    def log(self) -> list[str]:
        return [one.body["text"] for one in self.account.records(0, 10_000) if one.kind == "log"]

    # --- the calls (trainers.driver.calls.Calls)

    async def instruct(self, member: Member, message: dict[str, Any]) -> bool:
        if not await self._answers(member.slot):
            return False
        if message.get("again") and member.slot in self.ended:
            return False
        self.sent.append((member.slot, message))
        self.watch(member.slot, message)
        self.loop.call_later(self.slow.get(member.slot, 0.0), self._react, member.slot, message)
        return True

    async def free_port(self, member: Member) -> int | None:
        return 20_000 if await self._answers(member.slot) else None

    async def find_dead(self, members: list[Member]) -> set[int]:
        await asyncio.sleep(0.01)
        return {member.slot for member in members} & self.dead

    async def _answers(self, slot: int) -> bool:
        await asyncio.sleep(CALL_S if slot in self.frozen else 0.001)
        return slot not in self.dead | self.frozen

    # --- the scripts

    def _react(self, slot: int, message: dict[str, Any]) -> None:
        if slot in self.dead | self.frozen | self.hanging or (slot, message["type"]) in self.unheard:
            return
        match message["type"]:
            case "part":
                self.say(slot, "parted", generation=message["generation"], step=self.steps[slot], why="told")
            case "hold":
                self._answer(slot, {"type": "held", "token": message["token"], "boundary": self.steps[slot]})
            case "decide" if message["action"] == "regroup":
                self.steps[slot] = message["boundary"]
                self.park(slot, "planned")
            case "regroup":
                self._meet(slot, message)

    def _answer(self, slot: int, message: dict[str, Any]) -> None:
        if slot in self.group_members.ranks and self.attempt.group is not None:
            self.attempt.receive(self.group_members.ranks[slot], message)

    def _meet(self, slot: int, message: dict[str, Any]) -> None:
        """A group works when all of its workers have come to the rendezvous; then all have the newest state."""
        present = self._assigned.setdefault(message["generation"], {})
        present[slot] = message
        if len(present) < message["world_size"] or present.keys() & (self.dead | self.frozen | self.hanging):
            return
        newest = max(self.steps[one] for one in present)
        for one in present:
            self.steps[one] = newest
            self.say(one, "joined", generation=message["generation"], step=newest)
        self.joined()


def _plan(min_workers: int, max_workers: int, **fields: Any) -> AttemptPlan:
    return plan_of(
        job_id="job_1",
        attempt_id="att_1",
        attempt=1,
        command=["python", "train.py"],
        bundle=None,
        storage_url="memory://",
        checkpoint_url="memory://",
        backend="ddp",
        min_workers=min_workers,
        max_workers=max_workers,
        regroup_s=600.0,
        **{"checkpoint_interval_s": None, "resources": {"CPU": 1.0}, **fields},
    )
