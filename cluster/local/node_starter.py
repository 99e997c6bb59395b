"""python -m cluster.local.node_starter --home DIR: starts nodes for controllers, so that nodes outlive them.

What a process in a container starts ends with the container.  Where controllers run in containers, this process runs in
one of its own that stays, and shares with them process ids, the home and the folder of Ray's sockets.  It listens
at a Unix socket in the private folder of the nodes: one request for each connection, a line of JSON, answered by one.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cluster.local.folders import ClusterFolders

#: Set, in the environment of a controller, where this process starts all its nodes.
VARIABLE = "REMORA_NODES_BY_STARTER"
#: Its socket's name in the folder of the nodes.
SOCKET = "starter.sock"
#: Bytes of a request at most: an environment may be long.
MOST_BYTES = 2**20
#: Seconds that one side waits for the other.
TIMEOUT_S = 10.0
#: Seconds between two looks for children that have ended.
_REAP_S = 1.0
#: What a log is called: no path comes from a request.
_LOG = re.compile(r"[A-Za-z0-9_-]{1,128}\.log")
_CREDENTIALS = struct.Struct("3i")


class NodeStarterProblem(OSError):
    """Nothing was started; the message says why."""


class NoAnswer(NodeStarterProblem):
    """No answer came: the process may have been started all the same."""


def spawn(command: Sequence[str], environment: Mapping[str, str], log: Path) -> subprocess.Popen[bytes]:
    """Start a process in a session of its own, with what it prints in `log`.  Raises OSError."""
    with log.open("ab") as output:
        return subprocess.Popen(
            list(command),
            env=dict(environment),
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def ask(path: Path, command: Sequence[str], environment: Mapping[str, str], log: Path) -> int:
    """Have the starter at this socket start a process; returns its id.

    `log` lies in the socket's folder.  Raises NodeStarterProblem, which is NoAnswer once the request was sent.
    """
    request = json.dumps({"command": list(command), "environment": dict(environment), "log": log.name})
    if len(request) >= MOST_BYTES:
        raise NodeStarterProblem("the command and the environment of a node are too long for its starter")
    silent = f"the process that starts nodes does not answer at {path}; start its container again"
    try:
        connection = _connect(path)
    except OSError as error:
        raise NodeStarterProblem(f"{silent}: {error}") from error
    try:
        with contextlib.closing(connection):
            connection.sendall(f"{request}\n".encode())
            answer = json.loads(_line(connection))
    except (OSError, ValueError) as error:
        raise NoAnswer(f"{silent}: {error}") from error
    if isinstance(answer, dict) and isinstance(answer.get("pid"), int):
        return int(answer["pid"])
    why = answer.get("error") if isinstance(answer, dict) else None
    raise NodeStarterProblem(f"the process that starts nodes refuses: {str(why)[:300]}")


class NodeStarter:
    """Listens for requests, and starts what they ask for."""

    def __init__(self, nodes: Path) -> None:
        """`nodes` is the folder of the cluster's nodes.  Raises OSError when it cannot listen there."""
        self._nodes = nodes
        self._children: list[subprocess.Popen[bytes]] = []
        path = nodes / SOCKET
        # One that was killed leaves its socket.
        path.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        before = os.umask(0o077)
        try:
            self._listener.bind(str(path))
        finally:
            os.umask(before)
        self._listener.listen(16)
        self._listener.settimeout(_REAP_S)

    def step(self) -> None:
        """Wait a while for one request and answer it; take the exit codes of what has ended."""
        with contextlib.suppress(TimeoutError):
            connection, _ = self._listener.accept()
            with contextlib.closing(connection):
                connection.settimeout(TIMEOUT_S)
                # Who goes away or says nothing gets no answer, and others are served.
                with contextlib.suppress(OSError):
                    connection.sendall(json.dumps(self._answer(connection)).encode() + b"\n")
        self._children = [child for child in self._children if child.poll() is None]

    def _answer(self, connection: socket.socket) -> dict[str, Any]:
        _, user, _ = _CREDENTIALS.unpack(
            connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        )
        if user != os.getuid():
            return {"error": "another user asks"}
        try:
            command, environment, log = _request(_line(connection))
            child = spawn(command, environment, self._nodes / log)
        except (OSError, ValueError) as error:
            return {"error": str(error)}
        self._children.append(child)
        return {"pid": child.pid}

    def close(self) -> None:
        """Listen no more; what was started goes on."""
        self._listener.close()
        (self._nodes / SOCKET).unlink(missing_ok=True)


def _connect(path: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(TIMEOUT_S)
    try:
        connection.connect(str(path))
    except OSError:
        connection.close()
        raise
    return connection


def _line(connection: socket.socket) -> bytes:
    """One line.  Raises ValueError when it is too long or ends before its end, OSError when none comes."""
    found = bytearray()
    while not found.endswith(b"\n"):
        part = connection.recv(65536)
        if not part or len(found) + len(part) > MOST_BYTES:
            raise ValueError("what was sent is no line of JSON of at most 1 MiB")
        found += part
    return bytes(found)


def _request(line: bytes) -> tuple[list[str], dict[str, str], str]:
    """Command, environment and the name of the log.  Raises ValueError."""
    asked = json.loads(line)
    if not isinstance(asked, dict):
        raise ValueError("a request is an object of JSON")  # noqa: TRY004
    command, environment, log = (asked.get(name) for name in ("command", "environment", "log"))
    if not (isinstance(command, list) and command and all(isinstance(one, str) for one in command)):
        raise ValueError("`command` is a list of texts")
    if not (isinstance(environment, dict) and all(isinstance(one, str) for one in environment.values())):
        raise ValueError("`environment` is an object of texts")
    if not (isinstance(log, str) and _LOG.fullmatch(log)):
        raise ValueError("`log` is the name of a file, NODE.log")
    return command, environment, log


def main(words: Sequence[str]) -> int:
    """Start what is asked for until SIGTERM or SIGINT; the exit status of the process."""
    parser = argparse.ArgumentParser(prog="python -m cluster.local.node_starter", description=__doc__)
    parser.add_argument("--home", type=Path, required=True, help="the home of the cluster")
    folders = ClusterFolders(parser.parse_args(words).home.resolve())
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _end)
    try:
        folders.make()
        starter = NodeStarter(folders.nodes)
    except OSError as error:
        print(f"it cannot listen at {folders.nodes / SOCKET}: {error}", file=sys.stderr)
        return 2
    try:
        while True:
            starter.step()
    finally:
        starter.close()


def _end(*_: object) -> None:
    raise SystemExit(0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
