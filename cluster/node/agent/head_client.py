"""Requests to Ray's head that never block the agent: a thread sends them, the agent reads the last answers."""

from __future__ import annotations

import logging
import multiprocessing
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, Protocol, TypeVar

from cluster.node.agent import gcs_requests
from cluster.ray.heartbeats import HEARTBEAT_S, written

log = logging.getLogger(__name__)

#: Seconds for one question; the first one imports Ray.
FIRST_TIMEOUT_S = 60.0
TIMEOUT_S = 5.0
#: Seconds between two questions while something is wanted.
ASK_S = 1.0

T = TypeVar("T")


class HeadSilent(Exception):
    """The head did not answer; the message says how."""


class Head(Protocol):
    """What the agent needs of the head; none of these blocks."""

    @property
    def drained_until(self) -> float | None:
        """The deadline of the newest drain that the head accepted, seconds since 1970."""
        ...

    @property
    def is_empty(self) -> bool | None:
        """True when nothing runs on the node any more; None: unknown, as it is until a drain was accepted."""
        ...

    def drain(self, deadline_at: float, reason: str) -> None:
        """Request a drain, again and again until the head accepts it."""
        ...

    def say(self, problems: Sequence[str]) -> None:
        """Set what the heartbeats report of the machine's health."""
        ...

    def heard(self) -> None:
        """Record that the metadata service has just answered, which the heartbeats report too."""
        ...

    def announce(self, announced: str | None) -> None:
        """Set what the heartbeats report of announcements that need no drain."""
        ...


class RayHead:
    """`Head` over Ray's own client, which lives in a process of its own."""

    def __init__(self, address: str, node_id: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._address = address
        self._node_id = node_id
        self._pool: ProcessPoolExecutor | None = None
        self._lock = threading.Lock()
        self._wanted: tuple[float, str] | None = None
        self._problems: tuple[str, ...] = ()
        #: Why the node is drained, or is about to be.
        self._leaves: str | None = None
        self._says: str | None = None
        self._clock = clock
        self._heard_at = clock()
        #: The Ray node that the head drains; empty: none yet.
        self._drained_id = ""
        self._news = threading.Event()
        self._stopping = threading.Event()
        self._complaint = ""
        self._thread = threading.Thread(target=self._run, name="head", daemon=True)
        self.drained_until: float | None = None
        self.is_empty: bool | None = None

    def start(self) -> None:
        """Begin to ask."""
        self._thread.start()

    def close(self) -> None:
        """Ask no more."""
        with self._lock:
            self._stopping.set()
        self._news.set()
        self._drop()
        self._thread.join(TIMEOUT_S)

    def drain(self, deadline_at: float, reason: str) -> None:
        """See `Head.drain`."""
        self._wanted = (deadline_at, reason)
        self._news.set()

    def say(self, problems: Sequence[str]) -> None:
        """See `Head.say`."""
        self._problems = tuple(problems)

    def heard(self) -> None:
        """See `Head.heard`."""
        self._heard_at = self._clock()

    def announce(self, announced: str | None) -> None:
        """See `Head.announce`."""
        self._says = announced

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._step()
                self._complaint = ""
            except HeadSilent as error:
                self.is_empty = None
                if not self._stopping.is_set() and str(error) != self._complaint:
                    log.warning("%s", error)
                self._complaint = str(error)
            is_busy = self._wanted is not None or self.drained_until is not None
            self._news.wait(ASK_S if is_busy or self._complaint else HEARTBEAT_S)
            self._news.clear()

    def _step(self) -> None:
        wanted = self._wanted
        if wanted is not None:
            # First, so that the reason is there when the controller sees the drain.
            self._leaves = wanted[1]
            self._send_heartbeat()
            answer = self._ask(gcs_requests.drain, *wanted)
            if answer.refusal:
                raise HeadSilent(f"the head did not drain this node: {answer.refusal}")
            self._drained_id = answer.ray_node_id
            self.drained_until = wanted[0]
            if self._wanted == wanted:
                self._wanted = None
            log.info("the head drains this node")
        elif self.drained_until is not None:
            # Not in the step of the drain: the head may not have heard yet of what began just before.
            self.is_empty = self._ask(gcs_requests.is_empty, self._drained_id)
        self._send_heartbeat()

    def _send_heartbeat(self) -> None:
        unanswered_s = self._clock() - self._heard_at
        self._ask(
            gcs_requests.send_heartbeat,
            written(time.time(), self._problems, self._leaves, unanswered_s, self._says),
        )

    def _ask(self, question: Callable[..., T], *arguments: Any) -> T:
        try:
            answer, timeout_s = self._begin(question, *arguments)
            return answer.result(timeout_s)
        except TimeoutError:
            self._drop()
            raise HeadSilent(f"the head at {self._address} does not answer") from None
        except HeadSilent:
            raise
        except (BrokenProcessPool, RuntimeError, OSError) as error:
            self._drop()
            raise HeadSilent(f"the head at {self._address} cannot be asked: {error}") from error
        except Exception as error:  # Ray raises what its RPC library raises
            raise HeadSilent(f"the head at {self._address} cannot be asked: {error}") from error

    def _begin(self, question: Callable[..., T], *arguments: Any) -> tuple[Future[T], float]:
        """The future answer, and how many seconds it may take.  Raises HeadSilent when the agent ends."""
        # No process may start after `close` has ended them all.
        with self._lock:
            if self._stopping.is_set():
                raise HeadSilent("the agent ends")
            timeout_s = TIMEOUT_S
            if self._pool is None:
                self._pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
                timeout_s = FIRST_TIMEOUT_S
            return self._pool.submit(question, self._address, self._node_id, *arguments), timeout_s

    def _drop(self) -> None:
        """End the client's process with the request that it waits for."""
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is None:
            return
        # A process that waits for a dead head would keep this one from ending.
        for process in multiprocessing.active_children():
            process.kill()
        # A pool whose own thread still ends while the interpreter does complains of its closed pipe.
        pool.shutdown(cancel_futures=True)
