"""Runs a program that makes a part of a job's environment on its node: uv, a shell, podman.

Its processes are one group, which ends when its time is over, when the job is being stopped, and with the supervisor.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import select
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO

from trainers.isolation.variables import MACHINE_MARKS

#: Lines of the program that an error shows.
_LAST_LINES = 12
#: Characters of one of them.
LONGEST_LINE = 500
#: Seconds between two looks at whether it has to end.
_LOOK_S = 0.2
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)


class EnvironmentFailed(Exception):
    """The environment cannot be made; the message has the last lines of the program that makes it."""


@dataclass
class TimeLimit:
    """Until when the programs of one environment may run."""

    stop: threading.Event = field(default_factory=threading.Event)
    #: By the monotonic clock; 0: without an end.
    deadline: float = 0.0
    #: What the error says when the time is over.
    too_late: str = "it takes too long"

    def check(self) -> None:
        """Raise EnvironmentFailed when the job is being stopped."""
        if self.stop.is_set():
            raise EnvironmentFailed("its job is being stopped")

    def left_s(self) -> float:
        """Seconds until it has to end.  Raises EnvironmentFailed when it has to end now."""
        self.check()
        if not self.deadline:
            return _LOOK_S
        left_s = self.deadline - time.monotonic()
        if left_s <= 0:
            raise EnvironmentFailed(self.too_late)
        return left_s


@dataclass(frozen=True, kw_only=True)
class ProcessBounds:
    """What holds the processes of a program that becomes another user."""

    #: Folders of the cgroups that it enters.
    cgroups: tuple[Path, ...] = ()
    #: Processes and threads that this user may have, at most the hard limit of this process; None: the cgroups limit
    #: them.
    processes: int | None = None


def run_program(
    failure: str,
    command: list[str],
    folder: Path,
    variables: Mapping[str, str],
    limit: TimeLimit,
    take: Callable[[str], None] = lambda _: None,
    *,
    with_errors: bool = True,
    bounds: ProcessBounds | None = None,
) -> list[str]:
    """Run a program to its end; returns the last lines of its standard output.

    `take` is called with every line that it prints; without `with_errors` only its standard output counts, and an error
    shows both.  `bounds` hold it and all that it starts.
    Raises EnvironmentFailed, which begins with `failure` and has the last lines.
    """
    lines: deque[str] = deque(maxlen=_LAST_LINES)
    with contextlib.ExitStack() as opened:
        errors = None if with_errors else opened.enter_context(os.fdopen(os.memfd_create("errors"), "w+b"))
        process = opened.enter_context(_started(command, folder, variables, errors, bounds))
        try:
            for line in _lines_of(process, limit):
                lines.append(line)
                take(line)
            code_of_end = process.wait()
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        if errors is not None:
            errors.seek(0)
            said = errors.read(1 << 16).decode(errors="replace").splitlines() if code_of_end else []
            lines.extend(line.rstrip()[:LONGEST_LINE] for line in said)
    if code_of_end:
        raise EnvironmentFailed(f"{failure}: " + "\n".join(lines))
    return list(lines)


def _started(
    command: list[str],
    folder: Path,
    variables: Mapping[str, str],
    errors: IO[bytes] | None,
    bounds: ProcessBounds | None,
) -> subprocess.Popen[bytes]:
    """Start the program; `errors` takes its standard error, None: that goes with its output."""
    try:
        return subprocess.Popen(
            command,
            cwd=folder,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if errors is None else errors,
            start_new_session=True,
            preexec_fn=partial(_begin, bounds),
        )
    except subprocess.SubprocessError:
        raise EnvironmentFailed(
            f"{command[0]} could not be started within the limits of its processes; see to the node's cgroups"
        ) from None


def _lines_of(process: subprocess.Popen[bytes], limit: TimeLimit) -> Iterator[str]:
    """What it prints, as long as its time is not over and nothing stops it.  Raises EnvironmentFailed.

    It ends with the program: what that leaves running may hold its output open, and print more.
    """
    assert process.stdout is not None
    rest, last_at = b"", float("inf")
    while True:
        if process.poll() is not None:
            last_at = min(last_at, time.monotonic() + _LOOK_S)
        readable, _, _ = select.select([process.stdout], [], [], min(limit.left_s(), _LOOK_S))
        is_over = last_at < float("inf") and (not readable or time.monotonic() > last_at)
        if not readable and not is_over:
            continue
        read = b"" if is_over else os.read(process.stdout.fileno(), 1 << 16)
        *whole, rest = (rest + read).split(b"\n")
        rest = rest[:LONGEST_LINE]
        for line in whole if read else [rest] * bool(rest):
            yield line.decode(errors="replace").rstrip()[:LONGEST_LINE]
        if not read:
            return


def _begin(bounds: ProcessBounds | None) -> None:
    """In the new process: have the kernel end it with the supervisor, which may be killed, and enter its bounds."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if bounds is None:
        return
    for cgroup in bounds.cgroups:
        (cgroup / "cgroup.procs").write_text("0")
    if bounds.processes is not None:
        resource.setrlimit(resource.RLIMIT_NPROC, (bounds.processes, bounds.processes))


def program_variables(inherited: Mapping[str, str]) -> dict[str, str]:
    """What such a program sees: the node's variables without those of the interpreter that runs us."""
    hidden = ("RAY_", "REMORA_", "PYTHON", "VIRTUAL_ENV", "CONDA")
    return {
        name: value
        for name, value in inherited.items()
        if name in MACHINE_MARKS or not name.startswith(hidden)
    }
