"""Watches the rendezvous of worker groups that have reported no step: a script may wait for ranks that never join."""

from __future__ import annotations

import asyncio
from typing import Any

from trainers.driver.attempt import Attempt
from trainers.driver.group import WorkerGroup
from trainers.driver.hang_monitor import STACK_LENGTH
from trainers.driver.rendezvous import Absent, RendezvousWatch
from trainers.driver.stacks import Stacks


class RendezvousMonitor:
    """Ends an attempt whose ranks wait in a rendezvous that cannot complete; used on the driver's event loop only."""

    def __init__(self, attempt: Attempt, stacks: Stacks) -> None:
        self._attempt = attempt
        self._stacks = stacks
        self._group: WorkerGroup | None = None
        self._watch = RendezvousWatch(0.0)
        self._task: asyncio.Task[Any] | None = None

    def tick(self) -> None:
        """What follows from time alone."""
        group = self._attempt.group
        if group is None or self._is_held(group) or (self._task is not None and not self._task.done()):
            return
        if group is not self._group:
            self._group, self._watch = group, RendezvousWatch(group.started_at)
        if self._watch.is_due(self._attempt.now(), len(group.ended)):
            self._task = self._attempt.spawn(self._look(group))

    def _is_held(self, group: WorkerGroup) -> bool:
        """True when this group has completed its rendezvous, ends or changes."""
        return group is not self._attempt.steady_group or group.has_reported

    async def _look(self, group: WorkerGroup) -> None:
        attempt, group_members = self._attempt, self._attempt.group_members
        living = group_members.present - group_members.slots_of(group.ended)
        # 1. Every rank that runs reports what it is doing.
        stacks = await self._stacks.ask(living)
        # 2. A step, an end or a loss may have come meanwhile.
        is_as_before = attempt.group is group and living == group_members.present - group_members.slots_of(
            group.ended
        )
        if not is_as_before or self._is_held(group):
            return
        ended = {rank for rank, one in group.exits.items() if not one.is_failure}
        found = self._watch.look(attempt.now(), stacks, ended, group.world_size)
        # 3. No rank can join any more, or one is late.
        if isinstance(found, Absent):
            self._report(found, stacks)
        elif found is not None:
            attempt.conclude(found)

    def _report(self, absent: Absent, stacks: dict[int, str]) -> None:
        event, (waiting, missing) = self._attempt.account.event, (absent.waiting, absent.missing)
        event("worker_group.gathering", absent.message, waiting=list(waiting), missing=list(missing))
        for rank in missing:
            text = f"What rank {rank} was doing when others waited for it in the rendezvous."
            event("worker.stack", text, rank=rank, stack=stacks[rank][:STACK_LENGTH])
