"""One attempt as its driver knows it: its worker groups one after the other, its progress, and how it ends.

Everything here is touched on the driver's event loop only.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import replace
from typing import Any

from remora.script import channel
from remora.states import EndReason
from trainers.checkpoints.cadence import Cadence
from trainers.checkpoints.manifest import Manifest
from trainers.driver import phases
from trainers.driver.account import Account
from trainers.driver.commits import Commits
from trainers.driver.group import Commit, Count, Deadline, Effect, Note, Send, WorkerGroup
from trainers.driver.hang import StepWatch
from trainers.driver.kills import Restarts
from trainers.driver.members import GroupMembers
from trainers.driver.outputs import Outputs
from trainers.driver.phases import Lifecycle
from trainers.driver.progress import Progress
from trainers.driver.regrouping import Asked, Pace
from trainers.driver.relay import Relay
from trainers.driver.sick_nodes import SickNodes
from trainers.driver.verdict import GroupFailure, Verdict, judge, too_few_workers
from trainers.plan import AttemptPlan, Record
from trainers.ray_train import AttemptEnds, Member
from trainers.storage import StorageError
from trainers.supervisor.shard_transfer import CheckpointShard

log = logging.getLogger(__name__)

#: An interval between checkpoints is reported again when it changed by this factor.
_WORTH_REPORTING = 1.5

#: Seconds in which the other ranks of a failed group report how they ended.
_COLLECT_S = 1.0
#: Seconds that ranks get to end themselves when the attempt is stopped.
_STOP_S = 8.0
#: Seconds that the scripts of a job that is paused get to write a checkpoint.
PAUSE_S = 120.0


class Attempt:
    """What its parts share: the plan, the workers, the present worker group and the reason to end."""

    def __init__(
        self,
        plan: AttemptPlan,
        account: Account,
        group_members: GroupMembers,
        now: Callable[[], float] = time.monotonic,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`now` is a monotonic clock, by which everything is measured; `clock` is the time in records."""
        self.plan = plan
        self.account = account
        self.group_members = group_members
        self.now = now
        self._clock = clock
        self.commits = Commits(plan, account, clock, now)
        self.outputs = Outputs(plan, account, clock, self._ask_workers, now)
        self.relay = Relay(self._receive_relayed)
        self.group: WorkerGroup | None = None
        #: Number of the newest worker group.
        self.generation = 0
        previous = plan.previous_step
        self.progress = Progress(step=previous, high_water=previous, inherited=previous)
        self.pace = Pace()
        self.cadence = Cadence(prior_s=plan.worker_mtbf_s)
        #: Seconds between checkpoints that were reported last; None: none yet.
        self._reported_interval_s: float | None = None
        self._ticked_at = now()
        self.watch = StepWatch(plan.step_time_s)
        self.lifecycle = Lifecycle()
        #: When a pause that was asked for waits no longer for its checkpoint: by the clock of `now`, and since 1970.
        self._pause_until: Deadline | None = None
        self._start_failures = 0
        self._start_error = ""
        #: Of worker groups whose scripts own their training.
        self.restarts = Restarts()
        #: Begins another worker group with these workers, whose commands have ended; None: that cannot be done.
        self.begin_again: Callable[[list[Member]], Awaitable[None]] | None = None
        self._beginning: asyncio.Task[Any] | None = None
        #: Stores its last records before they are handed out; None: nothing does.
        self.store_end: Callable[[list[Record]], Awaitable[None]] | None = None
        #: Nodes that must get no worker of this attempt.
        self.sick = SickNodes()
        #: The checkpoint that the workers were given, until they have trained from it.
        self._resumed: Manifest | None = None
        #: A worker group of this attempt has reported a step.
        self._has_trained = False
        self._tasks: set[asyncio.Future[Any]] = set()
        self._rank_ended = asyncio.Condition()

    # --- its phases

    @property
    def stop_reason(self) -> EndReason | None:
        """Why the attempt was asked to stop; None: it was not."""
        return self.lifecycle.stop_reason

    @property
    def verdict(self) -> Verdict | None:
        """Why the driver ends the attempt by itself; None: it does not."""
        return self.lifecycle.verdict

    def stop(self, reason: EndReason) -> list[asyncio.Task[Any]]:
        """End the attempt for that reason; returns what is still being sent to workers."""
        return self._carry_out(self.lifecycle.stop(reason))

    def pause(self) -> None:
        """End the attempt at a checkpoint, for which the scripts are asked; without one when they cannot write any."""
        if self._pause_until is None:
            self._pause_until = Deadline(at=self._clock() + PAUSE_S, until=self.now() + PAUSE_S)
            self._bring_pause_on()

    def _bring_pause_on(self) -> None:
        group, until = self.group, self._pause_until
        if until is None or self.lifecycle.is_final:
            return
        # Commands that end by themselves are not disturbed.
        can_save = group is not None and (group.is_cooperative or group.ended or self.lifecycle.change)
        if group is None or group.is_stopping or not can_save or self.now() >= until.until:
            self.stop(EndReason.PAUSED)
        elif group.is_cooperative:
            text = "The job is paused: its workers end after a checkpoint."
            self.request_stop("pause", text, until.at)

    def conclude(self, verdict: Verdict, quiet_s: float | None = None) -> None:
        """End the attempt for a reason that the driver found; a hang after `quiet_s` seconds without a step."""
        if verdict.end_reason is EndReason.HANG and not self.lifecycle.is_final:
            self.report_hang(verdict.message, quiet_s)
        self._carry_out(self.lifecycle.conclude(verdict))

    def report_hang(self, text: str, quiet_s: float | None) -> None:
        """A hang was found: one event says so, whatever follows, and alerts report that one."""
        self.account.event("worker_group.hung", text, quiet_s=quiet_s)

    def restart_group(self) -> None:
        """End all workers, so that a new worker group starts from the storage, or the attempt ends."""
        self._carry_out(self.lifecycle.restart_group())

    def start_again(self, killed: int | None = None) -> bool:
        """A process hangs, or that of a slot was killed: end all, and resume from what their nodes keep.

        False, and nothing is done, where nothing new would come of it.
        """
        group = self.group
        if (
            group is None
            or group.has_failed
            or group.diverged
            or group.is_stopping
            or self.lifecycle.is_final
        ):
            return False
        if not self.restarts.allow(self.commits.newest_step, self.now(), killed):
            return False
        group.progress = self.progress = group.progress.lose(self.now())
        is_in_place = self.begin_again is not None and not group.wants_to_stop
        sending = self._carry_out(self.lifecycle.restart_group(), again=is_in_place)
        if is_in_place:
            self._beginning = self.spawn(self._begin_in_place(group, sending))
        return True

    async def _begin_in_place(self, group: WorkerGroup, sending: list[asyncio.Task[Any]]) -> None:
        """Once all commands have ended, begin again with the same workers; where that fails, with others."""
        refusals: list[set[int]] = await asyncio.gather(*sending)
        members = [self.group_members.by_slot[slot] for slot in self.group_members.in_order()]
        ranks = set(range(group.world_size))
        await self._wait_for_ends(group, ranks, _STOP_S)
        await self.relay.finish()
        await self.commits.finish()
        await self.outputs.finish(has_failed=False)
        # The supervisor of a command that ended by itself before the stop came has ended with it.
        # So has that of a killed one which has waited in vain for the stop.
        can_all = ranks <= group.ended and not group.left and not any(refusals)
        if can_all and len(members) == group.world_size and not self.lifecycle.is_final:
            self.progress = group.progress
            self.group = None
            self.lifecycle.close_group()
            self.lifecycle.wait_again(self.now())
            self.account.size({}, state="starting")
            try:
                assert self.begin_again is not None
                await self.begin_again(members)
            except Exception:
                log.exception(
                    "%s cannot begin again in place; its workers are replaced", self.plan.attempt_id
                )
                self._stop_opened()
            else:
                return
        # Their supervisors end, and Ray Train's controller asks what follows.
        await self.group_members.send({"type": "stop", "at_once": True})

    def _stop_opened(self) -> None:
        """The group that was to follow ends because of us, where it was opened: nothing of it has failed."""
        if self.group is not None:
            self.group.stop()

    def finish(self) -> None:
        """Ray Train's controller has returned."""
        self.lifecycle.finish()

    def _carry_out(self, effects: Iterable[phases.Effect], *, again: bool = False) -> list[asyncio.Task[Any]]:
        """Start what the effects ask for; `again`: workers that are stopped get another assignment."""
        sending: list[asyncio.Task[Any]] = []
        for effect in effects:
            match effect:
                case phases.Effect.STOP_GROUP:
                    if self.group is not None:
                        self.group.stop()
                    stop = {"type": "stop", "at_once": True, "again": again}
                    sending.append(self.spawn(self.group_members.send(stop)))
                case phases.Effect.REPORT_DRAINING:
                    self.account.progress(state="draining")
                case phases.Effect.ASK_TO_STOP:
                    sending.append(self.spawn(self.group_members.send({"type": "stop", "at_once": False})))
        return sending

    # --- the worker group

    def open_group(self, members: list[Member], resume: Manifest | None) -> int:
        """A worker group of new processes begins; returns its number.  Raises AttemptEnds when none shall."""
        if not self.lifecycle.begin_group():
            raise AttemptEnds
        self.generation += 1
        self.group_members.open(members)
        self.pace.pause()
        self.watch.hold()
        self.progress = self.progress.regroup()
        self.outputs.begin_group(self.group_members.ranks, self.generation)
        self.group = WorkerGroup(
            generation=self.generation,
            world_size=len(members),
            started_at=self.now(),
            progress=self.progress,
            checkpoint_interval_s=self.plan.checkpoint_interval_s,
            is_preparing=self.plan.prepares,
        )
        self._resumed = resume
        step = resume.step if resume is not None else None
        count = "1 worker starts" if len(members) == 1 else f"{len(members)} workers start"
        text = count + (f", from the checkpoint of step {step}." if step else ".")
        self.account.event(
            "worker_group.started",
            text,
            world_size=len(members),
            generation=self.generation,
            resumed_from_step=step,
            nodes=sorted({member.address for member in members}),
            addresses=self.group_members.addresses,
        )
        self._report_start_over(resume)
        # A group whose checkpoint cannot be used does not train, and another one resumes in its place.
        resumed = {} if step is None or self._has_trained else {"resumed_from_step": step}
        state = "starting" if self.group.is_preparing else "running"
        self.account.size(self.group_members.workers, state=state, **resumed)
        return self.generation

    def _report_start_over(self, resume: Manifest | None) -> None:
        """A worker group that is not the job's first one begins, and finds nothing to go on from."""
        is_first = self.generation == 1 and self.plan.attempt == 1
        if is_first or resume is not None or self.outputs.start.files:
            return
        text = (
            "The command begins at its start again: the job has no checkpoint, and its outputs hold no file."
        )
        self.account.event("worker_group.started_over", text, generation=self.generation)

    def _ask_workers(self, message: channel.Message) -> None:
        if self.group is not None:
            self.spawn(self.group_members.send(message))

    def follow(self, world_size: int) -> None:
        """A worker group takes over in place: other ranks, the same scripts."""
        assert self.group is not None
        self.generation += 1
        self.outputs.follow_group(self.group_members.ranks)
        self.pace.pause()
        self.watch.hold()
        step = self.group.progress.step
        self.group = self.group.follow(self.generation, world_size, self.now())
        # A new rank 0 may report the newest step once more, which does not repeat it.
        self.group.progress = self.progress = replace(self.group.progress, group_step=step)

    def receive(self, rank: int, message: channel.Message) -> None:
        """Take a message of a rank of the present worker group."""
        assert self.group is not None
        if message["type"] == "stalled":
            self._measure(rank, message)
            return
        before = self.group.progress.step_at
        self.apply(self.group, self.group.receive(rank, message, self.now()))
        self.progress = self.group.progress
        self._has_trained = self._has_trained or self.group.has_reported
        if self._resumed is not None and self.group.has_reported:
            self._vouch(self._resumed)
        if self.progress.step_at is not None and self.progress.step_at != before:
            self.pace.step(self.progress.step_at)
            self.watch.step(self.progress.step_at, self.group.world_size)
            self.lifecycle.step_ended()

    def _vouch(self, resumed: Manifest) -> None:
        """The workers have compared the checkpoint that they resumed from with its digests, and trained."""
        self._resumed = None

        def vouch() -> None:
            # Without it a retention may read the files again.
            with contextlib.suppress(StorageError, OSError):
                self.commits.catalog.vouch(resumed)

        self.spawn(asyncio.to_thread(vouch))

    def _receive_relayed(self, shard: CheckpointShard, message: channel.Message) -> None:
        """Take what the relay reports about files, in place of their worker."""
        if self.group is not None and self.group.generation == shard.generation:
            self.receive(shard.rank, message)

    async def notify_rank_ended(self) -> None:
        """Wake the tasks that wait for ranks to end."""
        async with self._rank_ended:
            self._rank_ended.notify_all()

    def tick(self) -> None:
        """What time alone brings about."""
        passed_s, self._ticked_at = self.now() - self._ticked_at, self.now()
        self.outputs.tick()
        self.commits.tick()
        if self.group is not None:
            self.cadence = self.cadence.work(passed_s, self.group.world_size)
        if self.group is not None and self.stop_reason is None:
            self.apply(self.group, self.group.tick(self.now()))
        self._bring_pause_on()

    def request_stop(
        self, reason: Asked, text: str, deadline_at: float | None, *, is_in_place: bool = False
    ) -> None:
        """Ask the scripts to park or stop at an agreed step; see `WorkerGroup.request_stop`.

        `deadline_at` is in seconds since 1970, as clouds give it: it is converted to the monotonic clock once, now.
        """
        group = self.group
        if group is None or self.stop_reason is not None:
            return
        if deadline_at is not None:
            self.outputs.hurry()
        if not group.wants_to_stop:
            self.account.event(f"worker_group.{reason}", text, deadline_at=deadline_at)
        deadline = None
        if deadline_at is not None:
            deadline = Deadline(at=deadline_at, until=self.now() + deadline_at - self._clock())
        asked = group.request_stop(reason, self.now(), deadline, is_in_place=is_in_place)
        self.apply(group, asked)

    def _measure(self, rank: int, message: channel.Message) -> None:
        """A rank reports what a checkpoint cost its loop; the interval between checkpoints follows."""
        try:
            self.cadence = self.cadence.measure(int(message["step"]), float(message["stall_s"]))
            self.account.stalled_s = self.cadence.stalled_s
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            text = f"a message of type 'stalled' was not understood and dropped: {error!r}"[:500]
            self.account.line(rank, "remora", text)
            return
        if self.group is not None and self.plan.is_interval_auto:
            self._choose_interval(self.group)

    def _choose_interval(self, group: WorkerGroup) -> None:
        losses, workers = group.progress.losses, group.world_size
        chosen_s = group.checkpoint_interval_s = self.cadence.interval_s(losses, workers)
        reported_s = self._reported_interval_s
        if (
            reported_s is not None
            and reported_s / _WORTH_REPORTING < chosen_s < reported_s * _WORTH_REPORTING
        ):
            return
        self._reported_interval_s = chosen_s
        cost_s, mtbf_s = self.cadence.cost_s or 0.0, self.cadence.between_losses_s(losses, workers)
        self.account.event(
            "checkpoint.interval",
            f"A checkpoint holds training up for {cost_s:.2g} s, so there is one every {chosen_s:.0f} s.",
            interval_s=round(chosen_s, 3),
            cost_s=round(cost_s, 4),
            mtbf_s=round(mtbf_s, 1),
        )

    @property
    def steady_group(self) -> WorkerGroup | None:
        """The worker group while it trains and nothing ends or changes it; None otherwise."""
        group = self.group
        if group is None or self.lifecycle.phase is not phases.Phase.TRAINING or group.wants_to_stop:
            return None
        return group

    def may_grow(self) -> bool:
        """True when the scripts could stop at an agreed step for a bigger worker group."""
        group = self.steady_group
        if group is None or not group.is_cooperative:
            return False
        # First win back what a loss cost: growing earlier would make the same steps wait for one more start.
        return group.progress.lost_since is None

    @property
    def ended_slots(self) -> set[int]:
        """Slots of the worker group whose command is over without having been asked to leave."""
        group = self.group
        return (
            set() if group is None else self.group_members.slots_of(group.ended) - self.group_members.departed
        )

    @property
    def is_done(self) -> bool:
        """True when the command of every rank returned 0."""
        return self.group is not None and self.group.is_done

    def apply(self, group: WorkerGroup, effects: Iterable[Effect]) -> None:
        """Carry out effects of a worker group; one that was replaced has no rank to send anything to."""
        for effect in effects:
            match effect:
                case Note(kind="log", body=body):
                    self.account.line(**body)
                case Note(kind="metric", body=body):
                    self.commits.score(body["step"], body["values"])
                    self.account.measure(body)
                case Note(kind="progress", body=body):
                    self.account.progress(**body)
                case Note(kind="load", body={"rank": rank, "load": load}):
                    if group is self.group and rank < len(addresses := self.group_members.addresses):
                        self.account.load(rank, {**load, "address": addresses[rank]})
                case Note(body=body):
                    self.account.put("event", body)
                case Count():
                    if group is self.group:
                        self.report_totals()
                case Send(message=message, rank=rank):
                    if group is self.group:
                        self.spawn(self.group_members.send(message, rank))
                case Commit():
                    self._start_commit(group, effect)
        if group is self.group and group.is_stopping:
            self.lifecycle.end_group()
            self._bring_pause_on()

    def _start_commit(self, group: WorkerGroup, commit: Commit) -> None:
        def then(is_committed: bool) -> None:
            if is_committed:
                self.apply(group, group.committed(commit.step, self.now(), commit.take))
            else:
                self.apply(group, group.failed(commit.step, self.now()))

        self.commits.start(group, commit, then)

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run something beside; an error of it is logged."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._forget_task)
        return task

    def _forget_task(self, task: asyncio.Future[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a task of %s failed", self.plan.attempt_id, exc_info=error)

    # --- failures and waiting

    async def judge(self, members_lost: set[int], nodes_lost: set[int]) -> bool:
        """Find out why the worker group failed and end the rest of it; True when another one shall start."""
        if self._beginning is not None:
            await asyncio.wait({self._beginning})
        group, group_members = self.group, self.group_members
        if group is None:
            # Its commands had ended, and did not begin again.
            return not self.lifecycle.is_final
        self.lifecycle.end_group()
        living = group_members.ranks_of(group_members.present - members_lost - nodes_lost)
        supervisors, nodes = group_members.ranks_of(members_lost), group_members.ranks_of(nodes_lost)
        if not nodes and not group.is_stopping:
            await self._wait_for_ends(group, living, _COLLECT_S)
        troubles = {**group.troubles, **await self._confirm_damages(group)}
        verdict = judge(
            GroupFailure(
                exits=tuple(group.exits.values()),
                lost_nodes=tuple(sorted(nodes)),
                lost_supervisors=tuple(sorted(supervisors)),
                troubles=tuple(sorted(troubles.items())),
                diverged=group.diverged,
                damaged="" if troubles else next((one.why for one in group.damaged.values()), ""),
                is_planned=group.is_stopping,
            )
        )
        if not nodes and not supervisors:
            self.apply(group, group.incomplete())
        self.lifecycle.wait_again(self.now())
        if verdict.end_reason is EndReason.NODE_LOST:
            group.progress = group.progress.lose(self.now())
            self.account.event("node.lost", verdict.message, ranks=sorted(nodes | group.broken_ranks))
        await group_members.send({"type": "stop", "at_once": True})
        await self._wait_for_ends(group, living, _STOP_S)
        await self.relay.finish()
        # The next worker group resumes from what is committed, and retention must not delete that.
        await self.commits.finish()
        is_own = verdict.end_reason in (EndReason.EXIT_CODE, EndReason.SIGNAL)
        await self.outputs.finish(has_failed=is_own and not group.has_reported)
        self.progress = group.progress
        self.group = None
        self.lifecycle.close_group(verdict)
        if self.lifecycle.is_final:
            return False
        self.account.size({}, state="starting")
        return True

    async def _confirm_damages(self, group: WorkerGroup) -> dict[int, str]:
        """Whether the checkpoint is damaged or nodes read it wrongly, which are sick then; troubles by rank."""
        troubles: dict[int, str] = {}
        for rank, one in group.damaged.items():
            try:
                is_damaged = await asyncio.to_thread(
                    self.commits.catalog.refuse_if_damaged, one.folder, one.file
                )
            except (StorageError, OSError) as error:
                troubles[rank] = str(error)[:500]
                continue
            if is_damaged:
                continue
            (slot,) = self.group_members.slots_of({rank})
            member = self.group_members.by_slot[slot]
            if not self.sick.add([member.ray_node_id]):
                troubles[rank] = f"its node reads a checkpoint that is right, and {one.why}"
                continue
            text = f"For rank {rank} {one.why}, and in the storage it is right: its node {member.address} is drained."
            self.account.event("worker.misread", text, rank=rank, address=member.address)
        return troubles

    def group_started(self) -> None:
        """A worker group came up."""
        self._start_failures = 0
        self._start_error = ""
        self.lifecycle.group_is_up()

    def group_could_not_start(self, error: str) -> int:
        """No worker group came up; returns how often in a row."""
        self.group = None
        self.lifecycle.close_group()
        self._start_failures += 1
        if error != self._start_error:
            self._start_error = error
            text = f"The worker group did not start and is tried again: {error[:500]}"
            self.account.event("worker_group.not_started", text)
        return self._start_failures

    def is_over(self) -> bool:
        """True when no further worker group may start: stopped, judged, or out of patience for workers."""
        self._bring_pause_on()
        if not self.lifecycle.is_final and self.lifecycle.waited_s(self.now()) >= self.plan.regroup_s:
            self.conclude(too_few_workers(self.plan.sizes.min, self.plan.regroup_s, self._start_error))
        return self.lifecycle.is_final

    async def end(self, error: Exception | None) -> None:
        """Write the last record; `error` is what ended Ray Train's controller, None when training finished."""
        self.finish()
        await self.relay.finish()
        await self.commits.finish()
        await self.outputs.finish()
        self.relay.close()
        self.report_totals()
        now = self.now()
        progress = self.group.progress if self.group is not None else self.progress
        if self.group is not None:
            self.apply(self.group, self.group.incomplete())
        self.group = None
        incomplete = {} if self.outputs.is_complete else {"outputs_are_complete": False}
        lost = {"open_lost_s": round(open_s, 3)} if (open_s := progress.open_lost_s(now)) else {}
        last_word = self._last_record(error) | incomplete | lost
        if self.store_end is not None:
            await self.store_end(self.account.last_records(last_word))
        self.account.ended(last_word)
        self.lifecycle.end()

    def report_totals(self) -> None:
        """Report the counters."""
        self.account.totals(self.group.progress if self.group is not None else self.progress)

    def _last_record(self, error: Exception | None) -> dict[str, Any]:
        if self.stop_reason is not None:
            text = f"The attempt was ended: {self.stop_reason.value}."
            return {"end_reason": self.stop_reason.value, "message": text, "exit_code": None}
        if error is None:
            text = "The command returned 0 on every rank."
            return {"end_reason": EndReason.COMPLETED.value, "message": text, "exit_code": 0}
        if self.verdict is not None:
            verdict = self.verdict
            return {
                "end_reason": verdict.end_reason.value,
                "message": verdict.message,
                "exit_code": verdict.exit_code,
            }
        text = f"The driver failed: {type(error).__name__}: {str(error)[:500]}"
        return {"end_reason": EndReason.DRIVER_LOST.value, "message": text, "exit_code": None}

    async def _wait_for_ends(self, group: WorkerGroup, ranks: set[int], timeout_s: float) -> None:
        """Wait until these ranks reported how they ended; all that they printed has arrived then."""
        async with self._rank_ended:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._rank_ended.wait_for(lambda: ranks <= group.ended), timeout_s)
