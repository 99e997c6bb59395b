"""What collectives have queued on a device, and whether the device has come to its end; one thread looks after it.

A stream that waits for a collective lets the host go on at once.  So nothing on the host would see that a peer is lost:
where the script's thread waits for the device inside CUDA, it sees nothing else.  The thread here reads what NCCL's own
watchdog has found out about the communicators, and how long the oldest collective has been under way.  It asks the
device itself only about one that is overdue: `torch.cuda.Event.query` keeps the interpreter's lock, and waits in the
driver where another thread synchronizes with a device that is held up, so that no thread could abort any more.
"""

from __future__ import annotations

import atexit
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

#: Seconds between two looks of the thread.
WATCH_S = 0.05
#: Seconds between two looks of a thread that waits on the host.
_DEVICE_POLL_S = 2e-5
#: Collectives that may be under way before the host waits for the oldest of them.
MOST_MARKS = 4096
#: Seconds that the end of the process waits for each thread.
_EXIT_JOIN_S = 0.5


@dataclass(frozen=True, eq=False)
class _Mark:
    """A place in a stream behind the wait for a collective."""

    event: Any
    #: By `time.monotonic`.
    queued_at: float


class DeviceWatch:
    """The marks of one worker group and its parts, oldest first.

    `find_error` says what is known to be wrong with the communicators, without a look at the device; `give_up` gets the
    reason when the group is to be left.  `limit_s`: seconds after which a collective counts as one that will not end.
    """

    def __init__(
        self, find_error: Callable[[], str | None], give_up: Callable[[str], None], limit_s: float
    ) -> None:
        self._find_error = find_error
        self._give_up = give_up
        self._limit_s = limit_s
        self._marks: deque[_Mark] = deque()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stopped = threading.Event()
        #: How often a thread has waited on the host.
        self.host_waits = 0

    def add(self, event: Any, check: Callable[[], None]) -> None:
        """An event was recorded behind a collective; `check` raises where the group is to be left."""
        with self._lock:
            oldest = self._marks[0] if len(self._marks) >= MOST_MARKS else None
        if oldest is not None:
            if not oldest.event.query():
                self.host_waits += 1
            self._wait_for([oldest], check)
            # It may have ended because communicators were aborted.
            check()
        with self._lock:
            self._marks.append(_Mark(event, time.monotonic()))
            if self._thread is None and not self._stopped.is_set():
                self._thread = threading.Thread(target=self._watch, name="remora-device-watch", daemon=True)
                self._thread.start()
                _open.add(self)

    def wait(self, check: Callable[[], None]) -> None:
        """Wait on the host until the device has passed all marks; `check` raises where the group is to be left.

        What ends because communicators were aborted ends after the group was given up, so that `check` knows it.
        """
        with self._lock:
            marks = list(self._marks)
        if marks:
            self.host_waits += 1
            self._wait_for(marks, check)
        if (error := self._find_error()) is not None:
            self._give_up(error)
        check()

    def stop(self) -> None:
        """Watch no more; returns when the thread has ended."""
        self._stopped.set()
        _open.discard(self)
        with self._lock:
            thread = self._thread
            self._marks.clear()
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _wait_for(self, marks: list[_Mark], check: Callable[[], None]) -> None:
        for mark in marks:
            while not mark.event.query():
                check()
                time.sleep(_DEVICE_POLL_S)
        self._drop(marks[-1])

    def _drop(self, last: _Mark) -> None:
        """Forget the marks up to this one."""
        with self._lock:
            if last in self._marks:
                while self._marks.popleft() is not last:
                    pass

    def _watch(self) -> None:
        while not self._stopped.wait(WATCH_S):
            try:
                why = self._find_error() or self._overdue()
            except Exception as error:
                why = f"the device does not answer: {(str(error) or repr(error)).splitlines()[0][:200]}"
            if why is not None:
                self._give_up(why)
                return

    def _overdue(self) -> str | None:
        """Why the oldest collective will not end; None where it may."""
        with self._lock:
            oldest = self._marks[0] if self._marks else None
        if oldest is None or time.monotonic() - oldest.queued_at < self._limit_s:
            return None
        if oldest.event.query():
            self._drop(oldest)
            return None
        return f"a collective has not ended within {self._limit_s:g} seconds"


#: Those whose thread runs.
_open: weakref.WeakSet[DeviceWatch] = weakref.WeakSet()


@atexit.register
def _stop_all() -> None:
    """A thread that comes back from C++ while the interpreter ends would end the process with an error."""
    for one in list(_open):
        one._stopped.set()
    for one in list(_open):
        if one._thread is not None:
            one._thread.join(_EXIT_JOIN_S)
