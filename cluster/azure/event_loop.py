"""An event loop in a thread of its own, for asynchronous clients that are called from plain threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

Answer = TypeVar("Answer")


class EventLoopThread:
    """Runs coroutines for other threads until it is closed."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, Answer]) -> Answer:
        """Wait for a coroutine and return what it returns, or raise what it raises."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def close(self) -> None:
        """End the loop; nothing may be running on it any more."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
