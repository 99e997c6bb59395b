"""Starts, polls, stops and ends the drivers of attempts; what the service calls."""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar
from uuid import uuid4

import ray

from remora.process_log import about
from remora.spec.worker_sizes import WorkerSizes
from remora.states import EndReason
from trainers import driver_actors
from trainers.attempt_claims import Claims
from trainers.builds_ahead import BuildsAhead
from trainers.driver.driver import Driver, DriverTaken
from trainers.driver.nominations import NO_JOB, RENEWED_S
from trainers.driver_protocol import refusal
from trainers.plan import AttemptPlan, BuildAhead, DriverGone, ProfileRequest, Record
from trainers.ray_train import (
    StartLimit,
    forget_reservations,
    free_resources,
    keep_coordinator,
    living_heads,
    names_reserved,
)
from trainers.ready_drivers import ReadyDrivers
from trainers.ready_processes import ReadyProcesses
from trainers.spoken_protocols import SpokenProtocols
from trainers.storage import Storage
from trainers.storage_grants import StorageGrant
from trainers.stored_ends import StoredEnds

log = logging.getLogger(__name__)

T = TypeVar("T")

#: Rows fetched from one driver at once: lines, and other records.
ROWS_AT_ONCE = 10_000
#: Drivers that are kept ready by default.
READY_DRIVERS = 3
#: Seconds after the last start before a driver or a worker process is started for the next one: that costs a core for
#: seconds.
_QUIET_AFTER_S = 10.0
#: The same, and seconds between two looks, where they are forked and cost next to nothing.
_FORKS_LOOK_S = 0.5
#: Seconds between two lists of all attempts that have drivers, and two looks for Ray Train's coordinator.
_LISTED_S = 30.0
#: Seconds between two looks for nodes that became free.
_LOOK_S = 2.0
#: Seconds for which a storage may fail or not answer before an attempt whose driver is lost counts as not ended.
_UNREAD_S = 60.0
#: Ends that are read at once, each by a thread: with the head all drivers are lost.
_MOST_READ = 64
#: Orders what this process sends of kept nodes, whichever launcher sends it.
_numbers = itertools.count(1)


@dataclass
class _Kept:
    """What a driver was sent of nodes that are kept for jobs."""

    nodes: Mapping[str, str]
    #: By `time.monotonic`.
    sent_at: float
    #: Its answer while that has not come; None once it has taken it.
    answer: Any = None

    def is_lost(self) -> bool:
        """The driver did not take it, and never will."""
        if self.answer is not None and ray.wait([self.answer], timeout=0)[0]:
            try:
                ray.get(self.answer)
            except ray.exceptions.RayError:
                return True
            self.answer = None
        return False


class RayLauncher:
    """Drivers as detached actors; needs `ray.init(..., namespace="remora")` before.

    Ray's internal store says under which name the driver of an attempt runs, and which ones wait for the next attempts.
    No method waits for a driver longer than `timeout_s`.
    """

    def __init__(
        self,
        *,
        timeout_s: float = 1.0,
        ready_drivers: int = READY_DRIVERS,
        forks: bool = False,
        prestarts: bool = True,
        open_storage: Callable[[str], Storage] = Storage,
        granted: Callable[[BuildAhead], StorageGrant | None] = lambda _: None,
    ) -> None:
        """`ready_drivers`: how many wait for attempts, at most; `forks`: Ray's worker processes are forked.

        `prestarts` False: no worker process is started ahead, as where it would lack packages that are brought.

        `open_storage` opens a storage of the service by its URL; `granted` is asked, before a build, for a grant to
        read the code.
        """
        self._open_storage = open_storage
        self._forks = forks
        self._timeout_s = timeout_s
        self._handles: dict[str, Any] = {}
        self._asked: dict[str, Any] = {}
        self._protocols = SpokenProtocols()
        #: When something was started last, by `time.monotonic`.
        self._started_at = time.monotonic()
        #: What drivers that were sent their plan have not answered yet.
        self._starting: dict[str, Any] = {}
        #: When drivers that were sent their plan are asked for again.
        self._limits: dict[str, StartLimit] = {}
        self._heads: frozenset[str] = frozenset()
        self._heads_at = float("-inf")
        #: What drivers that were asked to stop have not answered yet.
        self._stopping: dict[str, tuple[EndReason, Any]] = {}
        self._resizing: dict[str, tuple[float, Any]] = {}
        self._asking: dict[str, tuple[float, Any]] = {}
        self._profiling: dict[str, tuple[float, Any]] = {}
        #: What drivers were sent of kept nodes.
        self._kept: dict[str, _Kept] = {}
        #: Attempts that are being closed.
        self._closing: dict[str, Future[None]] = {}
        #: Ends that are being read, and since when they are, by `time.monotonic`.
        self._reading: dict[str, tuple[Future[list[Record]], float]] = {}
        self._ready_processes = ReadyProcesses(are_started=prestarts)
        self._ready_drivers = ReadyDrivers(ready_drivers)
        self._builds_ahead = BuildsAhead(granted)
        #: Of a cluster that exists already its own programs make it, or a driver.
        self._keeps_coordinator = prestarts
        self._coordinator_at = float("-inf")
        self._looked_at = 0.0
        self._listed_at = 0.0

    def start(self, plan: AttemptPlan, secrets: Sequence[bytes] = ()) -> bool | DriverGone:
        """Start the attempt's driver, and return whether it has the plan; to be called until it has.

        `secrets` are the chunks of the values of the plan's secrets (`trainers.secret_values`).
        True: it has the plan, and the attempt is its own.  False: it has not answered yet.  `DriverGone`: this attempt
        will have no driver.
        """
        if plan.attempt_id not in self._starting:
            self._send(plan, secrets)
            return False
        return self._start_result(plan.attempt_id)

    def _send(self, plan: AttemptPlan, secrets: Sequence[bytes]) -> None:
        self._started_at = time.monotonic()
        name = driver_actors.name_of(plan.attempt_id)
        limit = StartLimit(self._living_heads(self._started_at))
        if name is not None and driver_actors.find(name) is not None:
            # Another controller asked for it; one of an earlier release has not written down under which head.
            limit = StartLimit(driver_actors.heads_of(plan.attempt_id) or limit.heads)
        elif name is not None:
            driver_actors.asked_under(plan.attempt_id, limit.heads)
        else:
            taken = self._ready_drivers.take()
            limit = taken.limit if taken is not None else limit
            driver_actors.asked_under(plan.attempt_id, limit.heads)
            found = taken.name if taken is not None else _unused_name(plan.attempt_id)
            # Another controller may have been faster: the first name counts.
            name = driver_actors.give(plan.attempt_id, found)
            if name != found:
                driver_actors.end(found)
            else:
                # This one knows of those of its plan alone.
                self._kept[plan.attempt_id] = _Kept(
                    dict.fromkeys(plan.closed_nodes, NO_JOB), self._started_at
                )
        handle = driver_actors.make(name)
        self._handles[plan.attempt_id] = handle
        self._starting[plan.attempt_id] = handle.start.remote(plan, *secrets)
        self._limits[plan.attempt_id] = limit

    def _start_result(self, attempt_id: str) -> bool | DriverGone:
        """The answer of a driver that was sent its plan."""
        started = self._starting[attempt_id]
        if not ray.wait([started], timeout=0)[0]:
            self._end_late(attempt_id)
            return False
        del self._starting[attempt_id]
        try:
            ray.get(started)
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, DriverTaken):
                # The other attempt keeps its driver, also when this one is made sure of.
                self._handles.pop(attempt_id, None)
                driver_actors.forget(attempt_id)
            else:
                self.kill(attempt_id)
            message = f"The driver of this attempt could not begin: {error.cause}"
            return DriverGone(EndReason.DRIVER_LOST, message[:500])
        except ray.exceptions.RayError:
            # It died; another one finds out whether this one had begun.
            self._handles.pop(attempt_id, None)
            self._kept.pop(attempt_id, None)
            self._protocols.forget(attempt_id)
            return False
        return True

    def _end_late(self, attempt_id: str) -> None:
        """End a driver that may never begin, as Ray's head was started again; it is sent its plan again then."""
        now = time.monotonic()
        limit = self._limits[attempt_id].seen(self._living_heads(now), now)
        self._limits[attempt_id] = limit.renewed(now) if limit.is_over(now) else limit
        if not limit.is_over(now):
            return
        name = driver_actors.name_of(attempt_id)
        # One that the head before did not write down any more, or had not placed, is lost without a word.
        is_lost = name is not None and driver_actors.is_lost(name)
        if name is not None and (is_lost or driver_actors.is_pending(name)):
            log.warning(
                "the driver of attempt %s is asked for again: Ray's head was started again",
                attempt_id,
                extra=about(attempt=attempt_id),
            )
            driver_actors.end(name)
            if is_lost:
                # By its name this process would find the dead one again; and it may be that no head knows of it yet.
                driver_actors.replace(attempt_id)
            for known in (self._handles, self._starting, self._limits, self._kept, self._asked):
                known.pop(attempt_id, None)
            self._protocols.forget(attempt_id)

    def _living_heads(self, now: float) -> frozenset[str]:
        """Looked up twice a second at most."""
        if now - self._heads_at >= _FORKS_LOOK_S:
            self._heads, self._heads_at = living_heads(), now
        return self._heads

    def prepare(self, token: int) -> None:
        """Have drivers and worker processes wait for the next attempts, at once where they are forked.

        Where they are not, when nothing was started for a while: each costs a core for seconds.

        `token` is that of the lease of the controller that acts: of two controllers the one with the later token ends
        the drivers that the other one has made ready.
        """
        now = time.monotonic()
        if now - self._looked_at < (_FORKS_LOOK_S if self._forks else _LOOK_S):
            return
        self._looked_at = now
        is_quiet = self._forks or now - self._started_at >= _QUIET_AFTER_S
        slots = self._ready_processes.look(is_quiet=is_quiet)
        _free_what_is_left()
        self._ready_drivers.look(token, slots, may_start=is_quiet, heads=self._living_heads(now), now=now)
        if self._keeps_coordinator and now - self._coordinator_at >= _LISTED_S:
            # Before another Ray program has Ray bind it to a node that may leave.
            keep_coordinator(Driver.__name__)
            self._coordinator_at = now

    def build_ahead(self, wanted: Sequence[BuildAhead]) -> None:
        """Have nodes build the environments of jobs that wait; to be called at every tick, and does not wait."""
        self._builds_ahead.look(wanted)

    def poll(self, attempt_ids: list[str], after: dict[str, int]) -> dict[str, list[Record] | DriverGone]:
        """New records of each attempt, or how its driver is gone; an attempt without an answer yet is left out."""
        answers: dict[str, list[Record] | DriverGone] = {}
        for attempt_id in attempt_ids:
            if attempt_id not in self._asked:
                gone = self._ask(attempt_id, after.get(attempt_id, 0))
                if gone is not None:
                    answers[attempt_id] = gone
        waiting = {self._asked[one]: one for one in attempt_ids if one in self._asked}
        if not waiting:
            return answers
        done, _ = ray.wait(list(waiting), num_returns=len(waiting), timeout=self._timeout_s)
        for reference in done:
            attempt_id = waiting[reference]
            del self._asked[attempt_id]
            answer = self._take(attempt_id, reference)
            if answer is not None:
                answers[attempt_id] = answer
        return answers

    def keep(self, attempt_id: str, nodes: Mapping[str, str], token: int) -> bool:
        """Let the driver know for which job each of our nodes is kept, by their ids; to be called at every tick.

        True: it has taken it.  It is sent what is news to it, and what it would forget otherwise; of two controllers
        the one with the later `token` counts.
        """
        now, sent = time.monotonic(), self._kept.get(attempt_id)
        if sent is not None and sent.nodes == nodes and not sent.is_lost():
            has_taken = sent.answer is None
            if not (nodes and has_taken and now - sent.sent_at >= RENEWED_S):
                return has_taken
        handle = self._handle(attempt_id)
        if handle is not None:
            answer = handle.keep.remote((token, next(_numbers)), dict(nodes))
            self._kept[attempt_id] = _Kept(nodes, now, answer)
        return False

    def resize(self, attempt_id: str, sizes: WorkerSizes, order: float) -> bool:
        """Let the worker group have these sizes; to be called until it is True: the driver has taken them.

        Of two calls the one with the later `order` counts, whenever they arrive.
        """
        return self._give(
            self._resizing, attempt_id, order, lambda driver: driver.resize.remote(order, sizes)
        )

    def request_stacks(self, attempt_id: str, order: float) -> bool:
        """Have the driver report what each rank is doing; to be called until it is True: the driver knows of it."""
        handle = self._handle(attempt_id)
        if handle is not None and not hasattr(handle, "request_stacks"):
            return True  # a driver of an older release, which reports none
        return self._give(self._asking, attempt_id, order, lambda driver: driver.request_stacks.remote(order))

    def request_profile(self, attempt_id: str, request: ProfileRequest) -> bool:
        """Have the driver profile a rank; to be called until it is True: the driver knows of it."""
        handle = self._handle(attempt_id)
        if handle is not None and not hasattr(handle, "request_profile"):
            return True  # a driver of an older release, which says nothing of it
        return self._give(
            self._profiling, attempt_id, request.number, lambda driver: driver.request_profile.remote(request)
        )

    def _give(
        self,
        sent_before: dict[str, tuple[float, Any]],
        attempt_id: str,
        order: float,
        send: Callable[[Any], Any],
    ) -> bool:
        """Send the order, and again where that failed; True once the driver has taken it."""
        known, sent = sent_before.get(attempt_id, (0.0, None))
        if known == order and sent is not None:
            if not ray.wait([sent], timeout=0)[0]:
                return False
            try:
                ray.get(sent)
            except ray.exceptions.RayError:
                pass  # it is sent again
            else:
                return True
        handle = self._handle(attempt_id)
        if handle is not None:
            sent_before[attempt_id] = (order, send(handle))
        return False

    def stop(self, attempt_id: str, reason: EndReason) -> None:
        """Ask the driver to end the attempt; it answers with its last record.

        To be called until it has: the call is lost with this process.  A driver that was asked is not asked again,
        unless that failed, or for another reason: one that is being paused may be cancelled.
        """
        handle = self._handle(attempt_id)
        if handle is not None and not self._is_stopping(attempt_id, reason):
            self._stopping[attempt_id] = (reason, handle.stop.remote(reason))

    def _is_stopping(self, attempt_id: str, reason: EndReason) -> bool:
        asked, sent = self._stopping.get(attempt_id, (None, None))
        if asked is not reason:
            return False
        if ray.wait([sent], timeout=0)[0]:
            try:
                ray.get(sent)
            except ray.exceptions.RayError:
                return False
        return True

    def kill(self, attempt_id: str) -> bool:
        """End the driver and all its workers at once; fine when it is gone.

        False: Ray has not confirmed yet that it is gone.  The call that ends it is lost with this process, so it is to
        be called until it is True.
        """
        handle = self._handle(attempt_id)
        if handle is not None:
            with contextlib.suppress(ray.exceptions.RayError):
                ray.kill(handle, no_restart=True)
        self._forget(attempt_id)
        if handle is not None and driver_actors.find(driver_actors.name_of(attempt_id)) is not None:
            return False
        if not driver_actors.end_former(attempt_id):
            return False
        driver_actors.forget(attempt_id)
        return True

    def attempts(self) -> list[str]:
        """Ids of all attempts that have a driver, every half a minute; none at other times."""
        now = time.monotonic()
        if now - self._listed_at < _LISTED_S:
            return []
        self._listed_at = now
        return driver_actors.attempts()

    def close(self, attempt_id: str, *, job_id: str, storage_url: str) -> bool:
        """Let the attempt have no driver any more, unless it has one; to be called until it is True.

        Raises StorageError when that cannot be written down.
        """
        closing = self._closing.get(attempt_id)
        if closing is None:
            self._closing[attempt_id] = _in_thread(
                lambda: Claims(self._open_storage(storage_url), job_id).close(attempt_id)
            )
            return False
        if not closing.done():
            return False
        del self._closing[attempt_id]
        closing.result()
        return True

    def stored_end(
        self, attempt_id: str, *, job_id: str, storage_url: str, after: int
    ) -> Sequence[Record] | None:
        """What the attempt's driver, which is gone, has stored of its end; to be called until it is not None.

        Empty: it has stored none, or the storage has failed or not answered for a minute.
        """

        def read() -> Future[list[Record]]:
            return _in_thread(
                lambda: StoredEnds(self._open_storage(storage_url), job_id).read(attempt_id, after)
            )

        now, begun = time.monotonic(), self._reading.get(attempt_id)
        if begun is None:
            if len(self._reading) >= _MOST_READ:
                # An attempt that ended otherwise meanwhile is not asked for again.
                self._reading = {
                    one: (future, since)
                    for one, (future, since) in self._reading.items()
                    if now - since < 2 * _UNREAD_S
                }
            if len(self._reading) < _MOST_READ:
                self._reading[attempt_id] = (read(), now)
            return None
        future, since = begun
        error = future.exception() if future.done() else TimeoutError("the storage does not answer")
        if error is not None and now - since < _UNREAD_S:
            if future.done():
                self._reading[attempt_id] = (read(), since)
            return None
        del self._reading[attempt_id]
        if error is None:
            return future.result()
        log.warning(
            "whether attempt %s had ended before its driver was lost cannot be found out: %.300s",
            attempt_id,
            error,
            extra=about(attempt=attempt_id),
        )
        return []

    def _ask(self, attempt_id: str, after: int) -> DriverGone | None:
        try:
            return self._send_poll(attempt_id, after)
        except (
            Exception
        ) as error:  # what has the name of the driver may be no driver; the others are polled on
            self._handles.pop(attempt_id, None)
            log.warning(
                "the driver of attempt %s cannot be polled, it is tried again: %.300r",
                attempt_id,
                error,
                extra=about(attempt=attempt_id),
            )
            return None

    def _send_poll(self, attempt_id: str, after: int) -> DriverGone | None:
        if attempt_id in self._starting:
            gone = self._start_result(attempt_id)
            if isinstance(gone, DriverGone):
                return gone
            if attempt_id not in self._limits:
                return None  # it is sent its plan again
        handle = self._handle(attempt_id)
        if handle is None:
            return self._gone(attempt_id)
        self._protocols.ask(attempt_id, handle)
        if (refused := self._refused(attempt_id)) is not None:
            return refused
        self._asked[attempt_id] = handle.poll.remote(after, ROWS_AT_ONCE)
        return None

    def _refused(self, attempt_id: str) -> DriverGone | None:
        """Its driver counts as lost where it speaks no protocol of this release; the service ends it then."""
        spoken = self._protocols.answer(attempt_id)
        why = refusal(spoken) if spoken is not None else None
        return DriverGone(EndReason.DRIVER_LOST, why) if why is not None else None

    def _take(self, attempt_id: str, reference: Any) -> list[Record] | DriverGone | None:
        try:
            records = ray.get(reference)
        except ray.exceptions.RayActorError:
            return self._gone(attempt_id)
        except (
            Exception
        ) as error:  # what a driver raises, or an answer that is refused; the others are polled on
            log.warning(
                "the driver of attempt %s cannot be polled, it is tried again: %.300r",
                attempt_id,
                error,
                extra=about(attempt=attempt_id),
            )
            return None
        if records is None and attempt_id not in self._starting:
            return DriverGone(EndReason.DRIVER_LOST, "The driver of this attempt has lost its plan.")
        if self._protocols.answer(attempt_id) is None:
            return None  # what it answers is not looked at before its number; it answers the same again
        if (refused := self._refused(attempt_id)) is not None:
            return refused
        if records is None or (type(records) is list and all(map(_is_record, records))):
            return records
        log.warning(
            "the driver of attempt %s answers with what is no records, it is tried again",
            attempt_id,
            extra=about(attempt=attempt_id),
        )
        return None

    def _gone(self, attempt_id: str) -> DriverGone:
        known = driver_actors.name_of(attempt_id) is not None
        self._forget(attempt_id)
        if known:
            return DriverGone(EndReason.DRIVER_LOST, "The driver of this attempt died.")
        return DriverGone(
            EndReason.HEAD_LOST, "The head of the Ray cluster was lost, and the driver with it."
        )

    def _forget(self, attempt_id: str) -> None:
        self._handles.pop(attempt_id, None)
        self._asked.pop(attempt_id, None)
        self._starting.pop(attempt_id, None)
        self._limits.pop(attempt_id, None)
        self._stopping.pop(attempt_id, None)
        self._resizing.pop(attempt_id, None)
        self._asking.pop(attempt_id, None)
        self._profiling.pop(attempt_id, None)
        self._kept.pop(attempt_id, None)
        self._protocols.forget(attempt_id)
        free_resources(attempt_id)

    def _handle(self, attempt_id: str) -> Any:
        if attempt_id not in self._handles:
            handle = driver_actors.find(driver_actors.name_of(attempt_id))
            if handle is None:
                return None
            self._handles[attempt_id] = handle
        return self._handles[attempt_id]


def _unused_name(attempt_id: str) -> str:
    """A name for the driver of an attempt that has none; what has the usual one is dead, and found here alone."""
    name = f"driver-{attempt_id}"
    return name if driver_actors.find(name) is None else f"{name}-{uuid4().hex[:8]}"


def _is_record(one: object) -> bool:
    """Whether each of its fields is of its kind; a driver that was taken over may leave some out."""
    kinds = (("seq", int), ("at", (int, float)), ("kind", str), ("body", dict))
    return isinstance(one, Record) and all(isinstance(getattr(one, name, None), kind) for name, kind in kinds)


def _in_thread(work: Callable[[], T]) -> Future[T]:
    """Use a storage without waiting for it, which may take long; nor does the end of this process."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            result = work()
        except Exception as error:
            future.set_exception(error)
        else:
            future.set_result(result)

    threading.Thread(target=run, name="storage-of-attempts", daemon=True).start()
    return future


def _free_what_is_left() -> None:
    """Free what was reserved for attempts that have no driver any more.

    A driver that is killed may have asked for resources a moment before its end, after all that it had was freed.
    """
    for attempt_id in names_reserved():
        if driver_actors.name_of(attempt_id) is None:
            free_resources(attempt_id)
            forget_reservations(attempt_id)
