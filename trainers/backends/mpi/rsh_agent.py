"""What mpirun runs where it would run ssh: has a command run on another node of the attempt.

    python -S -E rsh_agent.py HOST WORD...

The command server of that node (`command_server.py`) accepts the words only from a caller that knows the key of the
worker group.  As long as mpirun lives, this waits for a server that does not listen yet: the worker of that node may
still fetch its code and a checkpoint.  REMORA_MPI_DOORS holds the addresses of the servers and the key:
`{"doors": {host: [address, port]}, "key": hexadecimal}`.  Standard library only.  Ends when the command has ended, with
its exit code.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import sys
import time
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge

#: Seconds for each message of the proof of the key: another program may have the port of the server.
_PROOF_S = 30
#: Seconds between two tries.
_PAUSE_S = 0.1


def main(arguments: list[str]) -> int:
    """Hand the command over and wait for its end; returns its exit code."""
    host, *words = arguments
    known = json.loads(os.environ["REMORA_MPI_DOORS"])
    if host not in known["doors"]:
        print(f"{host} is no node of this worker group", file=sys.stderr)
        return 1
    address, port = known["doors"][host]
    try:
        with _reach((address, int(port)), bytes.fromhex(known["key"])) as server:
            server.send_bytes(" ".join(words).encode())
            return int(server.recv_bytes())
    except (OSError, EOFError, AuthenticationError, AssertionError) as error:
        print(f"node {host} did not run its part of mpirun: {error}", file=sys.stderr)
        return 1


def _reach(address: tuple[str, int], key: bytes) -> Connection:
    while True:
        try:
            return _prove(socket.create_connection(address), key)
        except ConnectionRefusedError:
            time.sleep(_PAUSE_S)


def _prove(reached: socket.socket, key: bytes) -> Connection:
    with reached:
        reached.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", _PROOF_S, 0))
        server = Connection(os.dup(reached.fileno()))
        try:
            answer_challenge(server, key)
            deliver_challenge(server, key)
        except BaseException:
            server.close()
            raise
        # The command may take as long as it likes.
        reached.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, 0))
    return server


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
