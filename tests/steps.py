"""Counts of what Python executes, so that growth is tested without a clock."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

#: Methods that look at each element of what they belong to; they count as that number of steps.
_SEARCHES = frozenset({"count", "index", "find", "remove"})


def steps_of(work: Callable[[], object]) -> int:
    """Lines of Python that the work executes, calls of C, and the elements that a search of a list looks through."""
    steps = 0

    def line(_frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal steps
        steps += event == "line"
        return line

    def call(_frame: FrameType, event: str, argument: Any) -> None:
        nonlocal steps
        if event == "c_call":
            owner = getattr(argument, "__self__", None)
            is_search = argument.__name__ in _SEARCHES and isinstance(owner, list | tuple)
            steps += len(owner) if is_search and owner is not None else 1

    tracing, profiling = sys.gettrace(), sys.getprofile()
    sys.setprofile(call)
    sys.settrace(line)
    try:
        work()
    finally:
        sys.settrace(tracing)
        sys.setprofile(profiling)
    return steps


def grows_linearly(steps: Callable[[int], int], size: int, *, times: int = 8) -> bool:
    """Fails unless what `steps` counts for `times` the size is about as many times as much at most."""
    small, large = steps(size), steps(times * size)
    assert large <= 1.5 * times * small, f"{small} steps for {size}, and {large} for {times * size}"
    return True


class TooLong(BaseException):
    """Work took more processor time than any linear work of its size could."""


@contextmanager
def stopped_after(processor_s: float) -> Iterator[None]:
    """Raise TooLong out of work inside C, where no steps are seen, when it does not come to its end.

    For inputs of which a faulty version would need hours: the bound is far from both, and stops the faulty one.
    """

    def stop(_signal: int, _frame: FrameType | None) -> None:
        raise TooLong(f"more than {processor_s} s of the processor")

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, processor_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
