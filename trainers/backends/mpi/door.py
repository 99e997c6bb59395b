"""Runs what mpirun's agent hands over: one command of one caller who knows the key, on a node without ssh.

    python -S -E door.py ADDRESS PORT

Stands under a keeper of its node's first worker, which ends it with all that it started.  Ends with the command, whose
exit code it tells the caller.  Standard library only; the key is in REMORA_MPI_KEY, in hexadecimal.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, Listener


def main(arguments: list[str]) -> int:
    """Let one caller in, run what it says; returns the exit code."""
    address, port = arguments
    key = bytes.fromhex(os.environ.pop("REMORA_MPI_KEY"))
    with Listener((address, int(port)), authkey=key) as listener:
        caller = _let_in(listener)
    with caller:
        # mpirun writes its command for the shell that ssh would start.
        done = subprocess.run(["/bin/sh", "-c", caller.recv_bytes().decode()], stdin=subprocess.DEVNULL)
        with contextlib.suppress(OSError):
            caller.send_bytes(str(done.returncode).encode())
    return done.returncode


def _let_in(listener: Listener) -> Connection:
    """The first caller who knows the key; others are turned away."""
    while True:
        with contextlib.suppress(AuthenticationError, OSError, EOFError):
            return listener.accept()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
