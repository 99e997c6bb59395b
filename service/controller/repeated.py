"""A function that is called again and again in a thread of its own."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

log = logging.getLogger(__name__)

#: Seconds after a call that failed.
RETRY_S = 1.0


class Repeated:
    """Calls a function repeatedly in a thread of its own, until `stop` is called."""

    def __init__(self, name: str, step: Callable[[], float], wake: threading.Event) -> None:
        """`step` returns the seconds until its next call; setting `wake` ends that pause."""
        self._step = step
        self._wake = wake
        self._is_over = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self, timeout_s: float) -> bool:
        """Call it no more; True when the thread ended within `timeout_s` seconds."""
        self._is_over = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while not self._is_over:
            pause_s = RETRY_S
            try:
                pause_s = self._step()
            except Exception:
                log.exception("the %s thread failed, it is tried again", self._thread.name)
            if not self._is_over:
                self._wake.wait(pause_s)
                self._wake.clear()
