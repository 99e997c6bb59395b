"""The driver of one attempt: a detached Ray actor on the head that runs Ray Train's controller in a thread.

It has three kinds of callers: supervisors deliver messages, the service polls records, Ray Train's controller asks
for decisions.  All state is touched on the actor's event loop only; calls from the controller's thread are run there.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
import time
import uuid
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any, ParamSpec, TypeVar

import ray

from remora.job_commands.launchers import describe, unwrap
from remora.process_log import about, write_worker_log
from remora.spec.worker_sizes import WorkerSizes
from remora.states import EndReason
from trainers import ray_train
from trainers.attempt_claims import Claims, Refused
from trainers.backends import backend_of
from trainers.checkpoints.catalog import Catalog
from trainers.checkpoints.manifest import Manifest
from trainers.driver.account import Account
from trainers.driver.attempt import Attempt
from trainers.driver.calls import Calls, RayCalls, end_this_actor, free_ports, master_port, prepare
from trainers.driver.global_batch import sizes_in, with_batch
from trainers.driver.hang_monitor import HangMonitor
from trainers.driver.in_place import MEMBERSHIP_MESSAGES, InPlace
from trainers.driver.log_shares import Printers
from trainers.driver.members import GroupMembers, RendezvousEndpoint, place_of
from trainers.driver.nominations import NO_JOB, Nominations
from trainers.driver.on_demand import mark_on_demand, on_demand_first
from trainers.driver.profiles import Profiles
from trainers.driver.rendezvous_monitor import RendezvousMonitor
from trainers.driver.shells import Shells
from trainers.driver.stacks import Stacks
from trainers.driver.storage_requests import StorageRequests
from trainers.driver.verdict import Verdict
from trainers.driver_protocol import SPOKEN, spoken_with
from trainers.job_storage import JobStorages
from trainers.node_folders import shared_folder, sweep_folders
from trainers.outputs.catalog import OutputsCatalog
from trainers.plan import AttemptPlan, ProfileRequest, Record
from trainers.shells import ShellTurn
from trainers.storage import StorageError
from trainers.storage_grants import StorageAnswer, StorageRequest
from trainers.stored_ends import StoredEnds
from trainers.supervisor import worker_process
from trainers.supervisor.assignment import Assignment
from trainers.supervisor.shard_transfer import CheckpointShard

log = logging.getLogger(__name__)
P = ParamSpec("P")
T = TypeVar("T")

#: Seconds between two looks at the clock.
_TICK_S = 0.2
#: Seconds between two progress records.
_PROGRESS_S = 0.5
#: Seconds between two tries to start a worker group, at most.
_START_PAUSE_CAP_S = 5.0
#: Seconds for which a storage may fail before an attempt is not begun, and between two tries.
_CLAIM_S = 30.0
_CLAIM_PAUSE_S = 1.0
#: Seconds for which the storage may keep the last records of an attempt from being handed out.
_STORE_END_S = 10.0
#: Seconds after which a driver that was refused its attempt ends: by then its answer has arrived.
_REFUSED_S = 10.0


class DriverTaken(Exception):
    """It has another attempt."""


class Driver:
    """One attempt; see `trainers.launch` for how it is started, polled and ended.

    A new one has no attempt yet: it may wait for one with everything imported, which takes longer than all the rest.
    """

    def __init__(
        self,
        calls: Calls | None = None,
        now: Callable[[], float] = time.monotonic,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`calls` reach the workers, over Ray by default; for the clocks see `Attempt`."""
        self._calls = calls or RayCalls()
        self._now, self._clock = now, clock
        self._totals_reported_at = now()
        #: Under this name it claims its attempt.
        self._name = uuid.uuid4().hex
        self._loop: asyncio.AbstractEventLoop | None = None
        self._starting = asyncio.Lock()
        self._has_attempt = asyncio.Event()
        self._is_over = asyncio.Event()
        #: The job that each node is nominated for.
        self._nominations = Nominations()
        self._storage_requests = StorageRequests()
        #: The newest order by which the sizes of the worker group changed.
        self._resized = 0.0
        #: The newest request for stacks.
        self._stacks_requested = 0.0
        #: The number of the newest request for a profile.
        self._profile_requested = 0
        #: Nodes, by Ray's ids, whose workers have stored a checkpoint, which stays there for the next worker group.
        self._keeping_nodes: set[str] = set()
        #: The values of the attempt's secrets, as its workers get them.
        self._secrets: tuple[bytes, ...] = ()

    def take(self, plan: AttemptPlan) -> None:
        """Be the driver of this attempt from now on."""
        write_worker_log(
            "driver", about(job=plan.job_id, attempt=plan.attempt_id, traceparent=plan.traceparent)
        )
        self._plan = plan
        self._backend = backend_of(plan.backend)
        self._account = Account(plan.log_limit_bytes, self._clock, self._now)
        self._printers = Printers()
        self._group_members = GroupMembers(self._calls)
        self._attempt = Attempt(plan, self._account, self._group_members, self._now, self._clock)
        self._attempt.begin_again = self._begin_again
        self._attempt.store_end = self._store_end
        self._in_place = InPlace(self._attempt)
        self._stacks = Stacks(self._group_members)
        self._profiles = Profiles(self._group_members, self._account)
        self._shells = Shells(self._group_members, self._attempt.spawn)
        self._hang_monitor = HangMonitor(self._attempt, self._in_place, self._stacks)
        self._rendezvous_monitor = RendezvousMonitor(self._attempt, self._stacks)
        self._has_attempt.set()

    # --- called by the launcher ------------------------------------------------------------------------------------

    async def start(self, plan: AttemptPlan, *secrets: bytes) -> None:
        """Claim the attempt and begin; called again it changes nothing.

        `secrets` are the chunks of the values of the plan's secrets.
        Raises DriverTaken, Refused when the attempt belongs to another driver or has ended, or when it does not speak
        the service's protocol, and StorageError when the former cannot be found out for half a minute; then it begins
        nothing.
        """
        self._loop = asyncio.get_running_loop()
        async with self._starting:
            if not self._has_attempt.is_set():
                expect_protocol(plan)
                await self._claim(plan)
                self._secrets = secrets
                self._begin(plan)
            if plan.attempt_id != self._plan.attempt_id:
                raise DriverTaken(f"this driver has {self._plan.attempt_id} already")

    async def protocol(self) -> int | None:
        """Which protocol it speaks with the service that sent its plan; None before that.

        Every release has this call.
        """
        return spoken_with(self._plan.protocol) if self._has_attempt.is_set() else None

    async def _claim(self, plan: AttemptPlan) -> None:
        patient_until = time.monotonic() + _CLAIM_S
        while True:
            try:
                return await asyncio.to_thread(claim, plan, self._name, self._storages(plan))
            except Refused:
                # Its controller may be one that was fenced off, and then nothing else ends this process.
                asyncio.get_running_loop().call_later(_REFUSED_S, end_this_actor)
                raise
            except StorageError:
                if time.monotonic() > patient_until:
                    raise
                await asyncio.sleep(_CLAIM_PAUSE_S)

    def _storages(self, plan: AttemptPlan) -> JobStorages:
        """The attempt's storages, to be used in threads: the event loop itself would wait for ever."""

        def ask(request: StorageRequest) -> StorageAnswer:
            return self._wait_for(self._storage_requests.ask(request))

        return JobStorages(plan, ask)

    def _begin(self, plan: AttemptPlan) -> None:
        self.take(plan)
        if plan.closed_nodes:
            # What the service has said since is newer.
            self._nominations.update((0, 0), dict.fromkeys(plan.closed_nodes, NO_JOB), time.monotonic())
        self._account.event("attempt.driver_started", "The driver of this attempt runs.")
        if versions := self._plan.secret_versions:
            names = ", ".join(f"{name} (version {version})" for name, version in versions.items())
            text = f"Its workers get the secrets {names}."
            self._account.event("attempt.secrets_given", text, versions=dict(versions))
        unwrapped = unwrap(self._plan.command)
        if unwrapped.launcher is not None:
            self._account.event(
                "attempt.launcher_left_out",
                describe(unwrapped),
                launcher=unwrapped.launcher,
                command=unwrapped.command,
                ignored=list(unwrapped.ignored),
            )
        self._attempt.spawn(self._watch_the_clock())
        threading.Thread(target=self._train, name="train-controller", daemon=True).start()

    async def storage_poll(self) -> list[tuple[int, StorageRequest]]:
        """What the attempt's processes ask of storages; waits a while for it."""
        return await self._storage_requests.poll()

    async def storage_answer(self, answers: dict[int, StorageAnswer]) -> None:
        """The service's answers, by the numbers of the requests."""
        self._storage_requests.answer(answers)

    async def poll(self, after: int, limit: int) -> list[Record] | None:
        """Records after that number, `limit` rows at most; those up to it are forgotten.  None: it has no attempt."""
        if not self._has_attempt.is_set():
            return None
        return self._account.records(after, limit)

    async def keep(self, order: tuple[int, int], nodes: dict[str, str]) -> None:
        """Each of these nodes is nominated for a job, by our ids, unless a later `order` has arrived."""
        self._nominations.update(order, nodes, time.monotonic())

    async def resize(self, order: float, sizes: WorkerSizes) -> None:
        """The worker group may have these sizes from now on, unless a later `order` has arrived."""
        await self._has_attempt.wait()
        if order > self._resized:
            self._resized = order
            sizes = sizes_in(self._plan, sizes)
            self._plan = replace(self._plan, sizes=sizes)
            self._in_place.resize(sizes)

    async def request_stacks(self, order: float) -> None:
        """Report what each rank is doing, unless that `order` or a later one has arrived; does not wait for it."""
        await self._has_attempt.wait()
        if order > self._stacks_requested:
            self._stacks_requested = order
            self._attempt.spawn(self._hang_monitor.report_stacks())

    async def request_profile(self, request: ProfileRequest) -> None:
        """Have a rank profiled, unless that request or a later one has arrived; does not wait for it."""
        await self._has_attempt.wait()
        if request.number > self._profile_requested:
            self._profile_requested = request.number
            self._attempt.spawn(self._profiles.take(request))

    async def turn_shells(self, order: tuple[int, int], states: Sequence[ShellTurn]) -> list[list[Any]]:
        """Take note of all shells of the attempt, and answer what is new; see `trainers.driver.shells`."""
        await self._has_attempt.wait()
        return await self._shells.exchange(order, states)

    async def stop(self, reason: EndReason) -> None:
        """End the attempt for that reason; its last record marks the end."""
        await self._has_attempt.wait()
        if reason is EndReason.PAUSED:
            # Its workers store a checkpoint first; nothing waits for that.
            self._attempt.pause()
        else:
            await asyncio.gather(*self._attempt.stop(reason))

    # --- called by supervisors -------------------------------------------------------------------------------------

    async def deliver(self, generation: int, slot: int, messages: list[dict[str, Any]]) -> dict[str, Any]:
        """Take messages of one worker, that it sent as a member of that worker group.

        Answers `{"log_is_full": bool, "log_room": int, "log_is_taken": bool}`: whether further lines would be dropped,
        how many bytes of them the worker may send next, and whether those that it sent were taken: a driver without
        free memory takes lines only that are `hurried`, because their command is over.
        """
        takes_lines = self._account.free_log_bytes(1) > 0
        for message in messages:
            if message["type"] != "log":
                self._receive(generation, slot, message)
            elif takes_lines or message.get("hurried"):
                self._printers.note(slot, self._now())
                self._receive(generation, slot, message)
        if any(message["type"] == "exit" for message in messages):
            await self._attempt.notify_rank_ended()
        free = self._account.free_log_bytes(self._printers.count(self._now()))
        return {"log_is_full": self._account.log_is_full, "log_room": free, "log_is_taken": takes_lines}

    async def storage_ask(self, request: StorageRequest) -> StorageAnswer:
        """A worker asks the service about a storage."""
        return await self._storage_requests.ask(request)

    async def shell_input(self, token: str, taken: int, size: tuple[int, int] | None) -> dict[str, Any]:
        """A worker asks what is new for a shell; see `trainers.driver.shells`."""
        return await self._shells.input(token, taken, size)

    async def shell_output(self, token: str, chunks: Sequence[tuple[int, bytes]]) -> str:
        """A worker hands over output of a shell; see `trainers.driver.shells`."""
        return await self._shells.output(token, chunks)

    async def shell_ended(self, token: str, message: str, exit_code: int | None) -> None:
        """A worker says that a shell has ended."""
        await self._shells.ended(token, message, exit_code)

    async def relay_offer(self, shard: CheckpointShard) -> bool:
        """A worker whose machine goes wants to send files here; False when its disk is full."""
        return self._attempt.relay.offer(shard)

    async def relay_take(self, shard: CheckpointShard, name: str, offset: int, chunk: bytes) -> None:
        """A chunk of one of those files; see `trainers.driver.relay`."""
        await self._attempt.relay.take(shard, name, offset, chunk)

    async def relay_seal(self, shard: CheckpointShard) -> bool:
        """The worker has sent everything; True when it is all here."""
        return self._attempt.relay.seal(shard)

    def _receive(self, generation: int, slot: int, message: dict[str, Any]) -> None:
        attempt, group_members, kind = self._attempt, self._group_members, message["type"]
        if kind == "exit":
            self._in_place.note_failure(slot, message)
        if kind == "started":
            self._in_place.note_start(slot, message)
        if kind == "shard" and (member := group_members.by_slot.get(slot)) is not None:
            self._keeping_nodes.add(member.ray_node_id)
        is_member = attempt.group is not None and slot in group_members.present
        if kind == "elastic" and self._backend.needs_ports:
            # Its workers are wired together when they start; a change takes a new worker group.
            return
        if kind in MEMBERSHIP_MESSAGES:
            self._in_place.receive(slot, message)
        elif kind == "batch":
            if is_member and generation == attempt.generation:
                self._keep_batch(message.get("samples"))
        elif kind == "outputs":
            attempt.outputs.receive(slot, message["changes"])
        elif kind == "stack":
            self._stacks.receive(slot, message)
        elif kind == "profile":
            self._profiles.receive(slot, message)
        elif is_member and (generation == attempt.generation or kind in ("exit", "trouble")):
            # An end is an end, whatever group the worker thought it was in.
            attempt.receive(group_members.ranks[slot], message)
        elif kind == "log":
            self._account.line(group_members.ranks.get(slot, -1), message["stream"], message["text"])
        if kind in ("exit", "trouble", "damaged"):
            group_members.ended.add(slot)
        if kind == "exit":
            self._in_place.note_exit(slot)
            if attempt.is_done:
                # No worker group is left that these could join.
                stop = {"type": "stop", "at_once": True}
                attempt.spawn(group_members.send_to(set(group_members.joining), stop))

    def _keep_batch(self, samples: object) -> None:
        """A worker reports the samples of a step that its configuration makes; later worker groups have as many."""
        assert self._attempt.group is not None
        plan = with_batch(self._plan, samples, self._attempt.group.world_size)
        if plan is None:
            return
        self._plan = plan
        self._in_place.resize(plan.sizes)
        text = (
            f"A step has {samples} samples, as the first worker group made of its configuration, and keeps them; the"
            f" possible sizes of worker groups are {plan.sizes.in_words()}."
        )
        self._account.event("attempt.batch_kept", text, global_batch=samples)
        self._account.progress(global_batch=samples)

    # --- called by Ray Train's controller, from its thread (trainers.ray_train.Owner) ---------------------------------

    def group_starts(self, members: list[ray_train.Member]) -> None:
        """Give every worker its assignment."""
        self._call(self._in_place.check_nodes, members)
        members = on_demand_first(members, self._on_demand_nodes())
        resume, damages = self._attempt.commits.catalog.newest()
        for damage in damages:
            self._call(self._attempt.commits.report_damaged, damage, "The one before is taken.")
        address, port = master_port(members)
        peers = free_ports(members) if self._backend.needs_ports else ()
        endpoint = RendezvousEndpoint(address=address, port=port, peers=peers)
        generation = self._call(self._attempt.open_group, members, resume)
        assignments = self._assignments(members, generation, endpoint, resume, is_joining=False)
        prepare(members, assignments, self._secrets)
        self._call(self._attempt.group_started)

    async def _begin_again(self, members: list[ray_train.Member]) -> None:
        """The same workers get assignments of another worker group.  Raises RayError, StorageError and TimeoutError."""
        await asyncio.to_thread(self.group_starts, members)

    def _on_demand_nodes(self) -> set[str]:
        labels = self._attempt.plan.lasting
        return ray_train.nodes_with(labels) if labels else set()

    def absorbs(self, failed: set[int], dead: set[int], nodes_lost: set[int]) -> set[int]:
        """Take note of failed slots; returns those that the worker group goes on without, in place."""
        return self._call(self._in_place.absorb, failed, dead, nodes_lost)

    def ended_slots(self) -> set[int]:
        """Slots whose worker has reported its end, successful or not."""
        return self._call(lambda: set(self._group_members.ended))

    def grows_in_place(self) -> bool:
        """True when workers may join the present worker group."""
        return self._call(self._in_place.may_grow)

    def members_join(self, members: list[ray_train.Member]) -> None:
        """Give workers that join their assignment; they take part when their script has loaded."""
        members = mark_on_demand(members, self._on_demand_nodes())
        generation = self._call(self._in_place.expect, members)
        # They get the rendezvous endpoint when they take part.
        endpoint = RendezvousEndpoint(address=members[0].address, port=0)
        try:
            assignments = self._assignments(members, generation, endpoint, None, is_joining=True)
            prepare(members, assignments, self._secrets)
        except ray.exceptions.RayError:
            self._call(self._in_place.expect_no_more, members)
            raise

    def group_failed(self, members_lost: set[int], nodes_lost: set[int]) -> bool:
        """Judge a failure once the other ranks had time to report how they ended."""
        return self._wait_for(self._attempt.judge(members_lost, nodes_lost))

    def group_could_not_start(self, error: str) -> None:
        """Note that no worker group came up, and let the next try wait."""
        log.warning("the worker group did not start: %s", error)
        failures = self._call(self._attempt.group_could_not_start, error)
        time.sleep(min(_START_PAUSE_CAP_S, _TICK_S * 2.0 ** min(failures, 10)))

    def wants_to_end(self) -> bool:
        """True when the attempt was stopped, or waited too long for its smallest size."""
        return self._call(self._attempt.is_over)

    def may_grow(self) -> bool:
        """True when the script can stop at a checkpoint, and has no better way to grow."""
        return self._call(lambda: not self._group_members.is_elastic and self._attempt.may_grow())

    def more_workers_fit(self, world_size: int) -> None:
        """Ask for a checkpoint at which the worker group is replaced by a bigger one."""
        text = f"There is capacity for {world_size} workers; the worker group grows at its next checkpoint."
        self._call(self._attempt.request_stop, "grow", text, None)

    def sizes(self) -> WorkerSizes:
        """The sizes that the worker group may have now."""
        return self._plan.sizes

    def nominated_nodes(self) -> ray_train.NominatedNodes:
        """The living nodes that are nominated for this attempt's job, for others, and for none."""
        nominated = self._call(lambda: self._nominations.at(time.monotonic()))
        if not nominated:
            return ray_train.NominatedNodes()
        own = {node for node, job_id in nominated.items() if job_id == self._plan.job_id}
        closed = {node for node, job_id in nominated.items() if job_id == NO_JOB}
        others = nominated.keys() - own - closed
        return ray_train.NominatedNodes(*(ray_train.our_nodes(nodes) for nodes in (own, others, closed)))

    def nodes_drain(self, deadlines: dict[str, float]) -> None:
        """Go on without these nodes, in place or from a checkpoint, before the first of them goes."""
        known = [deadline for deadline in deadlines.values() if deadline > 0]
        self._call(self._in_place.drain, set(deadlines), min(known, default=None))

    def _assignments(
        self,
        members: list[ray_train.Member],
        generation: int,
        endpoint: RendezvousEndpoint,
        resume: Manifest | None,
        *,
        is_joining: bool,
    ) -> dict[int, Assignment]:
        handle = ray.get_runtime_context().current_actor
        outputs = self._call(lambda: self._attempt.outputs.start.files)
        size = (len(members), len({member.ray_node_id for member in members}))
        return {
            member.slot: Assignment(
                plan=self._plan,
                identity=place_of(self._plan, member, size, generation, endpoint),
                driver=handle,
                resume=resume,
                outputs=outputs,
                slot=member.slot,
                is_joining=is_joining,
            )
            for member in members
        }

    # --- the controller's thread -------------------------------------------------------------------------------------

    def _train(self) -> None:
        error: Exception | None
        try:
            error = self._run_controller()
        except Exception as caught:  # whatever happens here, the attempt must end with a last record
            log.exception("the driver of %s failed", self._plan.attempt_id)
            error = caught
        self._wait_for(self._end(error))

    def _run_controller(self) -> Exception | None:
        plan = self._plan
        try:
            storage = self._storages(plan).open(plan.checkpoint_url)
        except StorageError as refused:
            self._call(self._attempt.conclude, _unusable_storage(refused, EndReason.START_FAILED))
            raise
        catalog = Catalog(storage, plan.job_id)
        self._attempt.relay.catalog = catalog
        try:
            self._open_checkpoints(catalog)
        except StorageError as refused:
            self._call(self._attempt.conclude, _unusable_storage(refused, EndReason.DRIVER_LOST))
            raise
        self._open_outputs(OutputsCatalog(storage, plan.job_id), catalog)
        # Before this one's own: what killed drivers left on the head.
        sweep_folders()
        with shared_folder(f"driver-{plan.attempt_id}-{os.getpid()}") as folder:
            error = ray_train.run_to_end(
                worker_process.supervise,
                self,
                name=plan.attempt_id,
                sizes=plan.sizes,
                resources=plan.resources,
                labels=plan.labels,
                workers_per_node=plan.workers_per_node,
                storage_path=str(folder),
            )
        if error is not None:
            # Workers that have ended well did so themselves.
            ray_train.give_back_checkpoints(plan.attempt_id, self._call(lambda: set(self._keeping_nodes)))
        return error

    def _open_checkpoints(self, catalog: Catalog) -> None:
        """Forbid commits of earlier attempts and report what they left; a failing storage is retried for a while."""
        attempt, patient_until = self._plan.attempt, time.monotonic() + _CLAIM_S
        while True:
            try:
                if catalog.is_fenced(attempt):
                    raise Refused("a newer attempt of the job has begun")
                catalog.fence(attempt)
                return self._attempt.commits.open(catalog)
            except StorageError:
                if self._attempt.stop_reason is not None or time.monotonic() > patient_until:
                    raise
                time.sleep(_CLAIM_PAUSE_S)

    def _open_outputs(self, catalog: OutputsCatalog, checkpoints: Catalog) -> None:
        damage = self._attempt.outputs.open(catalog, checkpoints)
        if damage is not None:
            text = f"The outputs of earlier attempts cannot be read and are left where they are: {damage}."
            self._call(self._account.event, "attempt.outputs_damaged", text[:1000], folder=catalog.location)
        if (fallen_back := self._attempt.outputs.fallen_back) is not None:
            newest, start = fallen_back
            text = (
                "The command failed when it was started with the newest outputs, before it saved anything: it is"
                f" started with the version before, {start.number} instead of {newest.number}."
            )
            self._call(
                self._account.event,
                "attempt.outputs_fell_back",
                text,
                version=start.number,
                newest=newest.number,
            )

    async def _end(self, error: Exception | None) -> None:
        await self._attempt.end(error)
        self._is_over.set()

    async def _store_end(self, records: list[Record]) -> None:
        """Store the last records, as far as the storage takes them in time: they are handed out in any case."""
        plan = self._plan

        def store() -> None:
            StoredEnds(self._storages(plan).open(plan.storage_url), plan.job_id).write(
                plan.attempt_id, records
            )

        try:
            await asyncio.wait_for(asyncio.to_thread(store), _STORE_END_S)
        except Exception as error:  # whatever happens here, the attempt must end with a last record
            log.warning("the end of attempt %s is not stored: %r", plan.attempt_id, error)

    def _call(self, function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        """Call something on the event loop from the controller's thread."""

        async def call() -> T:
            return function(*arguments, **named)

        return self._wait_for(call())

    def _wait_for(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run something on the event loop from the controller's thread."""
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    # --- time ---------------------------------------------------------------------------------------------------------

    async def _watch_the_clock(self) -> None:
        while not self._is_over.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._is_over.wait(), _TICK_S)
            self.tick()

    def tick(self) -> None:
        """What time alone brings about."""
        self._attempt.tick()
        self._in_place.tick()
        self._hang_monitor.tick()
        self._rendezvous_monitor.tick()
        now = self._now()
        if now - self._totals_reported_at >= _PROGRESS_S:
            self._totals_reported_at = now
            self._attempt.report_totals()


def expect_protocol(plan: AttemptPlan) -> None:
    """Raise Refused where the service that made the plan speaks a protocol that this release does not."""
    if spoken_with(plan.protocol) is None:
        raise Refused(
            f"the service speaks protocol {plan.protocol}, and the driver {SPOKEN[0]} and {SPOKEN[1]}"
        )


def claim(plan: AttemptPlan, driver: str, storages: JobStorages) -> None:
    """Claim the attempt for this driver.  Raises Refused and StorageError."""
    Claims(storages.open(plan.storage_url), plan.job_id).take(plan.attempt_id, driver)


def _unusable_storage(error: StorageError, reason: EndReason) -> Verdict:
    text = f"The storage for checkpoints cannot be used: {error}"
    return Verdict(goes_on=False, end_reason=reason, message=text[:1000])
