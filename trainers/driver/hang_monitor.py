"""What a driver does when no step ends: it looks for dead workers, and in the end ends the attempt with `hang`.

A node whose network is cut breaks no connection, so its peers wait.  A look at the nodes finds it long before Ray does.
After much longer, every rank is asked what it is doing, and the attempt ends with `hang`.

Scripts that can change their worker group in place get one chance before that: all are asked to park, those that
do go on together, and those that do not are left behind.
"""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import Any

from remora.states import EndReason
from trainers.driver.attempt import Attempt
from trainers.driver.collectives import explain
from trainers.driver.hang import Overdue
from trainers.driver.in_place import InPlace
from trainers.driver.phases import Phase
from trainers.driver.stacks import Stacks
from trainers.driver.verdict import Verdict
from trainers.last_collectives import LastCollective

#: Seconds between two checks for dead workers; one that does not answer twice is lost.
LOOK_PAUSE_S = 0.5
#: Characters of a stack that are reported.
STACK_LENGTH = 16_000
#: Ranks whose stacks an owner gets at once: all of their texts are events of the job.
MOST_REPORTED = 64


class HangMonitor:
    """Looks whether steps still end; touched on the driver's event loop only."""

    def __init__(self, attempt: Attempt, in_place: InPlace, stacks: Stacks) -> None:
        self._attempt = attempt
        self._in_place = in_place
        self._stacks = stacks
        self._task: asyncio.Task[Any] | None = None
        self._look: asyncio.Task[Any] | None = None
        self._look_again_at = 0.0

    def tick(self) -> None:
        """What follows from time alone."""
        attempt, now = self._attempt, self._attempt.now()
        if self._is_held:
            attempt.watch.hold()
            return
        attempt.watch.go_on(now)
        self._look_soon(now)
        is_free = self._task is None or self._task.done()
        if is_free and (overdue := self._overdue()) is not None:
            self._task = attempt.spawn(self._end_it(overdue))

    def _look_soon(self, now: float) -> None:
        """Check for dead workers when the step under way takes long; the longer it takes, the more seldom."""
        attempt, group = self._attempt, self._attempt.group
        if (
            group is None
            or not attempt.group_members.is_elastic
            or (self._look is not None and not self._look.done())
        ):
            return
        slow = attempt.watch.slow(now, group.world_size)
        if slow is None:
            self._look_again_at = 0.0
        elif now >= self._look_again_at:
            self._look_again_at = now + slow.quiet_s / 2
            self._look = attempt.spawn(self._look_around())

    async def _look_around(self) -> None:
        group_members = self._attempt.group_members
        gone = await group_members.find_dead(group_members.in_order())
        await asyncio.sleep(LOOK_PAUSE_S)
        if gone:
            gone &= await group_members.find_dead(sorted(gone & group_members.present))
        # A driver that cannot reach any worker is itself cut off.
        if gone and group_members.present - gone and not self._is_held:
            self._in_place.lose(gone & group_members.present)

    @property
    def _is_held(self) -> bool:
        """True while a step may take its time: a group starts, stops, changes or writes a checkpoint.

        Scripts that were asked to park at an agreed step go on with steps until then, and one that hangs never agrees.
        """
        attempt, group = self._attempt, self._attempt.group
        is_steady = attempt.steady_group is not None
        if group is not None and attempt.lifecycle.phase is Phase.TRAINING and group.parks_to is not None:
            is_steady = True
        return group is None or not is_steady or not group.has_reported or group.is_saving

    def _overdue(self) -> Overdue | None:
        group, progress = self._attempt.group, self._attempt.progress
        if group is None or self._is_held:
            return None
        # After the last step a script may take its time: it evaluates, it saves.
        if progress.total_steps is not None and (progress.step or 0) >= progress.total_steps:
            return None
        return self._attempt.watch.overdue(self._attempt.now(), group.world_size)

    async def report_stacks(self) -> None:
        """Report what the ranks are doing, as their owner asked; of more than MOST_REPORTED the first ones."""
        slots = self._attempt.group_members.in_order()[:MOST_REPORTED]
        stacks = await self._stacks.ask(slots)
        collectives = dict(self._stacks.collectives)
        for rank, stack in sorted(stacks.items()):
            self._report(
                rank, stack, collectives.get(rank), f"What rank {rank} was doing when its owner asked."
            )

    async def _end_it(self, overdue: Overdue) -> None:
        attempt = self._attempt
        # 1. Every rank reports what it is doing, while it still does it.
        stacks = await self._stacks.ask(attempt.group_members.in_order())
        collectives = dict(self._stacks.collectives)
        for rank, stack in stacks.items():
            text = f"What rank {rank} was doing when no step ended."
            self._report(rank, stack, collectives.get(rank), text)
        # 2. A step may have ended meanwhile.
        if self._overdue() is None:
            return
        why = explain(collectives)
        text = (
            f"No step ended for {overdue.quiet_s:.0f} s, and the longest of late took {overdue.longest_s:.1f} s"
            f"{': ' + why if why else ''}; the events `worker.stack` say what every rank was doing."
        )
        self._follow(Verdict(goes_on=False, end_reason=EndReason.HANG, message=text), overdue)

    def _follow(self, verdict: Verdict, overdue: Overdue) -> None:
        """Carry out what follows from a hang, and report it once."""
        attempt, text, quiet_s = self._attempt, verdict.message, round(overdue.quiet_s, 1)
        # 3. Ranks that can park go on without those that cannot; once per step.
        if attempt.group_members.is_elastic and attempt.lifecycle.suspect(verdict):
            attempt.report_hang(f"{text} The workers that can park go on together.", quiet_s)
            self._in_place.park_all()
            return
        # 4. Scripts that own their training begin again together, once for each new checkpoint.
        if not attempt.group_members.is_elastic and attempt.start_again():
            attempt.report_hang(f"{text} The workers start again from the newest checkpoint.", quiet_s)
            return
        # 5. No rank makes progress.
        attempt.conclude(verdict, quiet_s)

    def _report(
        self, rank: int, stack: str, collectives: tuple[LastCollective, ...] | None, text: str
    ) -> None:
        known = None if collectives is None else [asdict(one) for one in collectives]
        self._attempt.account.event(
            "worker.stack", text, rank=rank, stack=stack[:STACK_LENGTH], collectives=known
        )
