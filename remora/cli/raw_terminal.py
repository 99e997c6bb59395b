"""The terminal of this process, while what is typed goes elsewhere as it is; then it is as before, in every case."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from types import FrameType

#: Signals that end this process, and with which its terminal has to be as before.
_ENDING = ("SIGTERM", "SIGHUP")


def is_terminal() -> bool:
    """True when a person types at one and reads on one."""
    return sys.stdin.isatty() and sys.stdout.isatty() and os.name == "posix"


def size() -> tuple[int, int]:
    """Rows and columns."""
    found = os.get_terminal_size(sys.stdin.fileno())
    return max(1, found.lines), max(1, found.columns)


@contextlib.contextmanager
def raw_terminal() -> Iterator[None]:
    """Each key is read as it is typed, and none has a meaning here."""
    import termios
    import tty

    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    try:
        # What was typed ahead stays.
        tty.setraw(descriptor, termios.TCSADRAIN)
        yield
    finally:
        # What was typed and not read was meant for what has ended.
        termios.tcsetattr(descriptor, termios.TCSAFLUSH, before)


@contextlib.contextmanager
def ending_on_signals() -> Iterator[None]:
    """A signal that ends this process raises SystemExit in its main thread, so that what is open is closed."""

    def end(number: int, _: FrameType | None) -> None:
        # Another one must not cut short what the first one began.
        for name in _ENDING:
            signal.signal(getattr(signal, name), signal.SIG_IGN)
        raise SystemExit(128 + number)

    names = [name for name in _ENDING if hasattr(signal, name)]
    before = {name: signal.signal(getattr(signal, name), end) for name in names}
    try:
        yield
    finally:
        for name, handler in before.items():
            signal.signal(getattr(signal, name), handler)
