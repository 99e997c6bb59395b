"""Starts the user's command under a shim, reads its output and its messages, and ends it."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import signal
import socket
import subprocess
import threading
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO

import psutil

from remora.cgroups import Cgroup
from remora.script import channel
from trainers.environments.worker_python import WorkerPython
from trainers.isolation.confined import Confinement
from trainers.processes.fork_server_client import (
    CommandShim,
    ForkServer,
    ShimRequest,
)
from trainers.processes.line_cutter import LineCutter, StreamFilter
from trainers.processes.shims import (
    COMMAND_CGROUP,
    MARK_VARIABLE,
    SUPERVISOR_VARIABLE,
    StandardStreams,
    inside,
    make_cgroup,
    start_shim,
)

_READ_SIZE = 1 << 16
#: Seconds that a shim may take to kill its command before the supervisor does.
_KILL_GRACE_S = 1.0

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
        variable_files: Mapping[str, str] | None = None,
        line_bytes: int,
        grace_s: float,
        on_lines: Callable[[str, str], None],
        on_message: Callable[[channel.Message], None],
        on_over: Callable[[], None] = lambda: None,
        fork_server: ForkServer | None = None,
        python: WorkerPython | None = None,
        most_processes: int | None = None,
        container: int = 0,
        filters: Callable[[], StreamFilter] | None = None,
        confinement: Confinement | None = None,
    ) -> None:
        """Start it: forked by the fork server when there is one and the command is of that kind, else by itself.

        `python` is the worker's interpreter, above the one that the fork server runs; None: they are the same.

        It may have `most_processes` processes and threads, where the machine can count them.
        Its own process reads the files `variable_files`, by variable, into its environment.  What it prints passes
        through a filter for each stream, where `filters` makes one.
        It enters the container in which the process `container` is, 0: none; then there is no fork server.
        `confinement` makes it a process of its job's own user; None: it is one of the node's.
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
        environment = {**environment, MARK_VARIABLE: self._mark, SUPERVISOR_VARIABLE: str(os.getpid())}
        theirs_all = [outputs[0][1], outputs[1][1], theirs.fileno(), status_write]
        self._cgroup = make_cgroup(self._mark[:8], most_processes)
        request = ShimRequest(
            command=command,
            folder=folder,
            environment=environment,
            variable_files=dict(variable_files or {}),
            grace_s=grace_s,
            python=python,
            container=container,
            confinement=confinement,
        )
        if self._cgroup is not None:
            request = inside(request, self._cgroup)
        try:
            self._shim = _fork(fork_server, request, theirs_all) or _start(request, theirs_all)
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
                    target=self._read_lines,
                    args=(name, os.fdopen(pipe[0], "rb"), line_bytes, on_lines, filters and filters()),
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
        """Process id of the shim."""
        return self._shim.pid

    @property
    def is_warm(self) -> bool:
        """True when it was forked by the fork server."""
        return self._shim.is_forked

    def processes(self) -> list[int]:
        """Process ids of all that belongs to the command."""
        if self._cgroup is not None:
            return Cgroup(self._cgroup.path / COMMAND_CGROUP).processes()
        try:
            return [process.pid for process in psutil.Process(self.pid).children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def send(self, message: channel.Message) -> None:
        """Send a message to the script; lost when it is gone."""
        with self._sending, contextlib.suppress(OSError):
            self._channel.sendall(channel.encode(message))

    def stop(self, *, at_once: bool) -> None:
        """End it: with SIGTERM and a grace period, or at once."""
        self._shim.signal(signal.SIGUSR1 if at_once else signal.SIGTERM)
        if at_once and self._cgroup is not None:
            # In case the script has stopped its shim; the shim gets time to report the exit status first.
            late = threading.Timer(_KILL_GRACE_S, Cgroup(self._cgroup.path / COMMAND_CGROUP).send_kill)
            late.daemon = True
            late.start()

    def wait(self) -> dict[str, object]:
        """Wait until it and all that it started are gone and all output was passed on.

        Returns `{"exit_code": n}`, `{"signal": n}` or `{"start_failed": why}`, with `"outlived": n` when processes
        had to be ended after it.  Raises ProcessesRemain.
        """
        self._shim.wait()
        self._on_over()
        with os.fdopen(self._status_read, "rb") as pipe:
            written = pipe.read()
        if self._cgroup is not None:
            self._cgroup.end()
        if not written:
            # The shim was killed: the kernel ends the command, and not what the command has started.
            end_marked(MARK_VARIABLE, self._mark)
        for thread in self._threads:
            thread.join()
        self._channel.close()
        self._shim.close()
        # The shim writes nothing when it is killed itself.
        status: dict[str, object] = json.loads(written) if written else {"signal": signal.SIGKILL.value}
        return status

    @staticmethod
    def _read_lines(
        name: str,
        pipe: IO[bytes],
        line_bytes: int,
        on_lines: Callable[[str, str], None],
        changed: StreamFilter | None,
    ) -> None:
        cutter = LineCutter(line_bytes)
        with pipe:
            while received := os.read(pipe.fileno(), _READ_SIZE):
                passed = received if changed is None else changed.feed(received)
                if lines := list(cutter.feed(passed)):
                    on_lines(name, "\n".join(lines))
        for line in (*cutter.feed(b"" if changed is None else changed.finish()), *cutter.finish()):
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


def _fork(fork_server: ForkServer | None, request: ShimRequest, descriptors: list[int]) -> CommandShim | None:
    """Have the command forked by the fork server; None when it has to be started."""
    if fork_server is None or (invocation := fork_server.invocation_of(request)) is None:
        return None
    return fork_server.fork(request, invocation, descriptors)


def _start(request: ShimRequest, descriptors: list[int]) -> CommandShim:
    output, errors, script_channel, status = descriptors
    request = dataclasses.replace(
        request, environment={**request.environment, channel.FD_VARIABLE: str(script_channel)}
    )
    streams = StandardStreams(subprocess.DEVNULL, output, errors)
    return start_shim(request, streams, status, (script_channel,))


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
