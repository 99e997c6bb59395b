"""The process of a node that has imported what Ray's workers import, and forks them.

    python warm.py LISTENING SOCKET DEFAULT_WORKER ARGUMENT...

Started by the first launcher of a raylet for one of Ray's jobs (`launcher.py`), with the environment that the raylet
gives that job's workers, because Ray reads it when it is imported and never again.  It takes connections on the
descriptor LISTENING, which lies at the path SOCKET, and ends with the raylet, or after 15 minutes without a request.

It has one thread and no connection to Ray: a fork loses threads, and what they had locked stays locked.  Nor has it
drawn any of Ray's ids: all forks would draw the same ones.  Where importing does either, it ends, and every worker is
started.

A forked worker is what `python DEFAULT_WORKER ARGUMENT...` would be: it has the environment, folder, signals, streams
and process group of the launcher that asked for it, and new random seeds.  Its parent is this process.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import marshal
import os
import random
import select
import signal
import socket
import struct
import sys
import traceback
from collections.abc import Mapping
from types import CodeType, ModuleType
from typing import Any

FORKING, FORKED = b"forking\n", b"forked\n"
#: Keeps libraries from starting threads while they are imported; a worker has what its raylet says again.
_SINGLE_THREADED = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
}
_MODULES_VARIABLE = "REMORA_FORKED_MODULES"
_RAYLET_VARIABLE = "RAY_RAYLET_PID"
#: Seconds after the last worker that was asked for: the controller whose job it was may be gone.
_IDLE_S = 900.0
#: Seconds that a launcher may take to say what it wants, and bytes that it may say.
_ASK_S = 5.0
_REQUEST_BYTES = 1 << 20


def serve(listening: socket.socket, path: str, script: str) -> tuple[dict[str, Any], CodeType] | None:
    """Serve until the raylet ends or no request came for `_IDLE_S`; in a forked worker, return its request and code."""
    try:
        raylet = os.pidfd_open(int(os.environ[_RAYLET_VARIABLE]))
    except (ProcessLookupError, KeyError, ValueError):
        return None
    rays_part = _rays_part(os.environ)
    _import_all()
    with open(script, "rb") as file:
        code = compile(file.read(), script, "exec", dont_inherit=True)
    if why := _why_not():
        print(f"Ray's workers are not forked: {why}", file=sys.stderr, flush=True)
        return None
    # The kernel reaps the workers: their raylet sees by their connections that they have ended.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    # A forked process writes on the pages that it uses; the collector would make it write on all of them.
    gc.collect()
    gc.freeze()
    while True:
        readable, _, _ = select.select([listening.fileno(), raylet], [], [], _IDLE_S)
        if not readable:
            # As if there had been none.  Who connects in this moment starts its worker.
            for name in (path, f"{path}.starts", f"{path}.pid"):
                with contextlib.suppress(OSError):
                    os.unlink(name)
        if not readable or raylet in readable:
            return None
        with contextlib.suppress(OSError, ValueError, EOFError, TypeError, KeyError):
            connection, _ = listening.accept()
            with connection:
                descriptors: list[int] = []
                try:
                    request = _hear(connection, descriptors, rays_part)
                    connection.sendall(FORKING)
                    if os.fork() == 0:
                        listening.close()
                        os.close(raylet)
                        _become(request, descriptors, connection)
                        # From here on, and not before, what goes wrong is the worker's own.
                        return request, code
                finally:
                    for descriptor in descriptors:
                        os.close(descriptor)


def _import_all() -> None:
    """Import what workers import; what cannot be imported is left to them."""
    before = dict(os.environ)
    os.environ.update(_SINGLE_THREADED)
    names = [name for name in before.get(_MODULES_VARIABLE, "").split(",") if name]
    # What Ray's own script imports stands at its top, and it does nothing else unless it is run.
    import ray._private.workers.default_worker
    import ray.actor

    drawn = ray.actor.ActorClassID
    ray.actor.ActorClassID = _ActorClassIds(drawn)
    for name in names:
        try:
            importlib.import_module(name)
        except Exception:
            traceback.print_exc()
    ray.actor.ActorClassID = drawn


class _ActorClassIds:
    """Draws the ids of actors' classes from the kernel while they are defined.

    Ray would draw them in C++, from numbers that are seeded once in a process: all forked workers would go on with
    the same ones, and give the same ids to their tasks, objects and reservations.
    """

    def __init__(self, kind: Any) -> None:
        self._kind = kind

    def from_random(self) -> Any:
        return self._kind(os.urandom(self._kind.size()))


def _why_not() -> str:
    """Why nothing may be forked from this process; empty: it may."""
    threads = len(os.listdir("/proc/self/task"))
    if threads != 1:
        return f"importing their modules starts threads ({threads - 1})"
    if _drawn_in_a_fork() == _drawn_in_a_fork():
        return "importing their modules draws ids in C++, and all of them would draw the same ones"
    return ""


def _drawn_in_a_fork() -> bytes:
    """What a forked process draws as its first id."""
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        try:
            from ray._raylet import UniqueID

            os.write(writing, UniqueID.from_random().binary())
        finally:
            os._exit(0)
    os.close(writing)
    drawn = os.read(reading, 64)
    os.close(reading)
    os.waitpid(child, 0)
    return drawn


def _hear(connection: socket.socket, descriptors: list[int], rays_part: Mapping[str, str]) -> dict[str, Any]:
    """What a launcher of this user wants.  Raises OSError, ValueError, EOFError."""
    connection.settimeout(_ASK_S)
    _, user, _ = struct.unpack(
        "3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    )
    if user != os.getuid():
        raise ValueError(f"user {user} is not ours")
    head, received, _, _ = socket.recv_fds(connection, 4, 3)
    descriptors.extend(received)
    if len(head) != 4 or len(received) != 3:
        raise ValueError("the request is cut")
    (size,) = struct.unpack("<I", head)
    if size > _REQUEST_BYTES:
        raise ValueError("the request is too long")
    content = connection.recv(size, socket.MSG_WAITALL)
    if len(content) != size:
        raise EOFError
    request: dict[str, Any] = marshal.loads(content)  # noqa: S302 - of a process of this user
    if _rays_part(request["environment"]) != rays_part:
        raise ValueError("Ray would read other settings if it was imported now")
    return request


def _rays_part(environment: Mapping[str, str]) -> dict[str, str]:
    """What Ray reads of an environment while it is imported."""
    return {k: v for k, v in environment.items() if k.startswith("RAY_")}


def _become(request: dict[str, Any], descriptors: list[int], connection: socket.socket) -> None:
    """Be what the launcher is, which waits until this has its process group; ends this process where that fails."""
    try:
        _take_place(request, descriptors)
        connection.sendall(FORKED)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def _take_place(request: dict[str, Any], descriptors: list[int]) -> None:
    try:
        # While the launcher lives its group is there.
        os.setpgid(0, request["group"])
    except OSError:
        os.setpgid(0, 0)
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    os.umask(request["umask"])
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number in request["ignored"]:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, request["mask"])
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write(request["oom"])
    random.seed()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()


def run(request: dict[str, Any], code: CodeType) -> None:
    """Run Ray's script as `python` would."""
    words: list[str] = request["words"]
    script = words[0]
    main = ModuleType("__main__")
    main.__file__ = script
    main.__builtins__ = __builtins__  # type: ignore[attr-defined]
    sys.modules["__main__"] = main
    sys.argv[:] = words
    exec(code, main.__dict__)  # noqa: S102 - Ray's own script


if __name__ == "__main__":
    # Out of the launcher's process group, which its raylet ends as that of a worker.
    os.setpgid(0, 0)
    _listening = socket.socket(fileno=int(sys.argv[1]))
    with open(f"{sys.argv[2]}.pid", "w") as _file:
        _file.write(str(os.getpid()))
    os.closerange(3, _listening.fileno())
    os.closerange(_listening.fileno() + 1, 1 << 16)
    _null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(_null, 0)
    os.close(_null)
    # As for a worker: modules are not looked for beside this one.
    sys.path[0] = os.path.dirname(sys.argv[3])
    _request = serve(_listening, sys.argv[2], sys.argv[3])
    if _request is not None:
        run(*_request)
