"""Keeps a process that is forked from a worker, as those of a `DataLoader` are, from ending what is the worker's.

A process group or a collective of torch that is garbage is ended where Python collects it.  In a forked process the
threads are gone for which that end waits, so it would never come back, and the worker would wait for its data for ever.
So what was there before a fork is never collected in the forked process.
"""

from __future__ import annotations

import gc
import os

#: Whether collections were on, for each fork under way.
_were_on: list[bool] = []


def _before() -> None:
    # None may come between the fork and `gc.freeze`.
    _were_on.append(gc.isenabled())
    gc.disable()


def _in_the_worker() -> None:
    if _were_on.pop():
        gc.enable()


def _in_the_forked_process() -> None:
    gc.freeze()
    # Another thread may have been about to fork as well.
    if any(_were_on):
        gc.enable()
    _were_on.clear()


os.register_at_fork(before=_before, after_in_parent=_in_the_worker, after_in_child=_in_the_forked_process)
