"""Starts the user's command under a keeper, reads what it prints and what it says, and ends it."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import marshal
import os
import signal
import socket
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO

import psutil

from remora import cgroups
from remora.cgroups import Cgroup
from remora.script import channel
from trainers.supervisor.fork_server_client import (
    ForkServer,
    Keeper,
    Order,
    form_of_command,
    keeper_environment,
    take_keeper,
)
from trainers.supervisor.output import LineCutter

#: Set in the environment of the command, and so of all that it starts, to find them when the keeper cannot.
_MARK_VARIABLE = "REMORA_CHILD"
#: Tells whoever looks at a keeper or a command which process supervises it; a forked keeper is nobody's child.
_SUPERVISOR_VARIABLE = "REMORA_SUPERVISOR"
_KEEPER = Path(__file__).with_name("keeper.py")
_READ_SIZE = 1 << 16
#: Cgroups of a keeper and of what it keeps, below that of the worker.
_OWN_CGROUP, _KEPT_CGROUP = "keeper", "command"
#: Seconds that a keeper may take to kill its command before the supervisor does.
_OBEY_S = 1.0
#: Seconds that a keeper may take to start.
_KEEPER_S = 30.0

log = logging.getLogger(__name__)


class Child:
    """The user's process of one rank.

    `on_lines(stream, text)`, with one or more lines and newlines between them, and `on_message(message)` are called
    from threads of this object, and `on_lines` may block: then the script's writes block too.  `on_over` is called
    when the command is over and its last lines are not read yet.
    """

    def __init__(
        self,
        command: list[str],
        *,
        folder: Path,
        environment: Mapping[str, str],
        line_bytes: int,
        grace_s: float,
        on_lines: Callable[[str, str], None],
        on_message: Callable[[channel.Message], None],
        on_over: Callable[[], None] = lambda: None,
        fork_server: ForkServer | None = None,
        most_processes: int | None = None,
    ) -> None:
        """Start it: forked by the fork server when there is one and the command is of that kind, else by itself.

        It may have `most_processes` processes and threads, where the machine can count them.
        Raises ValueError or OSError for a command that the operating system cannot take.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        status_read, status_write = os.pipe()
        self._channel = ours
        self._sending = threading.Lock()
        self._status_read = status_read
        self._on_over = on_over
        self._mark = uuid.uuid4().hex
        outputs = [os.pipe(), os.pipe()]
        environment = {**environment, _MARK_VARIABLE: self._mark, _SUPERVISOR_VARIABLE: str(os.getpid())}
        theirs_all = [outputs[0][1], outputs[1][1], theirs.fileno(), status_write]
        self._cgroup = _make_cgroup(self._mark[:8], most_processes)
        order = Order(command=command, folder=folder, environment=environment, grace_s=grace_s)
        if self._cgroup is not None:
            order = _inside(order, self._cgroup)
        try:
            self._keeper = _fork(fork_server, order, theirs_all) or _start(order, theirs_all)
        except BaseException:
            if self._cgroup is not None:
                self._cgroup.end()
            ours.close()
            for descriptor in (status_read, outputs[0][0], outputs[1][0]):
                os.close(descriptor)
            raise
        finally:
            theirs.close()
            for descriptor in (status_write, outputs[0][1], outputs[1][1]):
                os.close(descriptor)
        self._threads = [
            *(
                threading.Thread(
                    target=self._read_lines, args=(name, os.fdopen(pipe[0], "rb"), line_bytes, on_lines)
                )
                for name, pipe in zip(("stdout", "stderr"), outputs, strict=True)
            ),
            threading.Thread(target=self._read_messages, args=(on_message,)),
        ]
        for thread in self._threads:
            thread.daemon = True
            thread.start()

    @property
    def pid(self) -> int:
        """Process id of the keeper."""
        return self._keeper.pid

    @property
    def is_warm(self) -> bool:
        """True when it was forked from the warm interpreter."""
        return self._keeper.is_forked

    def processes(self) -> list[int]:
        """Process ids of all that belongs to the command."""
        if self._cgroup is not None:
            return Cgroup(self._cgroup.path / _KEPT_CGROUP).processes()
        try:
            return [process.pid for process in psutil.Process(self.pid).children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def send(self, message: channel.Message) -> None:
        """Say something to the script; lost when it is gone."""
        with self._sending, contextlib.suppress(OSError):
            self._channel.sendall(channel.encode(message))

    def stop(self, *, at_once: bool) -> None:
        """End it: with a grace for its own SIGTERM code, or at once."""
        self._keeper.signal(signal.SIGUSR1 if at_once else signal.SIGTERM)
        if at_once and self._cgroup is not None:
            # Whatever the script does to its keeper, which shall still tell how it ended.
            late = threading.Timer(_OBEY_S, Cgroup(self._cgroup.path / _KEPT_CGROUP).send_kill)
            late.daemon = True
            late.start()

    def wait(self) -> dict[str, object]:
        """Wait until it and all that it started are gone and all output was handed on.

        Returns `{"exit_code": n}`, `{"signal": n}` or `{"start_failed": why}`, with `"outlived": n` when processes
        had to be ended after it.  Raises ProcessesRemain.
        """
        self._keeper.wait()
        self._on_over()
        with os.fdopen(self._status_read, "rb") as pipe:
            written = pipe.read()
        if self._cgroup is not None:
            self._cgroup.end()
        if not written:
            # Somebody killed the keeper, and what it kept is nobody's; the kernel ends the command itself only.
            end_marked(_MARK_VARIABLE, self._mark)
        for thread in self._threads:
            thread.join()
        self._channel.close()
        self._keeper.close()
        # The keeper writes nothing when it is killed itself.
        status: dict[str, object] = json.loads(written) if written else {"signal": signal.SIGKILL.value}
        return status

    @staticmethod
    def _read_lines(
        name: str, pipe: IO[bytes], line_bytes: int, on_lines: Callable[[str, str], None]
    ) -> None:
        cutter = LineCutter(line_bytes)
        with pipe:
            while received := os.read(pipe.fileno(), _READ_SIZE):
                if lines := list(cutter.feed(received)):
                    on_lines(name, "\n".join(lines))
        for line in cutter.finish():
            on_lines(name, line)

    def _read_messages(self, on_message: Callable[[channel.Message], None]) -> None:
        decoder = channel.Decoder()
        while True:
            try:
                received = self._channel.recv(_READ_SIZE)
            except OSError:
                return
            if not received:
                return
            for message in decoder.feed(received):
                on_message(message)


def _make_cgroup(name: str, most_processes: int | None) -> Cgroup | None:
    """A cgroup for a worker's processes and their keeper; None where there is none to have."""
    cgroup = cgroups.owned(name)
    if cgroup is None:
        return None
    try:
        cgroup.make(_OWN_CGROUP, _KEPT_CGROUP)
    except OSError as error:
        log.warning("no cgroup could be made: %s", error)
        cgroup.remove()
        return None
    if most_processes is not None:
        cgroup.limit(most_processes)
    return cgroup


def _inside(order: Order, cgroup: Cgroup) -> Order:
    entered = [cgroup.path / _KEPT_CGROUP, *([cgroup.counting] if cgroup.counting is not None else [])]
    own = str(cgroup.path / _OWN_CGROUP)
    return dataclasses.replace(order, own_cgroup=own, cgroups=tuple(str(path) for path in entered))


def _fork(fork_server: ForkServer | None, order: Order, descriptors: list[int]) -> Keeper | None:
    """Have the command forked from the warm interpreter; None when it has to be started."""
    form = form_of_command(order.command, order.environment) if fork_server is not None else None
    if fork_server is None or form is None:
        return None
    return fork_server.fork(order, form, descriptors)


def _start(order: Order, descriptors: list[int]) -> Keeper:
    output, errors, script_channel, status = descriptors
    environment = {**order.environment, channel.FD_VARIABLE: str(script_channel)}
    _check(environment)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with theirs, os.fdopen(os.memfd_create("request"), "wb") as file:
        request = {**order.request(), "environment": environment}
        marshal.dump({**request, "status": status, "life_line": theirs.fileno()}, file)
        file.flush()
        os.lseek(file.fileno(), 0, os.SEEK_SET)
        try:
            process = subprocess.Popen(
                [sys.executable, "-S", "-E", str(_KEEPER), str(file.fileno()), "--", *order.command],
                cwd=order.folder,
                env=keeper_environment(os.environ, environment),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                pass_fds=(script_channel, status, theirs.fileno(), file.fileno()),
            )
            theirs.close()
            if order.own_cgroup:
                # Moving a process takes the kernel ten milliseconds, and hardly any right after another one: so the
                # command's own move is quick once the keeper's interpreter has started.
                with contextlib.suppress(OSError):
                    Path(order.own_cgroup, "cgroup.procs").write_text(str(process.pid))
            ours.settimeout(_KEEPER_S)
            # The keeper detaches itself at once.
            process.wait()
            return take_keeper(ours, is_forked=False)
        except BaseException:
            ours.close()
            raise


def _check(environment: Mapping[str, str]) -> None:
    """Raises ValueError for variables that no process can have."""
    for name, value in environment.items():
        if "\0" in name or "\0" in value:
            raise ValueError("embedded null byte")
        if not name or "=" in name:
            raise ValueError("illegal environment variable name")


def end_marked(name: str, value: str) -> int:
    """Kill every process that was started with `name=value` in its environment, and all below it; returns how many."""
    count = 0
    while found := _marked(f"{name}={value}".encode()):
        count += len(found)
        for process in found:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(found, timeout=1.0)
    return count


def _marked(mark: bytes) -> list[psutil.Process]:
    found: set[psutil.Process] = set()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if mark in Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0"):
                found.add(process)
                found.update(process.children(recursive=True))
    return [process for process in found if _runs(process)]


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
