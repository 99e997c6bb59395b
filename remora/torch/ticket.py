"""One collective under way on the host."""

from __future__ import annotations

import contextlib
import ctypes
import datetime
from typing import Any

#: Seconds for which a wait does not see that the group is to be left; less than a person, or a deadline, would notice.
POLL_S = 0.01
_POLL = datetime.timedelta(seconds=POLL_S)


class Ticket:
    """One collective under way; with NCCL `work` is None where the present stream waits for it already."""

    def __init__(self, work: Any) -> None:
        self.work = work
        self.error: BaseException | None = None
        self._is_done = False

    @property
    def is_done(self) -> bool:
        """True when it ended, one way or the other; `error` says which.  With NCCL: when a stream waits for it."""
        if not self._is_done and self.work.is_completed():
            self.wait_in_stream()
        return self._is_done

    def wait_in_stream(self) -> None:
        """With NCCL: let the present stream wait for it.  `error` says what went wrong."""
        if self._is_done:
            return
        try:
            if self.work is not None:
                self.work.wait()
        except RuntimeError as error:
            # Its frames hold this ticket: what torch has of the collective would be ended with the next garbage.
            self.error = error.with_traceback(None)
        self._is_done = True

    def wait_briefly(self) -> None:
        """Wait inside torch, where no other thread can wake this one, but for a moment only.

        Most collectives end in it, and then no other thread has to ask for the interpreter.
        """
        if not self._is_done:
            with contextlib.suppress(RuntimeError):  # it failed, or the moment is over: `is_done` knows
                self.work.wait(_POLL)

    def leak(self) -> None:
        """Never free what torch has of it: the last to let go of a tensor needs the interpreter, which ends."""
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self.work))
