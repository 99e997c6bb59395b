"""Lets PyTorch's own threads come to rest before they are joined or the interpreter ends.

Threads of gloo and of autograd take Python's lock when they release a tensor that Python has seen, a moment after
their work is done.  PyTorch 2.13 does not wait for that.  If the interpreter ends in this moment, the thread is ended
with it and the process aborts ("terminate called without an active exception", signal 6); if DistributedDataParallel
is the last to hold the process group, its end joins the thread with the lock in hand, and both wait for ever.  Either
makes a failure of a training that has succeeded.  See https://github.com/pytorch/pytorch/issues/190489 and
https://github.com/pytorch/pytorch/issues/56297.

Standard library only: it is imported where a script starts, and the script may never use PyTorch.
"""

from __future__ import annotations

import atexit
import functools
import os
import sys
import time
from typing import Any

#: Names of the threads, of which the kernel keeps 15 characters.
_NAMES = ("pt_gloo_runloop", "pt_autograd_")
#: Seconds between two looks.  Python's lock is free meanwhile: a thread that waits for it gets it, and is seen to run.
_LOOK_S = 0.01
#: Seconds after which the wait is given up: a collective whose other workers are gone never ends.
_LIMIT_S = 1.0


def guard() -> None:
    """Wait for the threads where the process ends and where process groups are destroyed.

    Call it before the script registers anything with `atexit`, so that it comes after all of that.
    """
    atexit.register(await_rest)
    distributed: Any = sys.modules.get("torch.distributed")
    destroy = getattr(distributed, "destroy_process_group", None)
    if destroy is None:
        return

    @functools.wraps(destroy)
    def destroy_process_group(*arguments: Any, **named: Any) -> Any:
        destroyed = destroy(*arguments, **named)
        await_rest()
        return destroyed

    distributed.destroy_process_group = destroy_process_group
    sys.modules[destroy.__module__].destroy_process_group = destroy_process_group  # type: ignore[attr-defined]


def await_rest() -> None:
    """Return when no such thread wants anything, or after a second; at once in a process that has none."""
    until = time.monotonic() + _LIMIT_S
    before = _threads()
    while before and time.monotonic() < until:
        # There is no event when a thread of C++ comes to rest, so it is polled; asleep, this thread leaves it the lock.
        time.sleep(_LOOK_S)
        now = _threads()
        if now == before and all(is_asleep for is_asleep, _ in now.values()):
            return
        before = now


def _threads() -> dict[str, tuple[bool, str]]:
    """By number: whether it sleeps, and how often it has run so far (proc(5), `status`)."""
    found = {}
    for number in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{number}/status") as file:
                fields = {name: text.strip() for name, _, text in (line.partition(":") for line in file)}
        except OSError:  # it has ended since
            continue
        if fields["Name"].startswith(_NAMES):
            runs = f"{fields['voluntary_ctxt_switches']} {fields['nonvoluntary_ctxt_switches']}"
            found[number] = fields["State"].startswith("S"), runs
    return found
