"""The supervisor's side of the fork server: starts it once per node, and has commands forked by it."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import logging
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from remora.script import channel
from trainers.environments.build import BuiltEnvironment
from trainers.environments.worker_python import WorkerPython
from trainers.isolation.confined import Confinement
from trainers.isolation.variables import MACHINE_MARKS, machine_variables
from trainers.node_folders import work_root
from trainers.processes.fork_server import PADDING_VARIABLE, SINGLE_THREADED
from trainers.processes.fork_server_rules import PythonInvocation, marks_of, parse_invocation

log = logging.getLogger(__name__)

_ROOT = Path(__file__).resolve().parents[2]
#: Bytes for a command's environment and for its title.
_PADDING_BYTES, _TITLE_BYTES = 100_000, 4000
#: Longest request, which a socket takes in one chunk.
_REQUEST_BYTES = 150_000
#: Seconds that importing the framework may take.
_WARM_UP_S = 60.0
#: Seconds without a command after which the fork server of a job's environment ends.
_IDLE_S = 900.0
#: The oldest Python whose fork server this is.
_OLDEST = (3, 11)
#: Seconds that a warm interpreter may take to fork.
_FORK_S = 5.0
#: What is of no use to the fork server, or would be wrong for the commands it forks.
_HIDDEN = ("RAY_", "REMORA_", "PYTHONPATH", "PYTHONUNBUFFERED", "CUDA_VISIBLE_DEVICES")


@dataclass(frozen=True)
class CommandShim:
    """The shim of a command, which is no child of this process."""

    pid: int
    _pidfd: int
    #: Closes when this process ends, and then the shim ends the command.
    _life_line: socket.socket
    #: True when the fork server made it.
    is_forked: bool

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal, also when it is stopped (SIGSTOP); does nothing when it is gone."""
        with contextlib.suppress(ProcessLookupError, OSError):
            signal.pidfd_send_signal(self._pidfd, number)
            signal.pidfd_send_signal(self._pidfd, signal.SIGCONT)

    def wait(self) -> None:
        """Wait until it is gone."""
        _wait_readable(self._pidfd, None)

    def close(self) -> None:
        """Close its descriptors; to be called once, when it is gone."""
        os.close(self._pidfd)
        self._life_line.close()


@dataclass(frozen=True, kw_only=True)
class ShimRequest:
    """One command that is to run under a shim."""

    command: list[str]
    #: Working directory.
    folder: Path
    #: All environment variables of the command.
    environment: Mapping[str, str]
    grace_s: float
    #: Files that the command's own process reads into its environment, by variable: nothing else has their contents.
    variable_files: Mapping[str, str] = dataclasses.field(default_factory=dict)
    #: Folder of the shim's cgroup; empty where there are none.
    own_cgroup: str = ""
    #: Folders of the cgroups that the command enters; every process in the first one is the command's.
    cgroups: tuple[str, ...] = ()
    #: The worker's own interpreter; None: the command has the same as the fork server.
    python: WorkerPython | None = None
    #: A process in the container that the command enters; 0: it enters none.
    container: int = 0
    #: What makes the command a process of the job's own user; None: it is one of the node's.
    confinement: Confinement | None = None
    #: Its standard input is a terminal, which becomes that of its session.
    has_terminal: bool = False

    def program(self) -> Path | None:
        """The file that the command starts."""
        found = shutil.which(self.command[0], path=self.environment.get("PATH"))
        return None if found is None else Path(found).absolute()

    def has_own_python(self) -> bool:
        """The command starts the worker's own interpreter."""
        found = self.program()
        return self.python is not None and found is not None and found.parent == self.python.python.parent

    def fields(self) -> dict[str, object]:
        """What the shim has to know, apart from descriptors."""
        return {
            "environment": dict(self.environment),
            "variable_files": dict(self.variable_files),
            "grace_s": self.grace_s,
            "supervisor": os.getpid(),
            "own_cgroup": self.own_cgroup,
            "cgroups": list(self.cgroups),
            "container": self.container,
            "has_terminal": self.has_terminal,
            "walls": None if self.confinement is None else self.confinement.fields(),
        }


def receive_shim(life_line: socket.socket, *, is_forked: bool) -> CommandShim:
    """The shim that announces itself on its life line.  Raises OSError with the reason that it gave, when none does."""
    received, descriptors, _, _ = socket.recv_fds(life_line, 1 << 16, 1)
    answer = json.loads(received or b'{"refused": "it is gone"}')
    if not descriptors:
        raise OSError(str(answer.get("refused")))
    return CommandShim(answer["pid"], descriptors[0], life_line, is_forked)


class ForkServer:
    """The fork server of this node, started by the first process that needs it."""

    def __init__(
        self, folder: Path, owner: int, modules: Sequence[str], python: Path | None = None, idle_s: float = 0
    ) -> None:
        """`folder` is the node's own and private; the server ends with the process `owner` (a pid).

        It runs the interpreter `python`, None: this one.  After `idle_s` seconds without a command it ends, 0: never.
        """
        self._folder = folder
        self._owner = owner
        self._modules = modules
        self._python = python or Path(sys.executable)
        self._idle_s = idle_s

    def invocation_of(self, request: ShimRequest) -> PythonInvocation | None:
        """What a command runs, if it starts this server's interpreter in a way that a fork can replace."""
        found = request.program()
        if found is None or not os.path.samefile(found, self._python):
            return None
        is_ours = found.parent == self._python.absolute().parent
        is_above = request.has_own_python() and (self._is_base(request) or self._layer(request) is not None)
        return parse_invocation(request.command[1:]) if is_ours or is_above else None

    def _is_base(self, request: ShimRequest) -> bool:
        """The worker's own interpreter lies directly above this server's."""
        return request.python is not None and request.python.base == self._python

    def _layer(self, request: ShimRequest) -> Path | None:
        """The packages of a job's environment that lie between the worker's own interpreter and this server's."""
        return None if request.python is None or self._is_base(request) else request.python.layer

    def ensure(self) -> None:
        """Wait until it has imported its modules.  Raises OSError when it cannot be, or TimeoutError."""
        self._connect().close()

    def fork(
        self, shim_request: ShimRequest, invocation: PythonInvocation, descriptors: list[int]
    ) -> CommandShim | None:
        """Start a command; None when it has to be started in another way: the log says why.

        `descriptors`: standard output, standard error, the script's channel, the shim's status.
        """
        request: dict[str, object] = {
            **shim_request.fields(),
            "command": shim_request.command,
            "form": dataclasses.asdict(invocation),
            "folder": str(shim_request.folder),
            "channel_variable": channel.FD_VARIABLE,
        }
        if shim_request.has_own_python() and (python := shim_request.python) is not None:
            request |= {"python": str(python.python), "packages": str(python.packages)}
            if (layer := self._layer(shim_request)) is not None:
                request["layer"] = str(layer)
        line = json.dumps(request).encode() + b"\n"
        if len(line) > _REQUEST_BYTES:
            return None
        try:
            connection = self._connect()
        except OSError as error:
            log.warning("no warm start: %s", error)
            return None
        try:
            connection.settimeout(_FORK_S)
            socket.send_fds(connection, [line], descriptors)
            return receive_shim(connection, is_forked=True)
        except (OSError, ValueError) as error:
            # Closing the life line ends what may have been forked all the same.
            connection.close()
            log.debug("no warm start: %s", error)
            return None

    def _connect(self) -> socket.socket:
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        path = self._folder / "socket"
        with (self._folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            try:
                return _connect(path)
            except (FileNotFoundError, ConnectionRefusedError):
                self._start(path)
                return _connect(path)

    def _start(self, path: Path) -> None:
        process = subprocess.Popen(
            [
                *(self._python, "-m", "trainers.processes.fork_server", str(path), str(self._owner)),
                *(",".join(self._modules), str(self._idle_s), " " * _TITLE_BYTES),
            ],
            cwd=_ROOT,
            env=server_environment(os.environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
        )
        assert process.stdout is not None
        with process.stdout as output:
            # It detaches itself at once: it must outlive this process, whose end ends all its children.
            process.wait()
            readable, _, _ = select.select([output], [], [], _WARM_UP_S)
            answer = (
                os.read(output.fileno(), 1000).decode(errors="replace") if readable else "it takes too long"
            )
        if answer != "ready":
            raise OSError(f"the fork server did not start: {answer or 'it ended'}")


def _connect(path: Path) -> socket.socket:
    """Raises OSError.  The path of a socket may have 107 bytes, and that of the node's folder any number."""
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(f"/proc/self/fd/{folder}/{path.name}")
    except BaseException:
        connection.close()
        raise
    finally:
        os.close(folder)
    return connection


def job_fork_server(modules: Sequence[str], built: BuiltEnvironment | None) -> ForkServer | None:
    """The fork server of a job's environment on this node, None: of the node's own, for a process of its raylet.

    None when there is nothing to import, or the interpreter is too old to run it.
    """
    raylet = os.getppid()
    if not modules:
        return None
    if built is None:
        return ForkServer(work_root() / f"fork-server-{raylet}", raylet, modules)
    if built.version < _OLDEST:
        return None
    folder = work_root() / f"fork-server-{raylet}-{built.build_id}"
    return ForkServer(folder, raylet, modules, built.python, _IDLE_S)


def _wait_readable(descriptor: int, timeout_s: float | None) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(None if timeout_s is None else timeout_s * 1000))


def server_environment(inherited: Mapping[str, str]) -> dict[str, str]:
    """The fork server's environment: the machine's own, one thread, and padding that a command's may overwrite."""
    return {**_own(inherited), **SINGLE_THREADED, PADDING_VARIABLE: "x" * _PADDING_BYTES}


def _own(inherited: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in machine_variables(inherited).items()
        if name in MACHINE_MARKS or not name.startswith(_HIDDEN)
    }


def shim_environment(inherited: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of a shim that is started: the machine's own, and which worker its command belongs to."""
    return {**_own(inherited), **marks_of(environment)}
