"""The process that stands beside a worker's command: started before it, ended after it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from trainers.backends.backend import Companion
from trainers.supervisor.child import Child

#: Seconds after a companion's failure in which the command may end by itself, and say why.
_GRACE_S = 2.0


class Beside:
    """A running companion; `on_failure` is called from a thread, with its last breath, while the command runs."""

    def __init__(
        self,
        companion: Companion,
        *,
        folder: Path,
        line_bytes: int,
        on_line: Callable[[str], None],
        on_failure: Callable[[str], None],
    ) -> None:
        self._on_line = on_line
        self._on_failure = on_failure
        self._first_words = ""
        self._is_over = threading.Event()
        self._name = Path(companion.command[0]).name
        self._child = Child(
            companion.command,
            folder=folder,
            environment=companion.environment,
            line_bytes=line_bytes,
            grace_s=0.0,
            on_lines=self._hear,
            on_message=lambda _: None,
        )
        self._watch = threading.Thread(target=self._wait, name="companion", daemon=True)
        self._watch.start()

    def finish(self) -> None:
        """The command has returned 0: wait for the companion's own end."""
        self._is_over.set()
        self._watch.join()

    def stop(self) -> None:
        """End it at once."""
        self._is_over.set()
        self._child.stop(at_once=True)

    def end(self) -> None:
        """End it at once, and return when nothing of it runs."""
        self.stop()
        self._watch.join()

    def _hear(self, stream: str, text: str) -> None:
        del stream
        for line in text.split("\n"):
            # Open MPI frames what it says with lines of dashes.
            if not self._first_words and line.strip(" -"):
                self._first_words = line.strip()
            self._on_line(line)

    def _wait(self) -> None:
        status = self._child.wait()
        if status.get("exit_code") == 0 or self._is_over.wait(_GRACE_S):
            return
        how = (
            status.get("start_failed")
            or f"ended with {' '.join(str(part) for part in next(iter(status.items())))}"
        )
        self._on_failure(
            f"{self._name} {how}: {self._first_words}" if self._first_words else f"{self._name} {how}"
        )
