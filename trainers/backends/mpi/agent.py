"""What mpirun runs where it would run ssh: has a command run on another node of the attempt.

    python -S -E agent.py HOST WORD...

The door of that node (`door.py`) takes the words only from who knows the key of the worker group.  Where doors are,
and the key, stand in REMORA_MPI_DOORS: `{"doors": {host: [address, port]}, "key": hexadecimal}`.  Standard library
only.  Ends when the command has ended, with its exit code.
"""

from __future__ import annotations

import json
import os
import sys
import time
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection

#: Seconds that a node gets to open its door: its worker unpacks code and a checkpoint first.
_PATIENCE_S = 300.0
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
    except (OSError, EOFError, AuthenticationError) as error:
        print(f"node {host} did not run its part of mpirun: {error}", file=sys.stderr)
        return 1


def _reach(address: tuple[str, int], key: bytes) -> Connection:
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            return Client(address, authkey=key)
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
        time.sleep(_PAUSE_S)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
