"""Changes the worker group of an attempt in place: the scripts stay, with their state, and get new ranks.

How a change goes on is decided in `change.py`, and `phases.py` decides whether one may begin and what ends it.  Here
messages, losses and time become events of the change, and its effects are carried out, on the driver's event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import replace
from typing import Any, TypeVar

from remora.script import channel
from remora.spec.worker_sizes import WorkerSizes
from remora.states import EndReason
from trainers.driver.attempt import Attempt
from trainers.driver.change import (
    AssignRanks,
    Change,
    ChangeState,
    CountLoss,
    Effect,
    Effects,
    End,
    FindDead,
    Finish,
    LeaveBehind,
    Limits,
    Prepare,
    ReportShort,
    SendPark,
)
from trainers.driver.durations import ScriptDurations
from trainers.driver.group import MOST_OF_A_CAUSE, MOST_WORDS
from trainers.driver.kills import Kills
from trainers.driver.phases import Phase
from trainers.driver.regrouping import Cause, RankAssignment, Regrouping, assign_ranks
from trainers.driver.repeated_failures import RepeatedFailures
from trainers.driver.verdict import Verdict
from trainers.ray_train import Member

log = logging.getLogger(__name__)
T = TypeVar("T")

#: Seconds in which the script of a worker that is to join has to be ready.
LOAD_S = 600.0
#: Seconds until another worker is started after one whose script failed before it joined.
JOIN_PAUSE_S = 60.0
#: Types of messages of scripts and supervisors that `InPlace.receive` takes.
MEMBERSHIP_MESSAGES = frozenset({"elastic", "parted", "joined", "killed", "miscomputed"})
#: Seconds until another worker is started after one on a node that is sick.
SICK_PAUSE_S = 5.0


class InPlace:
    """The change under way, if there is one."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self._group_members = attempt.group_members
        self._join_after = 0.0
        self._kills = Kills()
        self._broken_collectives = Kills()
        #: The worker group in which collectives last failed, and whether that was tolerated.
        self._incident = (-1, False)
        self._failures = RepeatedFailures()
        #: The worker group whose workers could not say which of them computes wrongly.
        self._doubted_in = -1
        #: Of the newest change.
        self._durations = ScriptDurations()
        #: The sizes have changed, and the worker group may be too large for them.
        self._is_resized = False

    @property
    def is_changing(self) -> bool:
        """True while a change is under way."""
        return self._change is not None

    @property
    def _change(self) -> Change | None:
        return self._attempt.lifecycle.change

    # --- messages of scripts

    def receive(self, slot: int, message: channel.Message) -> None:
        """A script can regroup, is parked, works in its new group or was killed; other messages are dropped."""
        try:
            match message["type"]:
                case "elastic":
                    self._group_members.elastic.add(slot)
                case "joined" if int(message["generation"]) == self._attempt.generation:
                    self._durations.join(message)
                    self._happen(lambda change, now: change.join(slot, now))
                case "parted":
                    self._park(slot, int(message["generation"]), int(message["step"]), message)
                case "killed":
                    self._note_kill(slot, message)
                case "miscomputed" if int(message["generation"]) == self._attempt.generation:
                    note = self._note_doubt if message.get("is_known") is False else self._note_wrong
                    note(slot, {int(rank) for rank in message["ranks"]}, str(message["text"]))
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            text = f"a message of type {message['type']!r} was not understood and dropped: {error!r}"[:500]
            self._attempt.account.line(self._group_members.ranks.get(slot, -1), "remora", text)

    def note_start(self, slot: int, message: channel.Message) -> None:
        """The command of a worker was started."""
        if (joiner := self._group_members.joining.get(slot)) is not None:
            joiner.started_at, joiner.is_warm = self._attempt.now(), message.get("is_warm") is True

    def note_failure(self, slot: int, message: channel.Message) -> None:
        """A command is over: where its GPU or a collective failed, others that hold the state go on."""
        attempt, group_members = self._attempt, self._group_members
        group = attempt.group
        if group is None or slot not in group_members.present or message.get("stopped"):
            return
        rank = group_members.ranks[slot]
        why = group.gpu_failure_of(rank)
        if message.get("exit_code") == 0:
            return
        if why is None:
            self._note_collectives(slot, group.collective_failure_of(rank, message))
            return
        if not attempt.plan.resources.get("GPU"):
            # It has none of a node's GPUs that could fail.
            group.forget_gpu_failure(rank)
            return
        if not self._call_sick({slot}):
            group.forget_gpu_failure(rank)
            return
        address = group_members.by_slot[slot].address
        text = f"the command of rank {rank} failed: {why}; its node {address} is drained"
        attempt.account.event("worker.gpu_failed", text, rank=rank, address=address)
        if self._may_lose({slot}):
            self._go_on_without({slot})

    def note_exit(self, slot: int) -> None:
        """A command is over; one that was to join is not waited for."""
        if slot in self._group_members.joining:
            self._join_after = self._attempt.now() + JOIN_PAUSE_S
            self.lose({slot})

    def _note_collectives(self, slot: int, why: str | None) -> None:
        """A collective of a rank could not go on, which is not its script's fault unless it happens too often."""
        attempt, group_members = self._attempt, self._group_members
        rank = group_members.ranks[slot]
        if why is None or attempt.group is None:
            return
        if self._incident[0] != attempt.generation:
            # What follows in the same worker group has the same cause.
            step = attempt.progress.step or 0
            tolerated = self._broken_collectives.tolerate(slot, rank, step, attempt.now())
            self._incident = attempt.generation, tolerated
        if not self._incident[1]:
            attempt.group.forget_collective_failure(rank)
            return
        text = f"the command of rank {rank} ended: {why}; no retry is used up"
        attempt.account.event("worker.collectives_failed", text, rank=rank)
        if self._may_lose({slot}):
            self._go_on_without({slot})

    def _note_kill(self, slot: int, message: channel.Message) -> None:
        """Go on without a script that got SIGKILL, where others hold the state and it does not happen too often."""
        attempt, group_members = self._attempt, self._group_members
        if slot not in group_members.present:
            return
        if not group_members.elastic & group_members.present and not message.get("stuck"):
            self._start_again_after_kill(slot)
            return
        if not self._may_lose({slot}):
            return
        if stuck := message.get("stuck"):
            self._note_collectives(slot, str(stuck)[:MOST_WORDS])
            return
        rank = group_members.ranks[slot]
        if not self._kills.tolerate(slot, rank, attempt.progress.step or 0, attempt.now()):
            return
        text = f"The command of rank {rank} got SIGKILL, as from a kernel without memory; the others go on without it."
        attempt.account.event("worker.killed", text, rank=rank)
        self._go_on_without({slot})

    def _start_again_after_kill(self, slot: int) -> None:
        """Of scripts that own their training none can go on without the others: all begin again, where that helps."""
        attempt = self._attempt
        rank = self._group_members.ranks[slot]
        if attempt.group is not None:
            attempt.group.killed.add(rank)
        if attempt.start_again(slot):
            text = (
                f"The command of rank {rank} got SIGKILL, as from a kernel without memory; the workers start again"
                " from the newest checkpoint."
            )
            attempt.account.event("worker.killed", text, rank=rank)

    def _note_wrong(self, slot: int, ranks: set[int], text: str) -> None:
        """Go on without workers of which another one says that they compute wrongly; their nodes get no other ones."""
        attempt, group_members = self._attempt, self._group_members
        wrong = group_members.slots_of(ranks) & group_members.present
        if not wrong or slot in wrong or slot not in group_members.present or not self._verifies:
            return
        text = text[:MOST_OF_A_CAUSE]
        if not self._may_lose(wrong) or not self._call_sick(wrong):
            attempt.conclude(Verdict(goes_on=False, end_reason=EndReason.DIVERGED, message=text))
            return
        for one in group_members.in_order():
            if one in wrong:
                rank, address = group_members.ranks[one], group_members.by_slot[one].address
                said = f"{text}; its node {address} is drained"
                attempt.account.event("worker.miscomputed", said, rank=rank, address=address)
        attempt.spawn(group_members.send_to(wrong, _STOP))
        self._go_on_without(wrong)

    def _note_doubt(self, slot: int, ranks: set[int], text: str) -> None:
        """Name the nodes of which one computes wrongly, once for each worker group; none of them is drained."""
        attempt, group_members = self._attempt, self._group_members
        doubted = group_members.slots_of(ranks) & group_members.present
        is_news = self._doubted_in != attempt.generation
        if not doubted or slot not in group_members.present or not self._verifies or not is_news:
            return
        self._doubted_in = attempt.generation
        slots = [one for one in group_members.in_order() if one in doubted]
        addresses = sorted({group_members.by_slot[one].address for one in slots})
        names = ", ".join(addresses)
        named = f"its node is {names}" if len(addresses) == 1 else f"their nodes are {names}"
        attempt.account.event(
            "worker.doubted",
            f"{text[:MOST_OF_A_CAUSE]}; {named}, and none is drained",
            ranks=sorted(group_members.ranks[one] for one in slots),
            addresses=addresses,
        )

    @property
    def _verifies(self) -> bool:
        """The job asks for checks of what its workers compute."""
        return "REMORA_VERIFY_EVERY" in self._attempt.plan.elastic_variables

    def check_nodes(self, members: Iterable[Member]) -> None:
        """Raise TimeoutError where one of the workers of a new group is on a node that is sick."""
        if any(member.ray_node_id in self._attempt.sick for member in members):
            raise TimeoutError("the node of a new worker is sick, and is being drained")

    def _call_sick(self, slots: set[int]) -> bool:
        """The nodes of these slots are sick; False when the attempt has said so too often."""
        return self._attempt.sick.add(self._group_members.by_slot[one].ray_node_id for one in slots)

    def _park(self, slot: int, generation: int, step: int, message: channel.Message) -> None:
        attempt, group_members = self._attempt, self._group_members
        if slot in group_members.joining:
            self._report_ready(slot)
            group_members.joining[slot].step = step
            self._admit_joiners()
            self._ask_to_admit_joiners()
            return
        # Messages of workers that were left behind, or about a group that was replaced, do not count.
        if slot not in group_members.present or generation != attempt.generation or attempt.group is None:
            return
        why = str(message.get("why", ""))
        is_planned = why == "planned"
        if not is_planned:
            self._failures.note(slot, group_members.ranks[slot], why)
        if self._change is None:
            self._begin((attempt.group.parks_to if is_planned else None) or "loss")
        self._durations.park(message)
        self._happen(lambda change, now: change.park(slot, step, now, is_planned=is_planned))

    def _report_ready(self, slot: int) -> None:
        """The script of a worker that is to join has loaded; reported once for each."""
        joiner, member = self._group_members.joining[slot], self._group_members.by_slot[slot]
        if joiner.step is not None:
            return
        now = self._attempt.now()
        started_at = now if joiner.started_at is None else joiner.started_at
        self._attempt.account.event(
            "worker.ready",
            f"A worker on {member.address} has loaded its script, and can join.",
            address=member.address,
            actor_s=round(member.actor_s, 3),
            command_s=round(started_at - joiner.since, 3),
            load_s=round(now - started_at, 3),
            is_warm=joiner.is_warm,
        )

    # --- calls of Ray Train's controller

    def absorb(self, failed: set[int], dead: set[int], nodes_lost: set[int]) -> set[int]:
        """Take note of failed slots; returns those that the worker group goes on without, in place.

        `dead` are slots whose process is dead, `nodes_lost` those whose node is; all other failures are the script's.
        """
        attempt, group_members = self._attempt, self._group_members
        gone = dead | nodes_lost
        if attempt.group is None or attempt.lifecycle.is_final:
            return set()
        if ranks := self._kills.discount(gone):
            # Their scripts were the first of their nodes to die.
            self._report_lost(ranks)
        attempt.restarts.discount(gone, attempt.now())
        # Whatever else has failed is the script's own fault; and some have to be left that can go on.
        if not failed <= gone | group_members.departed | group_members.unranked or not self._may_lose(gone):
            return set()
        if (failed - gone) & group_members.joining.keys():
            self._join_after = attempt.now() + JOIN_PAUSE_S
        self.lose(gone | failed & group_members.joining.keys())
        group_members.forget(failed)
        return failed

    def _may_lose(self, slots: set[int]) -> bool:
        """True while the worker group can go on without these slots, if they are of it."""
        attempt, group_members = self._attempt, self._group_members
        staying = group_members.present - slots
        if not staying or not staying <= group_members.elastic:
            return False
        if staying == group_members.present:
            return True
        # Ranks that have ended cannot take part in another group; and a group that is being ended needs none.
        return self._may_change and not attempt.ended_slots

    @property
    def _may_change(self) -> bool:
        """True while the worker group is there to stay, and its workers hold the same weights."""
        group, phase = self._attempt.group, self._attempt.lifecycle.phase
        return group is not None and not group.diverged and phase is not Phase.STOPPING

    def may_grow(self) -> bool:
        """True when workers may be started to join the present worker group."""
        attempt, group_members = self._attempt, self._group_members
        if group_members.joining or attempt.now() < self._join_after or not group_members.is_elastic:
            return False
        if self._change is not None:
            return self._change.state is ChangeState.SHORT
        return attempt.may_grow()

    def expect(self, members: list[Member]) -> int:
        """Workers are about to be started, to join; returns the number of the present worker group.

        Raises TimeoutError when it is over meanwhile.
        """
        attempt = self._attempt
        if attempt.group is None or attempt.ended_slots or attempt.lifecycle.is_final:
            raise TimeoutError("the worker group ended before others could join it")
        try:
            self.check_nodes(members)
        except TimeoutError:
            self._join_after = attempt.now() + SICK_PAUSE_S
            raise
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
            self._happen(lambda change, now: change.drain(draining, now))
            return
        text = "A node of this job is going away; the worker group goes on without it."
        attempt.request_stop("drain", text, deadline_at, is_in_place=True)

    def resize(self, sizes: WorkerSizes) -> None:
        """The worker group may have other sizes from now on; one that is too large becomes smaller."""
        attempt = self._attempt
        attempt.plan = replace(attempt.plan, sizes=sizes)
        self._is_resized = True
        self._shrink()

    def _shrink(self) -> None:
        """Ask for a step at which the workers beyond the largest size leave, once for each new size."""
        attempt, group_members = self._attempt, self._group_members
        present, most = len(group_members.present), attempt.plan.sizes.max
        if attempt.group is None or present <= most:
            self._is_resized = False
        elif self._is_resized and attempt.steady_group is not None:
            self._is_resized = False
            text = f"The job may have {most} workers at most from now on; the others leave."
            attempt.request_stop("resize", text, None, is_in_place=group_members.is_elastic)

    def lose(self, slots: set[int]) -> None:
        """These are gone for good; the others go on without them."""
        group_members = self._group_members
        for slot in slots & group_members.joining.keys():
            del group_members.joining[slot]
        if lost := slots & group_members.present:
            self._report_lost(sorted(group_members.ranks_of(lost)))
        self._go_on_without(slots)

    def _report_lost(self, ranks: list[int]) -> None:
        names = ", ".join(map(str, ranks))
        self._attempt.account.event("node.lost", f"The workers of rank {names} were lost.", ranks=ranks)

    def _go_on_without(self, slots: set[int]) -> None:
        lost = slots & self._group_members.present
        self._group_members.leave(lost)
        if lost and self._change is None:
            self._begin("loss")
        self._happen(lambda change, now: change.lose(slots, now))

    def park_all(self) -> None:
        """No step ends: let all park, and leave behind those that do not."""
        self._begin("loss")

    def tick(self) -> None:
        """What follows from time alone, for a change and for joiners, which are ended when they are never ready."""
        self._happen(lambda change, now: change.tick(now))
        if self._is_resized:
            self._shrink()
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
            self.lose(late)

    # --- what follows from them

    def _ask_to_admit_joiners(self) -> None:
        """Let the others park for joiners that make a larger group; a change under way admits them anyway."""
        attempt, present = self._attempt, len(self._group_members.present)
        ready = len(self._group_members.ready_joiners())
        if self._change is None and ready and attempt.plan.sizes.fit(present + ready) > present:
            text = "A worker is ready to join; the others take it in at the next step."
            attempt.request_stop("grow", text, None, is_in_place=True)

    def _begin(self, cause: Cause) -> None:
        attempt, group_members = self._attempt, self._group_members
        group, plan = attempt.group, attempt.plan
        if group is None or not self._may_change:
            return
        regrouping = Regrouping(
            attempt.generation,
            cause,
            attempt.now(),
            group_members.in_order(),
            draining=group_members.draining & group_members.present,
            on_demand=group_members.on_demand,
        )
        limits = Limits(sizes=plan.sizes, park_s=attempt.pace.patience_s, regroup_s=plan.regroup_s)
        if attempt.lifecycle.begin_change(Change(regrouping, limits, self._failures)):
            self._durations = ScriptDurations()
            group.park()
            self._happen(lambda change, now: change.begin(now))
            self._admit_joiners()

    def _admit_joiners(self) -> None:
        members = self._group_members
        self._happen(lambda change, now: change.admit(members.ready_joiners(), members.on_demand, now))

    def _happen(self, event: Callable[[Change, float], Effects]) -> None:
        """Let an event happen to the change under way, if there is one, and carry out what follows."""
        change = self._change
        if change is None:
            return
        try:
            for effect in event(change, self._attempt.now()):
                self._carry_out(change, effect)
        except Exception:
            self._fail()

    def _carry_out(self, change: Change, effect: Effect) -> None:
        attempt, group_members = self._attempt, self._group_members
        match effect:
            case CountLoss():
                assert attempt.group is not None
                attempt.group.progress = attempt.group.progress.lose(attempt.now())
            case FindDead(slots):
                self._ask(change, group_members.find_dead(slots), self._looked)
            case SendPark(slots, generation):
                part = {"type": "part", "generation": generation}
                self._ask(change, group_members.send_to(slots, part), self.lose)
            case LeaveBehind(left, is_hanging):
                if is_hanging:
                    attempt.spawn(group_members.send_to(left, _STOP))
                self.lose(set(left))
            case ReportShort():
                attempt.account.size({}, state="starting")
            case Prepare(members):
                self._ask(change, self._prepare(members), lambda answers: self._prepared(members, *answers))
            case AssignRanks(members, port):
                self._form(change, members, port)
            case Finish():
                self._finish(effect)
            case End(verdict):
                attempt.restart_group() if verdict is None else attempt.conclude(verdict)

    def _ask(self, change: Change, question: Coroutine[Any, Any, T], answer: Callable[[T], None]) -> None:
        """Ask workers beside; their answers count while the change is under way."""

        async def ask() -> None:
            try:
                found = await question
                if self._change is change:
                    answer(found)
            except Exception:
                if self._change is not change:
                    raise
                self._fail()

        self._attempt.spawn(ask())

    def _fail(self) -> None:
        """A defect of ours: parked scripts must not wait for a change that cannot go on."""
        log.exception("a change in place failed; the worker group is started again")
        self._attempt.restart_group()

    def _looked(self, dead: set[int]) -> None:
        self.lose(dead)
        self._happen(lambda change, now: change.looked(now))

    async def _prepare(self, members: tuple[int, ...]) -> tuple[set[int], int | None]:
        """Find out which workers do not answer, and a free port of the first one's node."""
        # An agreement that was under way ends with its group.
        release = self._group_members.send_to(members, {"type": "release", "token": 0})
        silent, port = await asyncio.gather(release, self._group_members.free_port(members[0]))
        return silent, port

    def _prepared(self, members: tuple[int, ...], silent: set[int], port: int | None) -> None:
        self._happen(lambda change, now: change.prepared(members, silent, port, now))

    def _form(self, change: Change, members: tuple[int, ...], port: int) -> None:
        """Give the workers of the next group their ranks, and send the others away."""
        attempt, group_members = self._attempt, self._group_members
        locations = group_members.locations(members)
        assigned = assign_ranks(locations)
        self._durations.begin_try()
        out = group_members.apply_ranks(assigned)
        attempt.follow(len(assigned))
        attempt.spawn(group_members.send_to(out, _STOP))
        address, generation = locations[0].address, attempt.generation
        messages = {one.slot: _regroup_message(one, generation, address, port) for one in assigned}
        self._ask(change, group_members.instruct(messages), self.lose)

    def _finish(self, end: Finish) -> None:
        attempt = self._attempt
        assert attempt.group is not None
        attempt.group.join()
        own = {"park_s": end.park_s, "prepare_s": end.prepare_s, "join_s": end.join_s}
        attempt.account.event(
            "worker_group.regrouped",
            f"{_count_of(end.size)} on in place, {end.pause_s:.2f} s after the others stopped ({end.cause}).",
            world_size=end.size,
            generation=attempt.generation,
            cause=end.cause,
            pause_s=end.pause_s,
            parts=own | self._durations.rounded(),
            addresses=self._group_members.addresses,
        )
        attempt.account.size(self._group_members.workers, state="running")


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
