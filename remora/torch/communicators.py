"""NCCL's communicators: made by the thread that forms a group, and ended without trust in the end of their abort.

A communicator that is made by the first collective would be made in the script's thread, which could not be woken while
a peer is missing.  So it is made when the group is formed, in the background, without blocking, within a limit.

`ncclCommAbort` is known to hang, and the device is held until it returns.  Then this process alone is ended, after it
has said why: the driver starts another one in its place, and the other workers go on.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import threading
import time
from typing import Any

import torch
import torch.distributed as dist

from remora import training
from remora.script.link import Rendezvous

#: Seconds in which communicators are made once all members of a group are here.
FORM_S = 120.0
#: Seconds in which an abort returns; fewer than those in which the driver waits for the workers of a broken group.
ABORT_S = 8.0
#: Exit code of a process that was ended because an abort did not return: EX_TEMPFAIL of sysexits.h.
STUCK_EXIT_CODE = 75
#: Seconds that the message about it may take.
_SAY_S = 1.0
#: Seconds between two looks at a GPU's queue.
_DEVICE_POLL_S = 1e-3


class Forming:
    """A group that is being formed, as the thread sees it that waits for it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_given_up = False
        #: Its communicators, from when they are being made on.
        self._backend: Any = None
        #: When all members were here, by `time.monotonic`; None: not all are, or the communicators are made.
        self._complete_at: float | None = None

    @property
    def is_late(self) -> bool:
        """True when all are here, and the communicators should have been made."""
        complete_at = self._complete_at
        return complete_at is not None and time.monotonic() - complete_at > FORM_S

    def check(self) -> None:
        """Raise RuntimeError when the thread that waited has given up."""
        if self._is_given_up:
            raise RuntimeError("the group is not needed any more")

    def began(self, backend: Any) -> None:
        """All members are here, and communicators are being made.  Raises RuntimeError, and aborts them."""
        with self._lock:
            self._backend, self._complete_at = backend, time.monotonic()
            is_given_up = self._is_given_up
        if is_given_up:
            abort_beside(backend, holds_device=True)
        self.check()

    def ended(self) -> None:
        """They are made."""
        self._complete_at = None

    def give_up(self) -> None:
        """Begin to abort what has been made, and what is made from now on."""
        with self._lock:
            self._is_given_up = True
            backend = self._backend
        if backend is not None:
            abort_beside(backend, holds_device=True)


def make_communicators(
    store: Any, place: Rendezvous, device: torch.device, timeout: datetime.timedelta, forming: Forming
) -> Any:
    """The communicators of a group, connected; called by the thread that forms it.  Raises RuntimeError."""
    # By default a watchdog ends the process when a collective fails; this worker shall live and regroup.
    os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = timeout
    # So that they can be aborted while they are made.
    options.config.blocking = 0
    await_all(store, place, timeout)
    forming.check()
    backend = dist.ProcessGroupNCCL(store, place.rank, place.world_size, options)
    forming.began(backend)
    # What is not blocking has only begun when this returns; the first collective waits for it, and connects peers.
    backend.eager_connect_single_device(device)
    # In a stream of its own: where it never ends, nothing of the script's waits for it.
    with torch.cuda.device(device), torch.cuda.stream(torch.cuda.Stream(device)):
        work = backend.allreduce([torch.zeros(1, device=device)])
        work.wait()
        event = torch.cuda.Event()
        event.record()
        while not event.query():
            time.sleep(_DEVICE_POLL_S)
    forming.ended()
    return backend


def await_all(store: Any, place: Rendezvous, timeout: datetime.timedelta) -> None:
    """Wait for all members: their scripts may load for long, and the limit of the rest begins afterwards."""
    if store.add("here", 1) == place.world_size:
        store.set("all here", "")
    store.wait(["all here"], timeout)


def abort_beside(backend: Any, *, holds_device: bool) -> threading.Thread:
    """Abort in a thread, which is returned; where it does not end and holds the device, this process ends."""
    returned = threading.Event()

    def abort() -> None:
        try:
            backend.abort()
        except RuntimeError as error:
            if holds_device:
                end_process(f"a communicator's abort failed: {str(error).partition(chr(10))[0]}")
        finally:
            returned.set()

    def watch() -> None:
        if not returned.wait(ABORT_S):
            end_process(f"a communicator's abort did not return within {ABORT_S:g} s")

    aborting = threading.Thread(target=abort, name="remora-abort", daemon=True)
    aborting.start()
    if holds_device:
        threading.Thread(target=watch, name="remora-abort-watch", daemon=True).start()
    return aborting


def end_process(why: str) -> None:
    """End this process at once, after its supervisor has the reason: no end of Python would come."""
    saying = threading.Thread(target=_say, args=(why,), daemon=True)
    saying.start()
    saying.join(_SAY_S)
    os._exit(STUCK_EXIT_CODE)


def _say(why: str) -> None:
    link = training.open_link()
    if link is not None:
        link.send({"type": "stuck", "text": why})
    with contextlib.suppress(OSError):
        os.write(2, f"remora: {why}; this process ends, and another one is started in its place\n".encode())
