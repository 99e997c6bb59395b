"""Threads that end worker groups which were left, and what the end of the process waits for of them."""

from __future__ import annotations

import atexit
import threading
import time

from remora.script import native_threads

#: Seconds that the end of the process waits for what groups that were left have still under way.
_EXIT_WAIT_S = 3.0
#: Seconds that each thread gets to see that it is waited for no longer.
_EXIT_JOIN_S = 0.5
#: Set when the end of the process waits no longer for groups that were left.
exit_begun = threading.Event()
#: Threads that end groups which were left.
_ending_threads: list[threading.Thread] = []
_lock = threading.Lock()


def track(thread: threading.Thread) -> None:
    """The end of the process waits for this thread, which ends a group that was left."""
    with _lock:
        _ending_threads[:] = [*(one for one in _ending_threads if one.is_alive()), thread]


@atexit.register
def _await_ending() -> None:
    """Let the threads of groups that were left come back now: later, one that reports its error would end the process.

    A thread that asks for the interpreter's lock while the interpreter ends is ended itself, in the middle of gloo.
    """
    give_up_at = time.monotonic() + _EXIT_WAIT_S
    for one in list(_ending_threads):
        one.join(max(0.0, give_up_at - time.monotonic()))
    # What is left waits for a peer that may answer at any time: from now on nothing of it needs the interpreter.
    exit_begun.set()
    for one in list(_ending_threads):
        one.join(_EXIT_JOIN_S)
    native_threads.await_rest()
