"""What ranks are doing, asked of their supervisors."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable

from remora.script import channel
from trainers.driver.members import GroupMembers
from trainers.last_collectives import LastCollective, read_collectives

#: Seconds in which supervisors have to report what their processes are doing.
STACKS_S = 20.0


class Stacks:
    """Asks supervisors for the stacks of their processes; touched on the driver's event loop only."""

    def __init__(self, group_members: GroupMembers) -> None:
        self._group_members = group_members
        self._one_at_a_time = asyncio.Lock()
        #: Ranks that were asked and have not answered, by slot.
        self._asked: dict[int, int] = {}
        self._answers: dict[int, str] = {}
        #: What the ranks that were asked last have said of their collectives; None: nothing.
        self.collectives: dict[int, tuple[LastCollective, ...] | None] = {}
        self._all_answered = asyncio.Event()

    def receive(self, slot: int, message: channel.Message) -> None:
        """A supervisor reports what the processes of its rank are doing."""
        rank = self._asked.pop(slot, None)
        if rank is not None:
            self._answers[rank] = str(message.get("text", ""))
            self.collectives[rank] = read_collectives(message.get("collectives"))
        if not self._asked:
            self._all_answered.set()

    async def ask(self, slots: Iterable[int]) -> dict[int, str]:
        """Stacks by rank, or a sentence on why there is none, after `STACKS_S` at most."""
        async with self._one_at_a_time:
            return await self._ask(list(slots))

    async def _ask(self, slots: list[int]) -> dict[int, str]:
        self._asked = {
            slot: self._group_members.ranks[slot] for slot in slots if slot in self._group_members.ranks
        }
        self._answers = {}
        self.collectives = dict.fromkeys(self._asked.values())
        self._all_answered.clear()
        silent = await self._group_members.send_to(list(self._asked), {"type": "dump"})
        for slot in silent & self._asked.keys():
            self._answers[self._asked.pop(slot)] = (
                "Its supervisor does not answer: the node is frozen, or cut off."
            )
        if self._asked:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._all_answered.wait(), STACKS_S)
        for rank in self._asked.values():
            self._answers[rank] = f"Its supervisor did not report it within {STACKS_S:g} s."
        self._asked = {}
        return self._answers
