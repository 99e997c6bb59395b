"""Starts, polls, stops and ends the drivers of attempts; what the service calls."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import uuid
from concurrent.futures import Future
from typing import Any

import ray
from ray.experimental import internal_kv

from remora.states import EndReason
from trainers.claims import Claims
from trainers.driver.driver import Driver, DriverTaken
from trainers.plan import AttemptPlan, DriverGone, Record
from trainers.ray_train import forget_reservations, free_resources, names_reserved
from trainers.ready_processes import ReadyProcesses
from trainers.storage import Storage

log = logging.getLogger(__name__)

#: Ray namespace of all drivers.
NAMESPACE = "remora"
#: Label of the Ray node on which drivers run: the head is never preempted.
_HEAD = {"remora-role": "head"}
#: An actor that needs no resource is first asked of a random node, and dies with it when that one is just being lost;
#: one that needs any is asked of the node of its owner, which is the head.
_ON_HEAD = {"node:__internal_head__": 0.001}
#: Records fetched from one driver at once.
_LIMIT = 2000
_KV_NAMESPACE = b"remora"
#: Where the name of the driver that waits for an attempt is kept.
_SPARE = b"driver-spare"
#: How the names of such drivers begin.
_SPARE_NAME = "driver-spare-"
_OF_ATTEMPT = b"driver:"
#: Seconds after the last start before a driver is started for the next one: that costs a core for seconds.
_SPARE_AFTER_S = 10.0
#: Seconds between two looks for nodes that became free.
_LOOK_S = 2.0


class RayLauncher:
    """Drivers as detached actors; needs `ray.init(..., namespace="remora")` before.

    Ray's internal store says under which name the driver of an attempt runs, and which one waits for the next attempt.
    Nothing here waits for a driver longer than `timeout_s`.
    """

    def __init__(self, *, timeout_s: float = 1.0) -> None:
        self._timeout_s = timeout_s
        self._handles: dict[str, Any] = {}
        self._asked: dict[str, Any] = {}
        #: When something was started last, by `time.monotonic`.
        self._started_at = time.monotonic()
        #: Name of a driver that waits; only one that this process has started, because others may have other code.
        self._spare: str | None = None
        #: What drivers that were sent their plan have not answered yet.
        self._starting: dict[str, Any] = {}
        #: What drivers that were asked to stop have not answered yet.
        self._stopping: dict[str, Any] = {}
        #: Attempts that are being closed.
        self._closing: dict[str, Future[None]] = {}
        self._ready = ReadyProcesses()
        self._looked_at = 0.0

    def start(self, plan: AttemptPlan) -> bool | DriverGone:
        """Have the attempt's driver started, and say whether it has the plan; to be called until it does.

        True: it has the plan, and the attempt is its own.  False: it has not said so yet.  `DriverGone`: this attempt
        will have no driver.
        """
        if plan.attempt_id not in self._starting:
            self._send(plan)
            return False
        return self._heard(plan.attempt_id)

    def _send(self, plan: AttemptPlan) -> None:
        self._started_at = time.monotonic()
        name = _read(_key(plan.attempt_id))
        if name is None:
            found = self._take_spare() or f"driver-{plan.attempt_id}"
            # Another controller may have been here meanwhile: the first word counts.
            internal_kv._internal_kv_put(
                _key(plan.attempt_id), found.encode(), overwrite=False, namespace=_KV_NAMESPACE
            )
            name = _read(_key(plan.attempt_id)) or found
            if name != found:
                _end_driver(found)
        handle = _driver(name)
        self._handles[plan.attempt_id] = handle
        self._starting[plan.attempt_id] = handle.start.remote(plan)

    def _heard(self, attempt_id: str) -> bool | DriverGone:
        """What a driver that was sent its plan has answered."""
        started = self._starting[attempt_id]
        if not ray.wait([started], timeout=0)[0]:
            return False
        del self._starting[attempt_id]
        try:
            ray.get(started)
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, DriverTaken):
                # The other attempt keeps its driver, also when this one is made sure of.
                self._handles.pop(attempt_id, None)
                internal_kv._internal_kv_del(_key(attempt_id), namespace=_KV_NAMESPACE)
            else:
                self.kill(attempt_id)
            message = f"The driver of this attempt could not begin: {error.cause}"
            return DriverGone(EndReason.DRIVER_LOST, message[:500])
        except ray.exceptions.RayError:
            # It died; another one finds out whether this one had begun.
            self._handles.pop(attempt_id, None)
            return False
        return True

    def prepare(self) -> None:
        """When nothing was started for a while, have a driver and worker processes wait for the next attempt."""
        now = time.monotonic()
        is_quiet = now - self._started_at >= _SPARE_AFTER_S
        if now - self._looked_at >= _LOOK_S:
            self._looked_at = now
            self._ready.look(is_quiet=is_quiet)
            _free_what_is_left()
        if self._spare is not None or not is_quiet:
            return
        for left in _spares_left():
            _end_driver(left)
        self._spare = f"{_SPARE_NAME}{uuid.uuid4().hex}"
        _write(_SPARE, self._spare)
        _driver(self._spare)

    def _take_spare(self) -> str | None:
        """Name of a driver that waits, which nobody else gets any more."""
        name, self._spare = self._spare, None
        if name is None or _read(_SPARE) != name:
            return None
        # Who deletes the entry has the driver.  A crash after that never gives it to two attempts.
        if not internal_kv._internal_kv_del(_SPARE, namespace=_KV_NAMESPACE):
            return None
        return name if _lives(name) else None

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

    def stop(self, attempt_id: str, reason: EndReason) -> None:
        """Ask the driver to end the attempt; it answers with its last record.

        To be called until it has: the call is lost with this process.  A driver that was asked is not asked again,
        unless that failed.
        """
        handle = self._handle(attempt_id)
        if handle is not None and not self._is_stopping(attempt_id):
            self._stopping[attempt_id] = handle.stop.remote(reason)

    def _is_stopping(self, attempt_id: str) -> bool:
        sent = self._stopping.get(attempt_id)
        if sent is None:
            return False
        if ray.wait([sent], timeout=0)[0]:
            try:
                ray.get(sent)
            except ray.exceptions.RayError:
                return False
        return True

    def kill(self, attempt_id: str) -> bool:
        """End the driver and all its workers at once; fine when it is gone.

        False: Ray has not said yet that it is gone.  The call that ends it is lost with this process, so it is to be
        called until it is True.
        """
        handle = self._handle(attempt_id)
        if handle is not None:
            with contextlib.suppress(ray.exceptions.RayError):
                ray.kill(handle, no_restart=True)
        self._forget(attempt_id)
        if handle is not None and _lives(_read(_key(attempt_id))):
            return False
        internal_kv._internal_kv_del(_key(attempt_id), namespace=_KV_NAMESPACE)
        return True

    def close(self, attempt_id: str, *, job_id: str, storage_url: str) -> bool:
        """Let the attempt have no driver any more, unless it has one; to be called until it is True.

        Raises StorageError when that cannot be written down.
        """
        closing = self._closing.get(attempt_id)
        if closing is None:
            self._closing[attempt_id] = _in_a_thread(attempt_id, job_id, storage_url)
            return False
        if not closing.done():
            return False
        del self._closing[attempt_id]
        closing.result()
        return True

    def _ask(self, attempt_id: str, after: int) -> DriverGone | None:
        if attempt_id in self._starting and isinstance(gone := self._heard(attempt_id), DriverGone):
            return gone
        handle = self._handle(attempt_id)
        if handle is None:
            return self._gone(attempt_id)
        self._asked[attempt_id] = handle.poll.remote(after, _LIMIT)
        return None

    def _take(self, attempt_id: str, reference: Any) -> list[Record] | DriverGone | None:
        try:
            records: list[Record] | None = ray.get(reference)
        except ray.exceptions.RayActorError:
            return self._gone(attempt_id)
        if records is None and attempt_id not in self._starting:
            return DriverGone(EndReason.DRIVER_LOST, "The driver of this attempt has lost its plan.")
        return records

    def _gone(self, attempt_id: str) -> DriverGone:
        known = internal_kv._internal_kv_exists(_key(attempt_id), namespace=_KV_NAMESPACE)
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
        self._stopping.pop(attempt_id, None)
        free_resources(attempt_id)

    def _handle(self, attempt_id: str) -> Any:
        if attempt_id not in self._handles:
            name = _read(_key(attempt_id))
            try:
                self._handles[attempt_id] = ray.get_actor(name or "", namespace=NAMESPACE)
            except ValueError:
                return None
        return self._handles[attempt_id]


def _driver(name: str) -> Any:
    """The driver of that name, which is started if there is none; returns before it is up."""
    actor = ray.remote(Driver).options(
        name=name,
        namespace=NAMESPACE,
        lifetime="detached",
        get_if_exists=True,
        num_cpus=0,
        resources=_ON_HEAD,
        label_selector=_HEAD,
        max_concurrency=1000,
    )
    return actor.remote()


def _in_a_thread(attempt_id: str, job_id: str, storage_url: str) -> Future[None]:
    """Close an attempt without waiting for its storage, which may take long; nor does the end of this process."""
    closing: Future[None] = Future()

    def close() -> None:
        try:
            Claims(Storage(storage_url), job_id).close(attempt_id)
        except Exception as error:
            closing.set_exception(error)
        else:
            closing.set_result(None)

    threading.Thread(target=close, name="close-attempt", daemon=True).start()
    return closing


def _lives(name: str | None) -> bool:
    """Ray's head has a driver of that name."""
    try:
        ray.get_actor(name or "", namespace=NAMESPACE)
    except ValueError:
        return False
    return True


def _end_driver(name: str) -> None:
    """End a driver that waits and that nobody wants; fine when there is none."""
    with contextlib.suppress(ValueError, ray.exceptions.RayError):
        ray.kill(ray.get_actor(name, namespace=NAMESPACE), no_restart=True)


def _free_what_is_left() -> None:
    """Free what was reserved for attempts that have no driver any more.

    A driver that is killed may have asked for room a moment before its end, after all that it had was freed.
    """
    for attempt_id in names_reserved():
        if _read(_key(attempt_id)) is None:
            free_resources(attempt_id)
            forget_reservations(attempt_id)


def _spares_left() -> list[str]:
    """Drivers that wait, or were taken by a controller that then died, so that no attempt has them.

    One that is just being taken is found here, too: its attempt gets another one under that name.
    """
    keys = internal_kv._internal_kv_list(_OF_ATTEMPT, namespace=_KV_NAMESPACE)
    taken = {_read(key) for key in keys}
    names = [name for name in ray.util.list_named_actors() if name.startswith(_SPARE_NAME)]
    return [name for name in names if name not in taken]


def _read(key: bytes) -> str | None:
    value = internal_kv._internal_kv_get(key, namespace=_KV_NAMESPACE)
    return value.decode() if value else None


def _write(key: bytes, name: str) -> None:
    internal_kv._internal_kv_put(key, name.encode(), namespace=_KV_NAMESPACE)


def _key(attempt_id: str) -> bytes:
    return _OF_ATTEMPT + attempt_id.encode()
