"""What a raylet runs to get a worker process: it asks the warm process of this node to fork one, and ends.

    python launcher.py [FLAG...] DEFAULT_WORKER ARGUMENT...

The first launcher of a raylet for one of Ray's jobs starts the warm process (`warm.py`), which listens beside the
raylet's own socket, and ends with the raylet.  What it could not fork, a worker with a runtime environment or one that
moves objects to disks, is started as Ray starts it; so is what it cannot fork because it is gone, and then the raylet's
log says so in one sentence.

A worker is forked once or started once, never both: the warm process says `forking` before it forks, and one that does
not answer is killed before its answer is looked for a last time.  Standard library only, and little of it: each worker
waits for what is imported here.
"""

from __future__ import annotations

import fcntl
import marshal
import os
import signal
import socket
import struct
import sys
from typing import NoReturn

#: Seconds that the warm process may take to answer: at first it imports.  Ray gives a worker 60 to register.
ANSWER_S = 40.0
#: How often a warm process is started for one raylet.
MOST_STARTS = 3
FORKING, FORKED = b"forking\n", b"forked\n"
_WARM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "warm.py")
_RAYLET_VARIABLE = "RAY_RAYLET_PID"
_JOB_VARIABLE = "RAY_JOB_ID"
_PYTHON = "--language=PYTHON"


class _CannotFork(Exception):
    """Why a worker is started as Ray does."""


def main(words: list[str]) -> None:
    """Get the worker forked, or become it."""
    if not _is_plain(words):
        # Ray's own script for workers takes all of this.
        script = next(word for word in words if not word.startswith("-"))
        _become(os.path.join(os.path.dirname(script), "setup_worker.py"), *words)
    # What is meant for that script alone.
    words = [word for word in words if word != _PYTHON]
    try:
        _ask(words)
    except _CannotFork as error:
        print(f"a worker process is started, not forked: {error}", file=sys.stderr, flush=True)
        _become(*words)


def _become(*words: str) -> NoReturn:
    os.execv(sys.executable, [sys.executable, *words])


def _ask(words: list[str]) -> None:
    raylet, job = os.environ.get(_RAYLET_VARIABLE, ""), os.environ.get(_JOB_VARIABLE, "")
    name = _value(words, "--raylet-name")
    if not raylet.isdecimal() or not job.isalnum() or not name:
        raise _CannotFork("its raylet does not say which one it is, or for which job")
    path = os.path.join(os.path.dirname(name), f"warm.{raylet}.{job}")
    request = marshal.dumps(
        {
            "words": words,
            "environment": dict(os.environ),
            "folder": os.getcwd(),
            "umask": _umask(),
            "group": os.getpgid(0),
            "mask": sorted(int(one) for one in signal.pthread_sigmask(signal.SIG_BLOCK, ())),
            "ignored": [
                int(n) for n in (signal.SIGCHLD, signal.SIGHUP) if signal.getsignal(n) is signal.SIG_IGN
            ],
            "oom": _oom(),
        }
    )
    try:
        connection = _connect(path, words)
    except OSError as error:
        raise _CannotFork(f"its node's warm process cannot be reached ({error})") from None
    connection.settimeout(ANSWER_S)
    try:
        socket.send_fds(connection, [struct.pack("<I", len(request))], [0, 1, 2])
        connection.sendall(request)
        answer = connection.recv(len(FORKING), socket.MSG_WAITALL)
    except TimeoutError:
        answer = _kill(connection)
    except OSError:
        answer = b""
    if answer != FORKING:
        raise _CannotFork("its node's warm process has ended")
    # It takes this process's group, which is there for as long as this process is.
    try:
        connection.recv(len(FORKED), socket.MSG_WAITALL)
    except OSError as error:
        print(f"a forked worker process did not begin: {error}", file=sys.stderr, flush=True)


def _is_plain(words: list[str]) -> bool:
    """A worker in Python, for tasks and actors, without a runtime environment or flags of the interpreter."""
    return (
        os.path.basename(words[0]) == "default_worker.py"
        and _PYTHON in words
        and _value(words, "--worker-type") in ("", "WORKER")
        and not any(word.startswith("--serialized-runtime-env-context") for word in words)
    )


def _value(words: list[str], flag: str) -> str:
    return next((word.partition("=")[2] for word in words if word.startswith(f"{flag}=")), "")


def _connect(path: str, words: list[str]) -> socket.socket:
    """A connection to the warm process, which is started if there is none.  Raises OSError, and _CannotFork."""
    with open(f"{path}.starts", "ab+") as starts:
        fcntl.flock(starts, fcntl.LOCK_EX)
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.connect(path)
        except (FileNotFoundError, ConnectionRefusedError):
            if os.fstat(starts.fileno()).st_size >= MOST_STARTS:
                raise _CannotFork(f"its node's warm process has ended {MOST_STARTS} times") from None
            starts.write(b".")
            starts.flush()
            _start_warm(path, words)
            connection.connect(path)
    return connection


def _start_warm(path: str, words: list[str]) -> None:
    """Start the warm process, detached, with a socket that accepts connections from now on."""
    if os.path.exists(path):
        os.unlink(path)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    old = os.umask(0o177)
    listening.bind(path)
    os.umask(old)
    listening.listen(256)
    if (child := os.fork()) == 0:
        if os.fork() == 0:
            os.set_inheritable(listening.fileno(), True)
            # Its arguments are as long as those of a worker: the names of those lie in their place.
            command = [sys.executable, _WARM, str(listening.fileno()), path, *words]
            os.execv(sys.executable, command)
        os._exit(0)
    os.waitpid(child, 0)
    listening.close()


def _kill(connection: socket.socket) -> bytes:
    """End a warm process that does not answer; what it had answered before.

    Where that fails nothing is started, since it might still be forked: the raylet asks for another one in a minute.
    """
    # The kernel knows who called `listen`, not who listens now: it says its pid itself, in a file beside its socket.
    try:
        with open(f"{connection.getpeername()}.pid") as file:
            warm = os.pidfd_open(int(file.read()))
        signal.pidfd_send_signal(warm, signal.SIGKILL)
    except ProcessLookupError:
        pass
    except (OSError, ValueError) as error:
        sys.exit(f"no worker process is started: the warm process neither answers nor can be ended ({error})")
    try:
        return connection.recv(len(FORKING), socket.MSG_WAITALL)
    except OSError:
        return b""


def _umask() -> int:
    old = os.umask(0o077)
    os.umask(old)
    return old


def _oom() -> str:
    try:
        with open("/proc/self/oom_score_adj") as file:
            return file.read().strip()
    except OSError:
        return ""


if __name__ == "__main__":
    main(sys.argv[1:])
