"""Runs the sidecar of a worker's command: a process that starts before the command and ends after it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from trainers.backends.backend import Sidecar
from trainers.isolation.confined import Confinement
from trainers.processes.child import Child

#: Seconds after a sidecar's failure in which the command may end by itself, and say why.
_GRACE_S = 2.0


class RunningSidecar:
    """A running sidecar; `on_failure` is called from a thread, with a sentence, if it fails while the command runs."""

    def __init__(
        self,
        sidecar: Sidecar,
        *,
        folder: Path,
        line_bytes: int,
        on_line: Callable[[str], None],
        on_failure: Callable[[str], None],
        confinement: Confinement | None = None,
    ) -> None:
        self._on_line = on_line
        self._on_failure = on_failure
        self._first_line = ""
        self._is_over = threading.Event()
        self._name = Path(sidecar.command[0]).name
        self._child = Child(
            sidecar.command,
            folder=folder,
            environment=sidecar.environment,
            line_bytes=line_bytes,
            grace_s=0.0,
            on_lines=self._hear,
            on_message=lambda _: None,
            confinement=confinement,
        )
        self._watch = threading.Thread(target=self._wait, name="sidecar", daemon=True)
        self._watch.start()

    def finish(self) -> None:
        """The command has returned 0: wait for the sidecar's own end."""
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
            # Open MPI frames its messages with lines of dashes.
            if not self._first_line and line.strip(" -"):
                self._first_line = line.strip()
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
            f"{self._name} {how}: {self._first_line}" if self._first_line else f"{self._name} {how}"
        )
