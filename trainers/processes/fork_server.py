"""The fork server: a process per node that has imported the framework and forks the users' Python commands.

Run by the supervisor's interpreter from the repository's folder, standard library only:

    python -m trainers.processes.fork_server SOCKET OWNER_PID MODULE,MODULE IDLE_S

It detaches itself, imports the modules, listens on the Unix socket at the path SOCKET, writes `ready` to its standard
output, and ends when the process OWNER_PID does, or after IDLE_S seconds without a command (0: not).  One connection
asks for one command: a line of JSON (see `_receive`) with four descriptors: standard output, standard error, the
script's channel, the shim's status.  The answer is `{"pid": n}` with a pidfd of the shim, or `{"refused": why}`.  The
connection is the life line: when its other end closes, the shim ends the command and all below it.

Every command has a shim of its own (`trainers/processes/command_shim.py`), forked from here, which forks the command.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import importlib.abc
import json
import os
import select
import shutil
import signal
import site
import socket
import sys
import traceback
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType, TracebackType
from typing import Any

from trainers.isolation import confinement, own_namespaces
from trainers.processes import command_shim
from trainers.processes import fork_server_child as child_side
from trainers.processes.fork_server_child import ForkedCommand
from trainers.processes.fork_server_layer import unfit_layer
from trainers.processes.fork_server_rules import (
    PythonInvocation,
    WarmState,
    hidden_module,
    marks_of,
    needs_fresh_start,
)

#: Longest request.
_REQUEST_BYTES = 1 << 20
#: Seconds that a caller may take to send its request.
_ASK_S = 10.0
#: Seconds that a forked process may take to look at the files of a job, less than its caller waits for the answer.
_LOOK_S = 3.0
#: Set for the fork server alone: padding that reserves memory for a command's environment, and variables that keep
#: libraries from starting threads.
PADDING_VARIABLE = "REMORA_PADDING"
SINGLE_THREADED = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def serve(path: str, owner: int, modules: list[str], idle_s: float) -> tuple[ForkedCommand, list[int]] | None:
    """Serve until the owner ends or nothing was asked for `idle_s`, then return None.

    In the process of a command it returns what that is to become.
    """
    ready = _detach()
    try:
        owner_fd = os.pidfd_open(owner)
    except ProcessLookupError:
        return None
    _forget_our_packages()
    warm_state = _warm_up(modules)
    threads = len(os.listdir("/proc/self/task"))
    if threads != 1:
        os.write(ready, f"importing {','.join(modules)} starts threads, which a fork would lose".encode())
        return None
    listening = _listen(path)
    # The kernel reaps the shims: supervisors wait for them with a pidfd.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    # A forked process writes on the pages that it uses; the collector would make it write on all of them.
    gc.collect()
    gc.freeze()
    os.write(ready, b"ready")
    os.close(ready)
    while True:
        readable, _, _ = select.select([listening.fileno(), owner_fd], [], [], idle_s or None)
        if owner_fd in readable or not readable:
            shutil.rmtree(os.path.dirname(path), ignore_errors=True)
            return None
        with contextlib.suppress(OSError):
            connection, _ = listening.accept()
            # The fork reads the request: this process never knows anything of a job, and so no other fork does.
            if os.fork() == 0:
                listening.close()
                os.close(owner_fd)
                request = _accept_request(connection, warm_state)
                if request is None:
                    os._exit(0)
                return _become_shim(connection, *request)
            connection.close()


def _detach() -> int:
    """Detach from the parent, in a session of its own; returns the descriptor on which readiness is reported."""
    ready = os.dup(1)
    if os.fork() != 0:
        os._exit(0)
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.close(null)
    return ready


def _forget_our_packages() -> None:
    """Forget our packages, so that a script finds its own folders of the same names."""
    del sys.path[0]
    for name in [one for one in sys.modules if one.partition(".")[0] == "trainers"]:
        del sys.modules[name]
    os.chdir("/")


class _MissedModules(importlib.abc.MetaPathFinder):
    """As the last finder it is asked for each module that the others did not find, and notes its name."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find nothing."""
        if path is None:
            self.names.add(fullname)
        return None


def _warm_up(modules: list[str]) -> WarmState:
    """Import what can be imported."""
    missed = _MissedModules()
    sys.meta_path.append(missed)
    before = {k: v for k, v in os.environ.items() if k != PADDING_VARIABLE and k not in SINGLE_THREADED}
    for name in modules:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError:
            continue
        except Exception:  # the script that imports it fails too, where its user sees it
            traceback.print_exc()
    added = {name: value for name, value in os.environ.items() if name not in before}
    for name in (PADDING_VARIABLE, *SINGLE_THREADED):
        added.pop(name, None)
    loaded = frozenset(name.partition(".")[0] for name in sys.modules) - {"__main__"}
    sys.meta_path.remove(missed)
    packages = frozenset(os.path.realpath(one) for one in site.getsitepackages() if os.path.isdir(one))
    return WarmState(
        loaded=loaded, environment=before, added=added, missed=frozenset(missed.names), packages=packages
    )


def _listen(path: str) -> socket.socket:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # The path of a socket may have 107 bytes, and that of the node's folder any number.
    folder = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY)
    listening.bind(f"/proc/self/fd/{folder}/{os.path.basename(path)}")
    os.close(folder)
    listening.listen(64)
    return listening


def _accept_request(
    connection: socket.socket, warm_state: WarmState
) -> tuple[ForkedCommand, float, list[int]] | None:
    """The request, the seconds that the command may take to end, and descriptors; None when it was refused."""
    connection.settimeout(_ASK_S)
    descriptors: list[int] = []
    try:
        command, grace_s = _receive(connection, descriptors)
        with _ends_after(_LOOK_S):
            refused = _refusal(command, warm_state)
    except (OSError, ValueError, KeyError, TypeError) as error:
        refused = f"the request was not understood: {error!r}"
    if not refused:
        return command, grace_s, descriptors
    with contextlib.suppress(OSError):
        connection.sendall(json.dumps({"refused": refused}).encode() + b"\n")
    return None


@contextlib.contextmanager
def _ends_after(seconds: float) -> Iterator[None]:
    """Within this context the process ends by itself when the time is over: then the command is started."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)


def _receive(connection: socket.socket, descriptors: list[int]) -> tuple[ForkedCommand, float]:
    received = b""
    while not received.endswith(b"\n"):
        chunk, more, _, _ = socket.recv_fds(connection, _REQUEST_BYTES, 4)
        descriptors.extend(more)
        received += chunk
        if not chunk or len(received) > _REQUEST_BYTES:
            raise ValueError("it is cut")
    request: dict[str, Any] = json.loads(received)
    if len(descriptors) != 4:
        raise ValueError("it needs four descriptors")
    command = ForkedCommand(
        command=request["command"],
        invocation=PythonInvocation(**request["form"]),
        environment=request["environment"],
        variable_files=request["variable_files"],
        folder=request["folder"],
        supervisor=request["supervisor"],
        own_cgroup=request["own_cgroup"],
        cgroups=request["cgroups"],
        python=request.get("python"),
        packages=request.get("packages"),
        layer=request.get("layer"),
        walls=request["walls"],
    )
    # The script's channel has another number here.
    command.environment[request["channel_variable"]] = str(descriptors[2])
    return command, request["grace_s"]


def _refusal(command: ForkedCommand, warm_state: WarmState) -> str | None:
    # Of a variable with a secret its name says enough: its value is not read here.
    variable = needs_fresh_start({**command.environment, **command.variable_files}, warm_state.environment)
    if variable is not None:
        return f"{variable} is read when an interpreter starts"
    for name, value in warm_state.added.items():
        command.environment.setdefault(name, value)
    if child_side.size_of(command.environment) + _size_of_files(command) > child_side.max_size():
        return "the environment is too big"
    script = os.path.join(command.folder, command.invocation.target)
    folder = (
        os.path.dirname(os.path.realpath(script)) if command.invocation.kind == "script" else command.folder
    )
    if command.invocation.kind == "script" and not os.path.isfile(script):
        return "there is no such script"
    hidden = hidden_module(
        os.listdir(folder),
        warm_state.loaded,
        lambda name: os.path.exists(os.path.join(folder, name, "__init__.py")),
    )
    if hidden is not None:
        return f"{hidden} in the folder of the script has the name of a loaded module"
    return None if command.layer is None else unfit_layer(command.layer, warm_state)


def _size_of_files(command: ForkedCommand) -> int:
    """Bytes that variables take whose values lie in files."""
    return sum(
        len(os.fsencode(name)) + 2 + os.stat(path).st_size for name, path in command.variable_files.items()
    )


def _become_shim(
    connection: socket.socket, command: ForkedCommand, grace_s: float, descriptors: list[int]
) -> tuple[ForkedCommand, list[int]]:
    """Be the shim of a command; returns only in the forked process of the command."""
    *streams, status = descriptors
    try:
        child_side.take_name(
            f"command_shim.py for {' '.join(command.command)}", marks_of(command.environment)
        )
        began_at = command_shim.announce(connection, are_two=not command.cgroups)
        errors_read, errors_write = os.pipe()
        child = os.fork()
        if child == 0:
            command_shim.leave_shim(command.supervisor, command.cgroups)
            # What the fork server has open is not the command's, nor that of others of the job's user: they may look
            # into this process as soon as it has become that user.
            child_side.close_all_but([*streams, errors_write])
            _confine(command, errors_write)
            os.close(errors_write)
            # From here on, and not before, the job's variables are in effect.
            command.environment.update(command_shim.with_secrets(command.environment, command.variable_files))
            child_side.take_environment(command)
            child_side.take_name(" ".join(command.command), command.environment)
            os.set_inheritable(streams[2], True)
            return command, streams[:2]
        os.close(errors_write)
        _close(streams)
        with os.fdopen(errors_read, "rb") as errors:
            start_failed = errors.read().decode(errors="replace")
        command_cgroup = command_shim.enter_own_cgroup(command.cgroups, command.own_cgroup)
        memory_since = None if command.walls else began_at
        has_namespaces = bool(command.walls and command.walls["has_namespaces"])
        command_shim.run_to_end(
            child, status, grace_s, command_cgroup, memory_since, start_failed, has_namespaces=has_namespaces
        )
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def _confine(command: ForkedCommand, errors: int) -> None:
    """In the command's process: become the job's user.  Where that is not possible the process ends, and says why."""
    if not command.walls:
        return
    try:
        confine = own_namespaces.confine if command.walls["has_namespaces"] else confinement.confine
        confine(command.walls, command.folder)
    except OSError as error:
        os.write(errors, f"{command.command[0]}: {error.strerror}".encode())
        os._exit(127)


def _close(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def _hide_own_frames() -> None:
    """Leave our own frames out of the traceback of an uncaught exception."""
    shown = sys.excepthook
    ours = {__file__, child_side.__file__}

    def show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        rest = step = trace
        while step is not None:
            if step.tb_frame.f_code.co_filename in ours:
                rest = step.tb_next
            step = step.tb_next
        shown(kind, error.with_traceback(rest), rest)

    sys.excepthook = show


if __name__ == "__main__":
    _modules = [name for name in sys.argv[3].split(",") if name]
    _served = serve(sys.argv[1], int(sys.argv[2]), _modules, float(sys.argv[4]))
    if _served is not None:
        # At the bottom of the stack, so that the interpreter ends the script like any other.
        try:
            child_side.become(_served[0], *_served[1])()
        except SystemExit:
            raise
        except BaseException:
            _hide_own_frames()
            raise
