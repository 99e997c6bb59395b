"""An event loop in which waiting takes no time: when nothing can run, the clock jumps to the next timer."""

from __future__ import annotations

import asyncio
import functools
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class StandsStill(AssertionError):
    """Nothing can run and no timer is set: a task that waits would wait for ever."""


class _JumpingSelector(selectors.DefaultSelector):
    now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise StandsStill("everybody waits and no timer is set")
        self.now += max(0.0, timeout)
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """Its `time` starts at 0; nothing in it may use threads."""

    def __init__(self) -> None:
        self._clock = _JumpingSelector()
        super().__init__(self._clock)

    def time(self) -> float:
        return self._clock.now


def play(scene: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(scene)


def scene(act: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Play a test in virtual time."""

    @functools.wraps(act)
    def played(*arguments: Any, **named: Any) -> None:
        play(act(*arguments, **named))

    return played
