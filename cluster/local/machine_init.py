"""Becomes the first process of a machine, once all that it will start is held together.

    python -S -E machine_init.py CGROUP COMMAND ARG...

CGROUP is a folder of cgroup version 2, which this process enters before it becomes the command.  Where it is empty,
there are none: then the command is a child, and this process stays above it as the reaper of all its descendants, so
that those who lose their parents stay below it and leave no zombie (`ray start` would reap none of them).  It ends with
the command, and the command with it; it leaves SIGTERM to the command: the end of a machine signals all processes.
Standard library only.

Source: prctl(2), wait(2).
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_LIBC = ctypes.CDLL(None)


def main(arguments: list[str]) -> None:
    """Enter the cgroup, or become a reaper, and run the command; never returns."""
    cgroup, *command = arguments
    if cgroup:
        try:
            with open(os.path.join(cgroup, "cgroup.procs"), "w") as file:
                file.write("0")
        except OSError as error:
            print(f"this machine is not held in {cgroup}: {error.strerror}", file=sys.stderr, flush=True)
            cgroup = ""
    if not cgroup:
        _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        first = os.getpid()
        if child := os.fork():
            _reap_until(child)
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != first:
            os._exit(1)
    # Python ignores them, and what is ignored stays so for the command.
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.exit(f"Error: {command[0]}: {error.strerror}")


def _reap_until(child: int) -> None:
    """Reap all descendants until the child has ended; ends with its exit code, or 128 and its signal."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    while True:
        ended, status = os.wait()
        if ended == child:
            code = os.waitstatus_to_exitcode(status)
            os._exit(code if code >= 0 else 128 - code)


if __name__ == "__main__":
    main(sys.argv[1:])
