"""What mpirun runs where it would run ssh: has a command run on another node of the attempt.

    python -S -E agent.py HOST WORD...

Waits for a door that is not there yet for as long as mpirun lives: the worker of that node may still fetch its code
and a checkpoint, and whoever gives up on it ends mpirun.  The door of that node (`door.py`) takes the words only from
who knows the key of the worker group.  Where doors are, and the key, stand in REMORA_MPI_DOORS:
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

#: Seconds for each word of the proof of the key: another program may have the port of the door.
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
        with _reach((address, int(port)), bytes.fromhex(known["key"])) as door:
            door.send_bytes(" ".join(words).encode())
            return int(door.recv_bytes())
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
        door = Connection(os.dup(reached.fileno()))
        try:
            answer_challenge(door, key)
            deliver_challenge(door, key)
        except BaseException:
            door.close()
            raise
        # The command may take as long as it likes.
        reached.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, 0))
    return door


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
