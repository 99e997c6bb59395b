"""Asking the machine's tools how its GPUs are."""

from __future__ import annotations

import logging
import subprocess
from collections.abc import Sequence
from pathlib import Path

from cluster.node.agent.health import QUERY, GpuReport, Health, HealthHistory, follow, unknown_field

log = logging.getLogger(__name__)

#: A healthy nvidia-smi answers within a second or two; one that hangs hangs for ever.
TIMEOUT_S = 20.0
#: There while AMD's driver is loaded, whose GPUs no nvidia-smi knows.
_OTHER_MAKER = Path("/dev/kfd")


class Gpus:
    """The GPUs of this machine; the number that was given, or the most that were seen, is expected from then on."""

    def __init__(
        self,
        command: Sequence[str] = ("nvidia-smi",),
        kernel: Sequence[str] = ("dmesg",),
        *,
        expected: int | None = None,
        other_maker: Path = _OTHER_MAKER,
    ) -> None:
        """`expected` is how many GPUs the machine should have; None: it is not known."""
        self._command = command
        self._kernel = kernel
        self._is_watched = expected != 0
        self._other_maker = other_maker
        self._query: tuple[str, ...] = QUERY
        self._history = HealthHistory(gpus=expected)
        #: One that was killed and has not ended: what waits for a driver that hangs cannot.
        self._stuck: subprocess.Popen[str] | None = None
        self._complaint = ""

    def look(self) -> Health:
        """How they are now; takes up to 20 s when the driver hangs.  Nothing is asked where none are expected."""
        if not self._is_watched:
            # An image for all machines has nvidia-smi also where there is nothing to see.
            return Health()
        if self._other_maker.exists():
            # Whether nvidia-smi is on the image too or not: what it says is not about these GPUs.
            self._complain(f"these GPUs are of a maker that is not watched ({self._other_maker})")
            return Health()
        kernel = _lines(self._kernel)
        report = self._ask(kernel)
        while (field := unknown_field(report)) is not None:
            log.warning("this driver does not report %s, so it is not watched", field)
            self._query = tuple(name for name in self._query if name != field)
            report = self._ask(kernel)
        self._history, health = follow(self._history, report)
        self._complain(
            "nvidia-smi refuses what it is asked, so no GPU is watched"
            if report.is_refused
            else health.failure or health.unread
        )
        return health

    def _complain(self, said: str) -> None:
        """Log it, once as long as it stays the same; empty: all is well."""
        if said and said != self._complaint:
            log.warning("%s", said)
        self._complaint = said

    def _ask(self, kernel: Sequence[str]) -> GpuReport:
        if self._stuck is not None and self._stuck.poll() is None:
            return GpuReport(text="", unfinished="nvidia-smi hangs and cannot be ended", kernel=kernel)
        self._stuck = None
        words = (f"--query-gpu={','.join(self._query)}", "--format=csv,noheader,nounits")
        try:
            process = subprocess.Popen(
                [*self._command, *words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
            )
        except FileNotFoundError:
            return GpuReport(text=None, kernel=kernel)
        except OSError as error:
            return GpuReport(text="", unfinished=f"nvidia-smi cannot be started: {error}", kernel=kernel)
        try:
            text, _ = process.communicate(timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._give_up(process)
            return GpuReport(
                text="", unfinished=f"nvidia-smi did not answer within {TIMEOUT_S:.0f} s", kernel=kernel
            )
        return GpuReport(text=text, exit_code=process.returncode, query=self._query, kernel=kernel)

    def _give_up(self, process: subprocess.Popen[str]) -> None:
        """End it without waiting for its end, which does not come as long as the driver hangs."""
        process.kill()
        if process.stdout is not None:
            process.stdout.close()
        self._stuck = process


def _lines(command: Sequence[str]) -> list[str]:
    """The kernel's log; empty where this user may not read it."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return done.stdout.splitlines()
