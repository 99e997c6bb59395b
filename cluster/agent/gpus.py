"""Asking the machine's tools how its GPUs are."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

from cluster.agent.health import QUERY, Health, Report, judge

#: A healthy nvidia-smi answers within a second or two; one that hangs hangs for ever.
TIMEOUT_S = 20.0
_NVIDIA_SMI = ("nvidia-smi", f"--query-gpu={','.join(QUERY)}", "--format=csv,noheader,nounits")


class Gpus:
    """The GPUs of this machine; those that were seen once are expected from then on."""

    def __init__(self, command: Sequence[str] = _NVIDIA_SMI, kernel: Sequence[str] = ("dmesg",)) -> None:
        self._command = command
        self._kernel = kernel
        self._expected: int | None = None

    def look(self) -> Health:
        """How they are now; takes up to 20 s when the driver hangs."""
        lines = _lines(self._kernel)
        try:
            done = subprocess.run(
                self._command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
            )
        except FileNotFoundError:
            return judge(Report(text=None, kernel=lines), self._expected)
        except subprocess.TimeoutExpired:
            return Health(problems=(f"nvidia-smi did not answer within {TIMEOUT_S:.0f} s",))
        except OSError as error:
            return Health(problems=(f"nvidia-smi cannot be started: {error}",))
        report = Report(text=done.stdout + done.stderr, exit_code=done.returncode, kernel=lines)
        health = judge(report, self._expected)
        self._expected = max(self._expected or 0, health.gpus)
        return health


def _lines(command: Sequence[str]) -> list[str]:
    """The kernel's log; empty where this user may not read it."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return done.stdout.splitlines()
