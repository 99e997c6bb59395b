"""Changes the worker group of an attempt in place: the scripts stay, with their state, and get new ranks.

Decisions about a change are in `regrouping.py`, and `phases.py` decides whether one may begin and what ends it; here it
is carried out, by one task per change on the driver's event loop.  Calls from outside note facts and wake the task.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from remora.script import channel
from trainers.driver.attempt import Attempt
from trainers.driver.kills import Kills
from trainers.driver.phases import Phase
from trainers.driver.regrouping import Asked, Cause, RankAssignment, Regrouping, assign_ranks
from trainers.driver.repeated_failures import RepeatedFailures
from trainers.ray_train import Member

log = logging.getLogger(__name__)

#: Seconds without messages after which workers are checked for being dead.
_QUIET_S = 1.0
#: Seconds in which a new group has to work before ranks are assigned again; doubled with every try, up to the second.
JOIN_S, JOIN_CAP_S = 30.0, 3600.0
#: Seconds in which the script of a worker that is to join has to be ready.
LOAD_S = 600.0
#: Seconds until another worker is started after one whose script failed before it joined.
JOIN_PAUSE_S = 60.0
#: Types of messages of scripts and supervisors that `InPlace.receive` takes.
MEMBERSHIP_MESSAGES = frozenset({"elastic", "parted", "joined", "killed"})


class InPlace:
    """The change under way, if there is one."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self._group_members = attempt.group_members
        attempt.cancel_change = self._cancel
        self._change: Regrouping | None = None
        self._task: asyncio.Task[Any] | None = None
        #: Slots whose new group works.
        self._joined: set[int] = set()
        #: Set by any message or loss.
        self._news = asyncio.Event()
        #: Why the scripts were last asked to park.
        self._asked_for: Asked = "grow"
        self._join_after = 0.0
        self._kills = Kills()
        self._failures = RepeatedFailures()
        #: Number of the newest worker group whose scripts were asked to park.
        self._parted = 0

    @property
    def is_changing(self) -> bool:
        """True while a change is under way."""
        return self._attempt.lifecycle.phase.is_changing

    # --- messages of scripts

    def receive(self, slot: int, message: channel.Message) -> None:
        """A script can regroup, is parked, works in its new group or was killed; other messages are dropped."""
        try:
            match message["type"]:
                case "elastic":
                    self._group_members.elastic.add(slot)
                case "joined" if int(message["generation"]) == self._attempt.generation:
                    self._joined.add(slot)
                case "parted":
                    why = str(message.get("why", ""))
                    self._park(slot, int(message["generation"]), int(message["step"]), why)
                case "killed":
                    self._note_kill(slot)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            text = f"a message of type {message['type']!r} was not understood and dropped: {error!r}"[:500]
            self._attempt.account.line(self._group_members.ranks.get(slot, -1), "remora", text)
        self._news.set()

    def note_exit(self, slot: int) -> None:
        """A command is over; one that was to join is not waited for."""
        if slot in self._group_members.joining:
            self._join_after = self._attempt.now() + JOIN_PAUSE_S
            self._drop_joiners({slot})
        self._news.set()

    def _note_kill(self, slot: int) -> None:
        """Go on without a script that got SIGKILL, where others hold the state and it does not happen too often."""
        attempt, group_members = self._attempt, self._group_members
        others = group_members.present - {slot}
        if (
            slot not in group_members.present
            or not others
            or not others <= group_members.elastic
            or not self._may_lose
        ):
            return
        rank = group_members.ranks[slot]
        if not self._kills.tolerate(slot, rank, attempt.progress.step or 0, attempt.now()):
            return
        text = f"The command of rank {rank} got SIGKILL, as from a kernel without memory; the others go on without it."
        attempt.account.event("worker.killed", text, rank=rank)
        self._go_on_without({slot})

    def _park(self, slot: int, generation: int, step: int, why: str) -> None:
        attempt, group_members = self._attempt, self._group_members
        if slot in group_members.joining:
            group_members.joining[slot].step = step
            self._ask_to_admit_joiners()
            return
        # Messages of workers that were left behind, or about a group that was replaced, do not count.
        if slot not in group_members.present or generation != attempt.generation:
            return
        is_planned = why == "planned" and attempt.group is not None and attempt.group.wants_to_stop
        # Before it works, a group may fail because a member is slow; and one asked to park reports nothing new.
        if not is_planned and slot in self._joined and self._parted < generation:
            self._failures.note(group_members.ranks[slot], why)
        if self._change is None:
            self._begin(self._asked_for if is_planned else "loss")
        elif not is_planned:
            self._turn_into_loss()
        if self._change is not None:
            self._change.park(slot, step)

    # --- calls of Ray Train's controller

    def absorb(self, failed: set[int], dead: set[int], nodes_lost: set[int]) -> set[int]:
        """Take note of failed slots; returns those that the worker group goes on without, in place.

        `dead` are slots whose process is dead, `nodes_lost` those whose node is; all other failures are the script's.
        """
        attempt, group_members = self._attempt, self._group_members
        gone = dead | nodes_lost
        lost, staying = gone & group_members.present, group_members.present - gone
        if attempt.group is None or attempt.lifecycle.is_final:
            return set()
        if ranks := self._kills.discount(gone):
            # Their scripts were the first of their nodes to die.
            self._report_lost(ranks)
        if (
            not staying
            or not staying <= group_members.elastic
            or not failed <= gone | group_members.departed | group_members.unranked
        ):
            return set()
        # Ranks that have ended cannot take part in another group; and a group that is being ended needs none.
        if lost and not self._may_lose:
            return set()
        if (failed - gone) & group_members.joining.keys():
            self._join_after = attempt.now() + JOIN_PAUSE_S
        self.lose(gone)
        self._drop_joiners(failed & group_members.joining.keys())
        group_members.forget(failed)
        return failed

    @property
    def _may_lose(self) -> bool:
        """True while the worker group can go on without some of it: no rank has ended, and nothing ends it."""
        attempt = self._attempt
        if attempt.group is None or attempt.lifecycle.phase is Phase.STOPPING:
            return False
        return not attempt.group.is_stopping and not attempt.group.diverged and not attempt.ended_slots

    def may_grow(self) -> bool:
        """True when workers may be started to join the present worker group."""
        attempt, group_members = self._attempt, self._group_members
        if attempt.group is None or attempt.lifecycle.is_final:
            return False
        if group_members.joining or attempt.now() < self._join_after or not group_members.is_elastic:
            return False
        if self._change is not None:
            return self._change.is_short(attempt.plan.sizes)
        return attempt.may_grow()

    def expect(self, members: list[Member]) -> int:
        """Workers are about to be started, to join; returns the number of the present worker group.

        Raises TimeoutError when it is over meanwhile.
        """
        attempt = self._attempt
        if attempt.group is None or attempt.ended_slots or attempt.lifecycle.is_final:
            raise TimeoutError("the worker group ended before others could join it")
        self._group_members.expect(members, attempt.now())
        return attempt.generation

    def expect_no_more(self, members: list[Member]) -> None:
        """They could not be started after all."""
        self._group_members.forget({member.slot for member in members})

    def drain(self, ray_node_ids: set[str], deadline_at: float | None) -> None:
        """These nodes go at that time: park and go on without them, or stop at a checkpoint if too few would stay."""
        attempt, group_members = self._attempt, self._group_members
        draining = {
            slot for slot in group_members.present if group_members.by_slot[slot].ray_node_id in ray_node_ids
        }
        if not draining:
            return
        text = "A node of this job is going away; the worker group goes on without it after a checkpoint."
        if not group_members.is_elastic or not attempt.plan.sizes.fit(len(group_members.present - draining)):
            attempt.request_stop("drain", text, deadline_at)
            return
        group_members.draining |= draining
        if self._change is not None:
            self._change.draining |= draining
            return
        text = "A node of this job is going away; the worker group goes on without it."
        self._ask("drain", text, deadline_at)

    def lose(self, slots: set[int]) -> None:
        """These are gone for good; the others go on without them."""
        group_members = self._group_members
        self._drop_joiners(slots & group_members.joining.keys())
        lost = slots & group_members.present
        if not lost:
            return
        self._report_lost(sorted(group_members.ranks_of(lost)))
        self._go_on_without(lost)

    def _report_lost(self, ranks: list[int]) -> None:
        names = ", ".join(map(str, ranks))
        self._attempt.account.event("node.lost", f"The workers of rank {names} were lost.", ranks=ranks)

    def _go_on_without(self, lost: set[int]) -> None:
        self._group_members.leave(lost)
        if self._change is None:
            self._begin("loss")
        else:
            self._change.lose(lost)
            self._turn_into_loss()
        self._news.set()

    def park_all(self) -> None:
        """No step ends: let all park, and leave behind those that do not."""
        if self._change is None:
            self._begin("loss")

    def tick(self) -> None:
        """What follows from time alone: joiners are admitted, or given up when they are never ready."""
        self._ask_to_admit_joiners()
        now = self._attempt.now()
        late = {
            s
            for s, one in self._group_members.joining.items()
            if one.step is None and now - one.since > LOAD_S
        }
        if late:
            self._join_after = now + JOIN_PAUSE_S
            self._attempt.spawn(self._group_members.send_to(late, _STOP))
            self._drop_joiners(late)

    def _cancel(self) -> None:
        """Drop the change under way: the worker group as a whole ends."""
        self._change = None
        # When the task of the change itself caused this, it returns by itself.
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()
        self._task = None

    # --- noting facts

    def _ask_to_admit_joiners(self) -> None:
        """Let the others park for joiners that make a larger group; a change under way admits them anyway."""
        present, ready = len(self._group_members.present), len(self._group_members.ready_joiners())
        if self._change is None and ready and self._attempt.plan.sizes.fit(present + ready) > present:
            self._ask("grow", "A worker is ready to join; the others take it in at the next step.", None)

    def _ask(self, reason: Asked, text: str, deadline_at: float | None) -> None:
        group = self._attempt.group
        if group is not None and not group.wants_to_stop:
            self._asked_for = reason
        self._attempt.request_stop(reason, text, deadline_at, is_in_place=True)

    def _begin(self, cause: Cause) -> None:
        attempt, group_members = self._attempt, self._group_members
        group = attempt.group
        if group is None or group.diverged or not attempt.lifecycle.park():
            return
        change = Regrouping(
            attempt.generation,
            cause,
            attempt.now(),
            group_members.in_order(),
            draining=group_members.draining & group_members.present,
            on_demand=group_members.on_demand,
        )
        if cause == "loss":
            group.progress = group.progress.lose(change.began_at)
        group.park()
        self._change = change
        self._task = attempt.spawn(self._carry_out(change))

    def _turn_into_loss(self) -> None:
        group = self._attempt.group
        if self._change is not None and group is not None and self._change.cause != "loss":
            self._change.cause = "loss"
            group.progress = group.progress.lose(self._attempt.now())

    def _drop_joiners(self, slots: set[int]) -> None:
        for slot in slots:
            self._group_members.joining.pop(slot, None)
        if self._change is not None and slots:
            self._change.lose(slots)
            self._news.set()

    # --- the task of one change

    async def _carry_out(self, change: Regrouping) -> None:
        """Form the next worker group out of those that are there."""
        patience_s = JOIN_S
        try:
            while self._change is change:
                self._attempt.lifecycle.park()
                # 1. All workers park; those that are dead, frozen or hang are lost.
                await self._wait_until_parked(change)
                # 2. No worker holds the state any more: only the storage has it.
                if change.is_hopeless:
                    self._attempt.restart_group()
                # They all hold it, and fail at the same step every time.
                elif verdict := self._failures.judge(frozenset(change.staying), self._newest_step(change)):
                    self._attempt.conclude(verdict)
                # 3. Too few hold it: they wait for others, but not for ever.
                elif change.is_short(self._attempt.plan.sizes):
                    await self._wait_for_more(change)
                # 4. Ranks are assigned again, and every worker gets its own.
                elif await self._form(change):
                    # 5. The new group works, or ranks are assigned again.
                    await self._wait_until_joined(change, patience_s)
                    patience_s = min(JOIN_CAP_S, 2 * patience_s)
        except Exception:  # parked scripts must not wait for a task that is dead
            log.exception("a change in place failed; the worker group is started again")
            self._attempt.restart_group()

    async def _wait_until_parked(self, change: Regrouping) -> None:
        """Return when all workers that go on are parked."""
        loop = asyncio.get_running_loop()
        patience_s = self._attempt.pace.patience_s
        began, sent = loop.time(), ""
        while self._change is change:
            self._news.clear()
            if change.cause == "loss" and sent != "part":
                began, sent = loop.time(), "part"
                self._parted = change.generation
                await self._lose_dead(change)
                part = {"type": "part", "generation": change.generation}
                self.lose(await self._group_members.send_to(change.missing, part))
            self._admit_joiners(change)
            if not change.missing:
                return
            if loop.time() - began > patience_s:
                self._give_up(change)
            elif not await self._wait_for_news(_QUIET_S):
                await self._lose_dead(change)

    def _newest_step(self, change: Regrouping) -> int:
        return max(self._attempt.progress.step or 0, *change.parked.values(), 0)

    def _give_up(self, change: Regrouping) -> None:
        """Some do not park in time: after an agreement look for the cause, after a loss go on without them."""
        if change.cause != "loss":
            self._turn_into_loss()
            return
        hanging = set(change.missing)
        self._attempt.spawn(self._group_members.send_to(hanging, _STOP))
        self.lose(hanging)

    def _admit_joiners(self, change: Regrouping) -> None:
        for slot, step in self._group_members.ready_joiners().items():
            if slot in change.parked:
                continue
            change.admit(slot)
            change.park(slot, step)
            if self._group_members.by_slot[slot].is_on_demand:
                change.on_demand.add(slot)

    async def _wait_for_more(self, change: Regrouping) -> None:
        attempt = self._attempt
        attempt.lifecycle.wait(attempt.now())
        attempt.account.size({}, state="starting")
        while self._change is change and change.is_short(attempt.plan.sizes):
            self._news.clear()
            if not attempt.gives_up_waiting() and not await self._wait_for_news(_QUIET_S):
                await self._lose_dead(change)
            self._admit_joiners(change)

    async def _form(self, change: Regrouping) -> bool:
        """Assign ranks and send them to the workers; False when a worker was lost meanwhile."""
        attempt, group_members = self._attempt, self._group_members
        next_members = change.next_members(attempt.plan.sizes)
        if not next_members:
            return False
        # An agreement that was under way ends with its group.
        released, port = await asyncio.gather(
            group_members.send_to(next_members, {"type": "release", "token": 0}),
            group_members.free_port(next_members[0]),
        )
        # Parked workers that do not answer are gone or frozen.
        self.lose(released | ({next_members[0]} if port is None else set()))
        if (
            self._change is not change
            or port is None
            or next_members != change.next_members(attempt.plan.sizes)
        ):
            return False
        locations = group_members.locations(next_members)
        assigned = assign_ranks(locations)
        out = group_members.apply_ranks(assigned)
        attempt.follow(len(assigned))
        attempt.lifecycle.assign_ranks()
        self._joined.clear()
        change.try_again(attempt.generation, next_members)
        attempt.spawn(group_members.send_to(out, _STOP))
        silent = await group_members.instruct(
            {
                one.slot: _regroup_message(one, attempt.generation, locations[0].address, port)
                for one in assigned
            }
        )
        self.lose(silent)
        return self._change is change

    async def _wait_until_joined(self, change: Regrouping, patience_s: float) -> None:
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + patience_s
        next_members = set(self._group_members.ranks)
        while self._change is change:
            self._news.clear()
            # Workers that were lost, or parked again, after all had joined are for the next try.
            if change.parked or change.leaving & next_members or loop.time() > give_up_at:
                self._turn_into_loss()
                return
            if next_members <= self._joined:
                self._finish(change, len(next_members))
            elif not await self._wait_for_news(_QUIET_S):
                await self._lose_dead(change)

    def _finish(self, change: Regrouping, size: int) -> None:
        attempt = self._attempt
        self._change = None
        attempt.lifecycle.join()
        if attempt.group is not None:
            attempt.group.join()
        pause_s = round(attempt.now() - change.began_at, 3)
        attempt.account.event(
            "worker_group.regrouped",
            f"{_count_of(size)} on in place, {pause_s:.2f} s after the others stopped ({change.cause}).",
            world_size=size,
            generation=attempt.generation,
            cause=change.cause,
            pause_s=pause_s,
        )
        attempt.account.size(self._group_members.workers, state="running")

    async def _lose_dead(self, change: Regrouping) -> None:
        dead = await self._group_members.find_dead(change.staying)
        if self._change is change:
            self.lose(dead)

    async def _wait_for_news(self, timeout_s: float) -> bool:
        """Wait for news since it was cleared; False when there was none."""
        try:
            await asyncio.wait_for(self._news.wait(), timeout_s)
        except TimeoutError:
            return False
        return True


_STOP: channel.Message = {"type": "stop", "at_once": True}


def _regroup_message(one: RankAssignment, generation: int, address: str, port: int) -> channel.Message:
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


def _count_of(workers: int) -> str:
    return "1 worker goes" if workers == 1 else f"{workers} workers go"
