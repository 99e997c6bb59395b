"""Has the service answer what processes of jobs ask of storages: it polls their drivers, in a thread of its own."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import ray

from trainers import driver_actors
from trainers.storage_grants import Scopes, StorageAnswer, StorageRequest

log = logging.getLogger(__name__)

#: Seconds until attempts that are new are asked, and until one is asked again that did not answer.
_LOOK_S, _PAUSE_S = 0.05, 0.25
#: Lists and signatures that are made at the same time.
_AT_ONCE = 8

Answer = Callable[[Scopes, StorageRequest], StorageAnswer]


@dataclass
class _Polled:
    """A driver, and its answer that has not come."""

    driver: Any = None
    asked: Any = None
    again_at: float = 0.0


class StorageServer:
    """Answers for the attempts that `serve` names; each for its own scopes, whatever its driver asks."""

    def __init__(self, answer: Answer) -> None:
        """`answer` grants or refuses; it is called in threads, and does not raise."""
        self._answer = answer
        self._scopes: Mapping[str, Scopes] = {}
        self._polled: dict[str, _Polled] = {}
        self._changed, self._closed = threading.Event(), threading.Event()
        self._pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="storage-answers")
        self._thread: threading.Thread | None = None

    def serve(self, scopes: Mapping[str, Scopes]) -> None:
        """Serve these attempts from now on, by their ids, and no others; does not wait."""
        self._scopes = scopes
        if scopes and self._thread is None and not self._closed.is_set():
            self._thread = threading.Thread(target=self._run, name="storage-server", daemon=True)
            self._thread.start()
        self._changed.set()

    def close(self) -> None:
        """Serve no attempt any more."""
        self._closed.set()
        self._changed.set()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _run(self) -> None:
        while not self._closed.is_set():
            try:
                self._step()
            except Exception as error:  # Ray may be gone: the next connection has a server of its own
                log.warning("drivers cannot be asked which storage they need: %s", str(error)[:300])
                self._closed.wait(_PAUSE_S)

    def _step(self) -> None:
        scopes, now = self._scopes, time.monotonic()
        self._polled = {one: self._polled.get(one) or _Polled() for one in scopes}
        for attempt_id, polled in self._polled.items():
            if polled.asked is None and now >= polled.again_at:
                self._ask(attempt_id, polled, now)
        asked = {polled.asked: one for one, polled in self._polled.items() if polled.asked is not None}
        if not asked:
            self._changed.wait(_PAUSE_S)
            self._changed.clear()
            return
        done, _ = ray.wait(list(asked), num_returns=1, timeout=_LOOK_S)
        for reference in done:
            self._take(self._polled[asked[reference]], scopes[asked[reference]])

    def _ask(self, attempt_id: str, polled: _Polled, now: float) -> None:
        if polled.driver is None:
            polled.driver = driver_actors.find(driver_actors.name_of(attempt_id))
        if polled.driver is not None:
            try:
                polled.asked = polled.driver.storage_poll.remote()
            except Exception as error:  # what has the name of the driver may be no driver
                log.warning("a driver cannot be asked which storage it needs: %.300r", error)
                polled.driver = None
        if polled.asked is None:
            polled.again_at = now + _PAUSE_S

    def _take(self, polled: _Polled, scopes: Scopes) -> None:
        reference, polled.asked = polled.asked, None
        try:
            requests = _requests(ray.get(reference))
        except Exception as error:
            # It died, and another driver of the attempt is found under its name, or its answer is of no use.
            if not isinstance(error, ray.exceptions.RayActorError):
                log.warning("a driver cannot be asked which storage it needs: %.300r", error)
            polled.driver, polled.again_at = None, time.monotonic() + _PAUSE_S
            return
        for number, request in requests:
            self._pool.submit(self._send, polled.driver, number, scopes, request)

    def _send(self, driver: Any, number: int, scopes: Scopes, request: StorageRequest) -> None:
        driver.storage_answer.remote({number: self._answer(scopes, request)})


def _requests(answer: Any) -> list[tuple[int, StorageRequest]]:
    """What a driver answered.  Raises TypeError when that is something else."""
    for one in answer if type(answer) is list else [answer]:
        if type(one) is not tuple or [type(part) for part in one] != [int, StorageRequest]:
            raise TypeError("its answer is no list of requests")
    return list(answer)
