"""Runs what mpirun's agent hands over: one command of one caller who knows the key, on a node without ssh.

    python -S -E door.py ADDRESS PORT

Stands under a shim of its node's first worker, which ends it with all that it started.  Ends with the command, whose
exit code it tells the caller.  Standard library only; the key is in REMORA_MPI_KEY, in hexadecimal.
"""

from __future__ import annotations

import contextlib
import os
import queue
import socket
import struct
import subprocess
import sys
import threading
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge

#: Seconds for each word of the proof of the key; who only knocks, as a scanner of ports does, is turned away then.
_PROOF_S = 10
#: Callers that may wait until they are heard.
_BACKLOG = 64


def main(arguments: list[str]) -> int:
    """Let one caller in, run what it says; returns the exit code."""
    address, port = arguments
    key = bytes.fromhex(os.environ.pop("REMORA_MPI_KEY"))
    try:
        listener = socket.create_server((address, int(port)), backlog=_BACKLOG)
    except OSError as error:
        print(f"the door of this node cannot be opened: {error}", file=sys.stderr)
        return 1
    with listener:
        caller = _let_in(listener, key)
    with caller:
        # mpirun writes its command for the shell that ssh would start.
        done = subprocess.run(["/bin/sh", "-c", caller.recv_bytes().decode()], stdin=subprocess.DEVNULL)
        with contextlib.suppress(OSError):
            caller.send_bytes(str(done.returncode).encode())
    return done.returncode


def _let_in(listener: socket.socket, key: bytes) -> Connection:
    """The first caller who knows the key; others are turned away, and keep nobody waiting."""
    proven: queue.SimpleQueue[Connection] = queue.SimpleQueue()

    def answer() -> None:
        # Until the door is shut.
        with contextlib.suppress(OSError):
            while True:
                knocking, _ = listener.accept()
                threading.Thread(target=_examine, args=(knocking, key, proven), daemon=True).start()

    threading.Thread(target=answer, daemon=True).start()
    return proven.get()


def _examine(knocking: socket.socket, key: bytes, proven: queue.SimpleQueue[Connection]) -> None:
    """Put the caller among the proven ones, if it proves in time that it knows the key."""
    patience = (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO)
    with knocking:
        for one in patience:
            knocking.setsockopt(socket.SOL_SOCKET, one, struct.pack("ll", _PROOF_S, 0))
        caller = Connection(os.dup(knocking.fileno()))
        try:
            deliver_challenge(caller, key)
            answer_challenge(caller, key)
        except (AuthenticationError, AssertionError, OSError, EOFError):
            caller.close()
            return
        for one in patience:
            knocking.setsockopt(socket.SOL_SOCKET, one, struct.pack("ll", 0, 0))
    proven.put(caller)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
