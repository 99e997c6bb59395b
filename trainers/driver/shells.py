"""The shells of an attempt: what the service sends them goes to their supervisors, and their output back.

Both ends ask: the service calls `exchange` again and again with all shells that there are, and each supervisor asks for
input and hands over output in calls that wait while there is nothing to do, or no space.  A shell that a call does not
name is over, and so is one of which no state has come for `FORGOTTEN_S`.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

from trainers.driver.members import GroupMembers
from trainers.ray_train import Member
from trainers.shells import BUFFER_BYTES, FORGOTTEN_S, InputChunk, OutputChunk, ShellTurn

#: Seconds that a call waits for news, and between two looks whether a worker lives.
_WAIT_S, _LOOK_S = 10.0, 1.0

Spawn = Callable[[Coroutine[Any, Any, Any]], object]
Size = tuple[int, int]


@dataclass(eq=False)
class _Shell:
    state: ShellTurn
    stated_at: float
    #: What its supervisor calls it.
    token: str = field(default_factory=lambda: secrets.token_hex(16))
    is_open: bool = False
    #: Nothing is to come of it any more: its process has ended, or there will be none.
    has_ended: bool = False
    #: It is to end.
    is_over: bool = False
    message: str | None = None
    exit_code: int | None = None
    inputs: deque[InputChunk] = field(default_factory=deque)
    #: The last chunks of input that came, and that its supervisor has written.
    received: int = 0
    taken: int = 0
    outputs: deque[OutputChunk] = field(default_factory=deque)
    output_bytes: int = 0
    #: The last chunk of output.
    made: int = 0

    def note(self, state: ShellTurn, now: float) -> None:
        """The service has said this."""
        self.state, self.stated_at = state, now
        for number, content in state.inputs:
            if number > self.received and not self.has_ended:
                self.received = number
                self.inputs.append((number, content))
        while self.outputs and self.outputs[0][0] <= state.after:
            self.output_bytes -= len(self.outputs.popleft()[2])

    def end(self, message: str, exit_code: int | None = None) -> None:
        """It has ended; the first reason counts."""
        if not self.has_ended:
            self.has_ended, self.message, self.exit_code = True, message, exit_code
            self.inputs.clear()

    def has_news(self) -> bool:
        """The service does not know all of it, and has space for it."""
        shown = self.shown()
        is_taken = bool(self.state.inputs) and self.taken >= self.state.inputs[0][0]
        is_at_end = self.has_ended and len(shown) == len(self.outputs)
        return bool(shown) or is_at_end or is_taken or self.is_open != self.state.is_open

    def shown(self) -> list[OutputChunk]:
        """The output for which the service has space."""
        found, left = [], self.state.room
        for chunk in self.outputs:
            if len(chunk[2]) > left:
                break
            left -= len(chunk[2])
            found.append(chunk)
        return found

    def answer(self) -> list[Any]:
        """As `trainers.shells.as_answer` reads it."""
        shown = self.shown()
        is_whole = self.has_ended and len(shown) == len(self.outputs)
        chunks = [list(chunk) for chunk in shown]
        ended = (self.message, self.exit_code) if is_whole else (None, None)
        return [self.state.number, self.is_open, self.taken, chunks, *ended]


class Shells:
    """The shells of one driver; touched on its event loop only."""

    def __init__(self, group_members: GroupMembers, spawn: Spawn) -> None:
        self._group_members = group_members
        self._spawn = spawn
        self._shells: dict[int, _Shell] = {}
        self._order: tuple[int, int] = (0, 0)
        self._changed = asyncio.Condition()

    # --- called by the service

    async def exchange(self, order: tuple[int, int], states: Sequence[ShellTurn]) -> list[list[Any]]:
        """Take note of all shells that there are, and say what is new, waiting a while for it.

        Of two calls the one with the later `order` counts, whenever they arrive; an earlier one gets no answer.
        """
        if order <= self._order:
            return []
        self._order = order
        self._note(states)
        await self._notify()

        def is_due() -> bool:
            return self._order != order or any(one.has_news() for one in self._shells.values())

        if states:
            await self._until(is_due)
        if self._order != order:
            return []
        return [one.answer() for one in self._shells.values()]

    def _note(self, states: Sequence[ShellTurn]) -> None:
        now = asyncio.get_running_loop().time()
        named = {one.number for one in states}
        for number in self._shells.keys() - named:
            self._shells.pop(number).is_over = True
        for state in states:
            shell = self._shells.get(state.number)
            if shell is None and not state.is_open:
                shell = self._shells[state.number] = _Shell(state, now)
                self._spawn(self._follow(shell))
            elif shell is None:
                # It was forgotten here.
                shell = self._shells[state.number] = _Shell(state, now)
                shell.end("the service has not asked for it for too long")
            shell.note(state, now)

    # --- called by supervisors

    async def input(self, token: str, taken: int, size: Size | None) -> dict[str, Any]:
        """What is new for a shell whose supervisor has written chunks up to `taken` and has set that size.

        `{"pieces": [(number, bytes)...], "size": [rows, columns] or None, "is_over": bool}`; waits a while for it.
        """
        shell = self._named(token)
        if shell is None:
            return {"pieces": [], "size": None, "is_over": True}
        if taken > shell.taken:
            shell.taken = taken
            while shell.inputs and shell.inputs[0][0] <= taken:
                shell.inputs.popleft()
            await self._notify()

        def is_over() -> bool:
            return shell.is_over or shell.has_ended

        await self._until(lambda: bool(shell.inputs) or is_over() or shell.state.size != size)
        return {"pieces": list(shell.inputs), "size": shell.state.size, "is_over": is_over()}

    async def output(self, token: str, chunks: Sequence[tuple[int, bytes]]) -> str:
        """Take output, `(stream, bytes)`: `taken`; `full` when there was no space for a while; `over`."""
        shell = self._named(token)
        if shell is None or shell.is_over:
            return "over"
        if chunks:
            await self._until(lambda: shell.is_over or shell.output_bytes < BUFFER_BYTES)
            if shell.output_bytes >= BUFFER_BYTES:
                return "over" if shell.is_over else "full"
        for stream, content in chunks:
            shell.made += 1
            shell.outputs.append((shell.made, stream, content))
            shell.output_bytes += len(content)
        shell.is_open = True
        await self._notify()
        return "over" if shell.is_over else "taken"

    async def ended(self, token: str, message: str, exit_code: int | None) -> None:
        """Its process has ended, or there is none, for that reason."""
        shell = self._named(token)
        if shell is not None:
            shell.end(message, exit_code)
            await self._notify()

    # --- the worker

    async def _follow(self, shell: _Shell) -> None:
        """Have a shell opened, and end it with its worker, or when the service has forgotten it."""
        state, members = shell.state, self._group_members
        slot = next(iter(members.slots_of({state.rank}) & members.present), None)
        if slot is None:
            why = f"the job has no rank {state.rank} now: its worker group has {len(members.present)} ranks, from 0"
            shell.end(why)
            await self._notify()
            return
        member = members.by_slot[slot]
        asked = {"command": list(state.command), "size": state.size, "term": state.term}
        if await members.send_to([slot], {"type": "shell", "token": shell.token, **asked}):
            shell.end("its supervisor does not answer: the node is frozen, or cut off")
        while not (shell.has_ended or shell.is_over):
            if not self._lives(slot, member):
                shell.end("its worker has ended, or was lost")
            elif asyncio.get_running_loop().time() - shell.stated_at > FORGOTTEN_S:
                shell.is_over = True
                self._shells.pop(state.number, None)
            else:
                await self._until(lambda: shell.has_ended or shell.is_over, _LOOK_S)
        await self._notify()

    def _lives(self, slot: int, member: Member) -> bool:
        members = self._group_members
        is_same = members.by_slot.get(slot) is member
        return is_same and slot in members.present and slot not in members.ended

    # --- waiting

    def _named(self, token: str) -> _Shell | None:
        return next((one for one in self._shells.values() if one.token == token), None)

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def _until(self, is_due: Callable[[], bool], wait_s: float = _WAIT_S) -> None:
        async with self._changed:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait_for(is_due), wait_s)
