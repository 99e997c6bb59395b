"""Runs one command on a node without ssh, for the first caller that proves it knows the key: mpirun's `rsh_agent.py`.

    python -S -E command_server.py ADDRESS PORT

Runs under a shim as the sidecar of its node's first worker; the shim ends it with all that it started.  Ends with the
command, whose exit code it sends to the caller.  Standard library only; the key is in REMORA_MPI_KEY, in hexadecimal.
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

#: Seconds for each message of the proof of the key; one that only connects, as a port scanner does, is dropped then.
_PROOF_S = 10
#: Connections that may wait to be accepted.
_BACKLOG = 64


def main(arguments: list[str]) -> int:
    """Admit one caller and run its command; returns the exit code."""
    address, port = arguments
    key = bytes.fromhex(os.environ.pop("REMORA_MPI_KEY"))
    try:
        listener = socket.create_server((address, int(port)), backlog=_BACKLOG)
    except OSError as error:
        print(f"the command server of this node cannot listen: {error}", file=sys.stderr)
        return 1
    with listener:
        caller = _admit(listener, key)
    with caller:
        # mpirun writes its command for the shell that ssh would start.
        done = subprocess.run(["/bin/sh", "-c", caller.recv_bytes().decode()], stdin=subprocess.DEVNULL)
        with contextlib.suppress(OSError):
            caller.send_bytes(str(done.returncode).encode())
    return done.returncode


def _admit(listener: socket.socket, key: bytes) -> Connection:
    """The first caller that knows the key; others are rejected, and delay no other caller."""
    proven: queue.SimpleQueue[Connection] = queue.SimpleQueue()

    def answer() -> None:
        # Until the listener is closed.
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                threading.Thread(target=_examine, args=(connection, key, proven), daemon=True).start()

    threading.Thread(target=answer, daemon=True).start()
    return proven.get()


def _examine(connection: socket.socket, key: bytes, proven: queue.SimpleQueue[Connection]) -> None:
    """Put the caller into `proven` if it proves in time that it knows the key."""
    patience = (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO)
    with connection:
        for one in patience:
            connection.setsockopt(socket.SOL_SOCKET, one, struct.pack("ll", _PROOF_S, 0))
        caller = Connection(os.dup(connection.fileno()))
        try:
            deliver_challenge(caller, key)
            answer_challenge(caller, key)
        except (AuthenticationError, AssertionError, OSError, EOFError):
            caller.close()
            return
        for one in patience:
            connection.setsockopt(socket.SOL_SOCKET, one, struct.pack("ll", 0, 0))
    proven.put(caller)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
