"""The node's two processes, from their start to the end of the last one."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

log = logging.getLogger(__name__)

#: Seconds between two looks at what runs.
LOOK_S = 0.2
#: Seconds between SIGTERM and SIGKILL.
GRACE_S = 10.0
#: Seconds that an agent which ended is left alone before the next one starts.
AGENT_AGAIN_S = 5.0


def run(
    ray: Sequence[str],
    agent: Sequence[str],
    environment: Mapping[str, str],
    ray_pid: Path,
    stopping: threading.Event,
    clock: Callable[[], float] = time.monotonic,
) -> int | None:
    """Run both until Ray ends or `stopping` is set, and end what is left; Ray's exit status, None when stopped.

    An agent that ends alone is started again: without one the node misses its notice, but its work need not go.
    """
    # Before Ray: the first answer of the metadata service takes its time.
    watching = _start(agent, environment)
    working = _start(ray, environment)
    ray_pid.write_text(str(working.pid))
    again_at: float | None = None
    try:
        while not stopping.wait(LOOK_S):
            if working.poll() is not None:
                return working.returncode
            if watching.poll() is not None and again_at is None:
                log.warning(
                    "the agent ended with %d; another one starts in %g s", watching.returncode, AGENT_AGAIN_S
                )
                again_at = clock() + AGENT_AGAIN_S
            elif again_at is not None and clock() >= again_at:
                watching, again_at = _start(agent, environment), None
        return None
    finally:
        _end((working, watching))
        ray_pid.unlink(missing_ok=True)


def _start(command: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    # In a group of its own, so that it ends with all it started.
    return subprocess.Popen(
        command, env={**os.environ, **environment}, stdin=subprocess.DEVNULL, start_new_session=True
    )


def _end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """End their groups: with a grace, then at once."""
    for process in processes:
        _signal(process, signal.SIGTERM)
    deadline = time.monotonic() + GRACE_S
    for process in processes:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, deadline - time.monotonic()))
    for process in processes:
        _signal(process, signal.SIGKILL)
        process.wait()


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    # The group outlives its leader while anything else is in it.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)
