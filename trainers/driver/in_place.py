"""Changes the worker group of an attempt in place: the scripts stay, with their state, and get new ranks.

What is decided about a change stands in `regrouping.py`; here it is carried out, by one task per change on the
driver's event loop.  Calls from outside only note facts and wake that task.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from remora.script import channel
from trainers.driver.attempt import Attempt
from trainers.driver.breaks import Breaks
from trainers.driver.kills import Kills
from trainers.driver.regrouping import Asked, Cause, Deal, Regrouping, deal
from trainers.ray_train import Member

log = logging.getLogger(__name__)

#: Seconds without news after which it is looked whether a worker died.
_QUIET_S = 1.0
#: Seconds in which a new group has to work before it is dealt again; doubled with every try, up to the second number.
JOIN_S, JOIN_CAP_S = 30.0, 3600.0
#: Seconds in which the script of a worker that is to join has to be ready.
LOAD_S = 600.0
#: Seconds until another worker is started after one whose script failed before it joined.
JOIN_PAUSE_S = 60.0
#: Messages of scripts and their supervisors that this is about.
TURNS = frozenset({"elastic", "parted", "joined", "killed"})


class InPlace:
    """The change under way, if there is one."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self._crew = attempt.crew
        self._change: Regrouping | None = None
        self._task: asyncio.Task[Any] | None = None
        #: Slots whose new group works.
        self._joined: set[int] = set()
        #: Set by any news.
        self._news = asyncio.Event()
        #: Why the scripts were last asked to park.
        self._asked_for: Asked = "grow"
        self._join_after = 0.0
        self._kills = Kills()
        self._breaks = Breaks()
        #: Number of the newest worker group whose scripts were told to park.
        self._parted = 0

    @property
    def is_changing(self) -> bool:
        """True while a change is under way."""
        return self._change is not None

    # --- what scripts say

    def hear(self, slot: int, message: channel.Message) -> None:
        """A script can regroup, is parked, works in its new group or was killed; nonsense is dropped with a remark."""
        try:
            match message["type"]:
                case "elastic":
                    self._crew.elastic.add(slot)
                case "joined" if int(message["generation"]) == self._attempt.generation:
                    self._joined.add(slot)
                case "parted":
                    why = str(message.get("why", ""))
                    self._park(slot, int(message["generation"]), int(message["step"]), why)
                case "killed":
                    self._hear_kill(slot)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            text = f"a message of type {message['type']!r} was not understood and dropped: {error!r}"[:500]
            self._attempt.account.line(self._crew.ranks.get(slot, -1), "remora", text)
        self._news.set()

    def hear_exit(self, slot: int) -> None:
        """A command is over; one that was to join will not be waited for."""
        if slot in self._crew.joining:
            self._join_after = self._attempt.now() + JOIN_PAUSE_S
            self._drop_joiners({slot})
        self._news.set()

    def _hear_kill(self, slot: int) -> None:
        """Go on without a script that got SIGKILL, where others hold the state and it does not happen all the time."""
        attempt, crew = self._attempt, self._crew
        others = crew.present - {slot}
        if slot not in crew.present or not others or not others <= crew.elastic or not self._may_lose:
            return
        rank = crew.ranks[slot]
        if not self._kills.forgive(slot, rank, attempt.progress.step or 0, attempt.now()):
            return
        text = f"The command of rank {rank} got SIGKILL, as from a kernel without memory; the others go on without it."
        attempt.account.event("worker.killed", text, rank=rank)
        self._go_on_without({slot})

    def _park(self, slot: int, generation: int, step: int, why: str) -> None:
        attempt, crew = self._attempt, self._crew
        if slot in crew.joining:
            crew.joining[slot].step = step
            self._take_in_joiners()
            return
        # Who was left behind has no say any more, and a word about a group that was followed comes too late.
        if slot not in crew.present or generation != attempt.generation:
            return
        is_planned = why == "planned" and attempt.group is not None and attempt.group.wants_to_stop
        # Before it works, a group may break because a member is slow; and who is told to park says nothing new.
        if not is_planned and slot in self._joined and self._parted < generation:
            self._breaks.hear(crew.ranks[slot], why)
        if self._change is None:
            self._begin(self._asked_for if is_planned else "loss")
        elif not is_planned:
            self._turn_into_loss()
        if self._change is not None:
            self._change.park(slot, step)

    # --- what Ray Train's controller says and asks

    def absorb(self, failed: set[int], dead: set[int], nodes_lost: set[int]) -> set[int]:
        """Take note of failed slots; returns those that the worker group goes on without, in place.

        `dead` are slots whose process is dead, `nodes_lost` those whose node is; all other failures are the script's.
        """
        attempt, crew = self._attempt, self._crew
        gone = dead | nodes_lost
        lost, staying = gone & crew.present, crew.present - gone
        if attempt.group is None or attempt.stop_reason is not None or attempt.verdict is not None:
            return set()
        if ranks := self._kills.take_back(gone):
            # Their scripts were the first of their nodes to die.
            self._tell_lost(ranks)
        if not staying or not staying <= crew.elastic or not failed <= gone | crew.left | crew.unranked:
            return set()
        # Ranks that are through cannot take part in another group; and a group that is being ended needs none.
        if lost and not self._may_lose:
            return set()
        if (failed - gone) & crew.joining.keys():
            self._join_after = attempt.now() + JOIN_PAUSE_S
        self.lose(gone)
        self._drop_joiners(failed & crew.joining.keys())
        crew.forget(failed)
        return failed

    @property
    def _may_lose(self) -> bool:
        """True while the worker group can go on without some of it: nobody is through, and nothing ends it."""
        attempt = self._attempt
        if attempt.group is None or attempt.stop_reason is not None or attempt.verdict is not None:
            return False
        group = attempt.group
        return not group.is_stopping and not group.diverged and not attempt.ended_slots

    def may_grow(self) -> bool:
        """True when workers may be started to join the present worker group."""
        attempt, crew = self._attempt, self._crew
        group = attempt.group
        if group is None or attempt.stop_reason is not None or attempt.verdict is not None:
            return False
        if crew.joining or attempt.now() < self._join_after or not crew.is_elastic:
            return False
        if self._change is not None:
            return self._change.is_short(attempt.plan.sizes)
        return not group.wants_to_stop and group.is_cooperative and group.progress.lost_since is None

    def expect(self, members: list[Member]) -> int:
        """Workers are about to be started, to join; returns the number of the present worker group.

        Raises TimeoutError when it is over meanwhile.
        """
        attempt = self._attempt
        if attempt.group is None or attempt.ended_slots or attempt.stop_reason is not None:
            raise TimeoutError("the worker group ended before others could join it")
        self._crew.expect(members, attempt.now())
        return attempt.generation

    def expect_no_more(self, members: list[Member]) -> None:
        """They could not be started after all."""
        self._crew.forget({member.slot for member in members})

    def drain(self, ray_node_ids: set[str], deadline_at: float | None) -> None:
        """These nodes go at that time: park and go on without them, or stop at a checkpoint if too few would stay."""
        attempt, crew = self._attempt, self._crew
        going = {slot for slot in crew.present if crew.members[slot].ray_node_id in ray_node_ids}
        if not going:
            return
        text = "A node of this job is going away; the worker group goes on without it after a checkpoint."
        if not crew.is_elastic or not attempt.plan.sizes.fit(len(crew.present - going)):
            attempt.request_stop("drain", text, deadline_at)
            return
        crew.going |= going
        if self._change is not None:
            self._change.going |= going
            return
        text = "A node of this job is going away; the worker group goes on without it."
        self._ask("drain", text, deadline_at)

    def lose(self, slots: set[int]) -> None:
        """These are gone for good; the others go on without them."""
        crew = self._crew
        self._drop_joiners(slots & crew.joining.keys())
        lost = slots & crew.present
        if not lost:
            return
        self._tell_lost(sorted(crew.ranks_of(lost)))
        self._go_on_without(lost)

    def _tell_lost(self, ranks: list[int]) -> None:
        names = ", ".join(map(str, ranks))
        self._attempt.account.event("node.lost", f"The workers of rank {names} were lost.", ranks=ranks)

    def _go_on_without(self, lost: set[int]) -> None:
        self._crew.leave(lost)
        if self._change is None:
            self._begin("loss")
        else:
            self._change.lose(lost)
            self._turn_into_loss()
        self._news.set()

    def break_off(self) -> None:
        """Nobody makes progress: let all park, and leave behind who does not."""
        if self._change is None:
            self._begin("loss")

    def tick(self) -> None:
        """What time alone brings about: joiners are taken in, or given up when they are never ready."""
        self._take_in_joiners()
        now = self._attempt.now()
        late = {s for s, one in self._crew.joining.items() if one.step is None and now - one.since > LOAD_S}
        if late:
            self._join_after = now + JOIN_PAUSE_S
            self._attempt.spawn(self._crew.tell_slots(late, _STOP))
            self._drop_joiners(late)

    def leave(self) -> None:
        """Drop the change under way: the worker group as a whole ends."""
        self._change = None
        if self._task is not None:
            self._task.cancel()
            self._task = None

    # --- facts

    def _take_in_joiners(self) -> None:
        """Let the others park for joiners that make a larger group; a change under way takes them in anyway."""
        present, ready = len(self._crew.present), len(self._crew.ready_joiners())
        if self._change is None and ready and self._attempt.plan.sizes.fit(present + ready) > present:
            self._ask("grow", "A worker is ready to join; the others take it in at the next step.", None)

    def _ask(self, reason: Asked, text: str, deadline_at: float | None) -> None:
        group = self._attempt.group
        if group is not None and not group.wants_to_stop:
            self._asked_for = reason
        self._attempt.request_stop(reason, text, deadline_at, is_in_place=True)

    def _begin(self, cause: Cause) -> None:
        attempt, crew = self._attempt, self._crew
        group = attempt.group
        if group is None or group.is_stopping or group.diverged or attempt.stop_reason or attempt.verdict:
            return
        change = Regrouping(
            attempt.generation,
            cause,
            attempt.now(),
            crew.in_order(),
            going=crew.going & crew.present,
            lasting=crew.lasting,
        )
        if cause == "loss":
            group.progress = group.progress.lose(change.began_at)
        self._change = change
        self._task = attempt.spawn(self._carry_out(change))

    def _turn_into_loss(self) -> None:
        group = self._attempt.group
        if self._change is not None and group is not None and self._change.cause != "loss":
            self._change.cause = "loss"
            group.progress = group.progress.lose(self._attempt.now())

    def _drop_joiners(self, slots: set[int]) -> None:
        for slot in slots:
            self._crew.joining.pop(slot, None)
        if self._change is not None and slots:
            self._change.lose(slots)
            self._news.set()

    # --- the task of one change

    async def _carry_out(self, change: Regrouping) -> None:
        """Form the next worker group out of those that are there."""
        patience_s = JOIN_S
        try:
            while self._change is change:
                # 1. Everybody parks; who is dead, frozen or hangs is lost.
                await self._gather(change)
                # 2. Nobody holds the state any more: only the storage has it.
                if change.is_hopeless:
                    self._restart()
                # They all hold it, and break at the same step every time.
                elif verdict := self._breaks.judge(frozenset(change.staying), self._newest_step(change)):
                    self._attempt.verdict = self._attempt.verdict or verdict
                    self._restart()
                # 3. Too few hold it: they wait for others, but not for ever.
                elif change.is_short(self._attempt.plan.sizes):
                    await self._wait_for_more(change)
                # 4. Ranks are dealt anew, and everybody learns its own.
                elif await self._form(change):
                    # 5. The new group works, or is dealt again.
                    await self._wait_until_joined(change, patience_s)
                    patience_s = min(JOIN_CAP_S, 2 * patience_s)
        except Exception:  # parked scripts must not wait for a task that is dead
            log.exception("a change in place failed; the worker group is started again")
            self._restart()

    async def _gather(self, change: Regrouping) -> None:
        """Return when everybody who goes on is parked."""
        loop = asyncio.get_running_loop()
        patience_s = self._attempt.pace.patience_s
        began, told = loop.time(), ""
        while self._change is change:
            self._news.clear()
            if change.cause == "loss" and told != "part":
                began, told = loop.time(), "part"
                self._parted = change.generation
                await self._lose_dead(change)
                part = {"type": "part", "generation": change.generation}
                self.lose(await self._crew.tell_slots(change.missing, part))
            self._welcome_joiners(change)
            if not change.missing:
                return
            if loop.time() - began > patience_s:
                self._give_up(change)
            elif not await self._hear_news(_QUIET_S):
                await self._lose_dead(change)

    def _newest_step(self, change: Regrouping) -> int:
        return max(self._attempt.progress.step or 0, *change.parked.values(), 0)

    def _give_up(self, change: Regrouping) -> None:
        """Some do not park in time: after an agreement look for the cause, after a loss go on without them."""
        if change.cause != "loss":
            self._turn_into_loss()
            return
        hanging = set(change.missing)
        self._attempt.spawn(self._crew.tell_slots(hanging, _STOP))
        self.lose(hanging)

    def _welcome_joiners(self, change: Regrouping) -> None:
        for slot, step in self._crew.ready_joiners().items():
            if slot in change.parked:
                continue
            change.welcome(slot)
            change.park(slot, step)
            if self._crew.members[slot].is_lasting:
                change.lasting.add(slot)

    async def _wait_for_more(self, change: Regrouping) -> None:
        attempt = self._attempt
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + attempt.plan.regroup_s
        attempt.account.size({}, state="starting")
        while self._change is change and change.is_short(attempt.plan.sizes):
            self._news.clear()
            if loop.time() >= give_up_at:
                attempt.give_up_waiting()
                self._restart()
            elif not await self._hear_news(_QUIET_S):
                await self._lose_dead(change)
            self._welcome_joiners(change)

    async def _form(self, change: Regrouping) -> bool:
        """Deal ranks and tell everybody; False when somebody was lost meanwhile."""
        attempt, crew = self._attempt, self._crew
        team = change.team(attempt.plan.sizes)
        if not team:
            return False
        # An agreement that was under way ends with its group.
        released, port = await asyncio.gather(
            crew.tell_slots(team, {"type": "release", "token": 0}), crew.free_port(team[0])
        )
        # Parked workers that do not answer are gone or frozen.
        self.lose(released | ({team[0]} if port is None else set()))
        if self._change is not change or port is None or team != change.team(attempt.plan.sizes):
            return False
        seats = crew.seats(team)
        dealt = deal(seats)
        out = crew.take_seats(dealt)
        attempt.follow(len(dealt))
        self._joined.clear()
        change.try_again(attempt.generation, team)
        attempt.spawn(crew.tell_slots(out, _STOP))
        silent = await crew.instruct(
            {one.slot: _regroup_message(one, attempt.generation, seats[0].address, port) for one in dealt}
        )
        self.lose(silent)
        return self._change is change

    async def _wait_until_joined(self, change: Regrouping, patience_s: float) -> None:
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + patience_s
        team = set(self._crew.ranks)
        while self._change is change:
            self._news.clear()
            # Who was lost, or parked again, after all had joined is for the next try.
            if change.parked or change.leaving & team or loop.time() > give_up_at:
                self._turn_into_loss()
                return
            if team <= self._joined:
                self._finish(change, len(team))
            elif not await self._hear_news(_QUIET_S):
                await self._lose_dead(change)

    def _finish(self, change: Regrouping, size: int) -> None:
        attempt = self._attempt
        self._change = None
        pause_s = round(attempt.now() - change.began_at, 3)
        attempt.account.event(
            "worker_group.regrouped",
            f"{_so_many(size)} on in place, {pause_s:.2f} s after the others stopped ({change.cause}).",
            world_size=size,
            generation=attempt.generation,
            cause=change.cause,
            pause_s=pause_s,
        )
        attempt.account.size(self._crew.workers, state="running")

    def _restart(self) -> None:
        """End this worker group as a whole; the next one, if any, reads the storage."""
        self._change = None
        self._attempt.verdict = self._attempt.verdict or self._attempt.hang
        self._attempt.end_group()

    async def _lose_dead(self, change: Regrouping) -> None:
        dead = await self._crew.find_dead(change.staying)
        if self._change is change:
            self.lose(dead)

    async def _hear_news(self, timeout_s: float) -> bool:
        """Wait for news since it was cleared; False when there was none."""
        try:
            await asyncio.wait_for(self._news.wait(), timeout_s)
        except TimeoutError:
            return False
        return True


_STOP: channel.Message = {"type": "stop", "at_once": True}


def _regroup_message(one: Deal, generation: int, address: str, port: int) -> channel.Message:
    return {
        "type": "regroup",
        "generation": generation,
        "rank": one.rank,
        "world_size": one.world_size,
        "local_rank": one.local_rank,
        "local_world_size": one.local_world_size,
        "node_rank": one.node_rank,
        "num_nodes": one.num_nodes,
        "master_addr": address,
        "master_port": port,
    }


def _so_many(workers: int) -> str:
    return "1 worker goes" if workers == 1 else f"{workers} workers go"
