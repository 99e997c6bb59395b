"""Becomes the first process of a machine, once all that it will start is held together.

    python -S -E first.py CGROUP COMMAND ARG...

CGROUP is a folder of cgroup version 2, which this process enters; where it is empty, there are none, and the process
becomes the reaper of all its descendants instead, so that those who lose their parents stay below it.  Standard library
only.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_CHILD_SUBREAPER = 36


def main(arguments: list[str]) -> None:
    """Enter the cgroup and run the command; never returns."""
    cgroup, *command = arguments
    if cgroup:
        try:
            with open(os.path.join(cgroup, "cgroup.procs"), "w") as file:
                file.write("0")
        except OSError as error:
            print(f"this machine is not held in {cgroup}: {error.strerror}", file=sys.stderr, flush=True)
            cgroup = ""
    if not cgroup:
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    # Python ignores them, and what is ignored stays so for the command.
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.exit(f"Error: {command[0]}: {error.strerror}")


if __name__ == "__main__":
    main(sys.argv[1:])
