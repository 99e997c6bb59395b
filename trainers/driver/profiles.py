"""The profiles of an attempt that its owner asks for: of one rank, one at a time."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from dataclasses import dataclass, field

from remora.script import channel
from trainers.driver.account import Account
from trainers.driver.members import GroupMembers
from trainers.plan import ProfileRequest
from trainers.profiles import PROFILE_S
from trainers.ray_train import Member

#: Seconds after its time that a rank gets to store its trace, and between two looks whether it lives.
_STORED_S, _LOOK_S = 60.0, 1.0


@dataclass
class _Asked:
    """A rank that was asked."""

    request: ProfileRequest
    token: str
    slot: int
    member: Member
    answer: channel.Message | None = None
    is_answered: asyncio.Event = field(default_factory=asyncio.Event)


class Profiles:
    """Asks supervisors for profiles; touched on the driver's event loop only."""

    def __init__(self, group_members: GroupMembers, account: Account) -> None:
        self._group_members = group_members
        self._account = account
        self._one_at_a_time = asyncio.Lock()
        self._asked: _Asked | None = None

    def receive(self, slot: int, message: channel.Message) -> None:
        """A supervisor reports how the profile of its rank went."""
        asked = self._asked
        if asked is not None and (asked.slot, asked.token) == (slot, message.get("token")):
            asked.answer = message
            asked.is_answered.set()

    async def take(self, request: ProfileRequest) -> None:
        """Have a rank profiled, and report how that went."""
        async with self._one_at_a_time:
            outcome = await self._take(request)
            why = outcome.get("message")
            text = (
                f"Rank {request.rank} was profiled for {outcome.get('steps')} steps."
                if why is None
                else f"There is no profile of rank {request.rank}: {why}."
            )
            self._account.put("profile", {"number": request.number, **outcome})
            self._account.event("worker.profile", text, rank=request.rank, profile=request.number)

    async def _take(self, request: ProfileRequest) -> dict[str, object]:
        members = self._group_members
        slot = next(iter(members.slots_of({request.rank}) & members.present), None)
        if slot is None:
            return {"message": f"the worker group has {len(members.present)} ranks now, from 0"}
        self._asked = _Asked(request, secrets.token_hex(16), slot, members.by_slot[slot])
        try:
            return await self._answer_of(self._asked)
        finally:
            self._asked = None

    async def _answer_of(self, asked: _Asked) -> dict[str, object]:
        request, token = asked.request, asked.token
        message = {"type": "profile", "token": token, "steps": request.steps, "within_s": PROFILE_S}
        if await self._group_members.send_to([asked.slot], message):
            return {"message": "its supervisor does not answer: the node is frozen, or cut off"}
        loop = asyncio.get_running_loop()
        end = loop.time() + PROFILE_S + _STORED_S
        while not asked.is_answered.is_set() and loop.time() < end:
            if not self._lives(asked):
                return {"message": "its process ended, or was lost, before the profile was there"}
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asked.is_answered.wait(), _LOOK_S)
        return _outcome(asked)

    def _lives(self, asked: _Asked) -> bool:
        members = self._group_members
        is_same = members.by_slot.get(asked.slot) is asked.member
        return is_same and asked.slot in members.present and asked.slot not in members.ended


def _outcome(asked: _Asked) -> dict[str, object]:
    answer = asked.answer
    if answer is None:
        return {
            "message": f"it did not take {asked.request.steps} steps within {PROFILE_S:g} s: ask for fewer of them"
        }
    if "error" in answer:
        return {"message": str(answer["error"])}
    return {"file": asked.token, **{name: answer[name] for name in ("steps", "size_bytes", "sha256")}}
