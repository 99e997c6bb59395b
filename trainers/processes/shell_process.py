"""The process of a shell: with a terminal of its own, or with pipes, under a shim like the command of its worker.

Source: pty(7), tty_ioctl(4).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import select
import signal
import struct
import termios
import threading
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from remora.cgroups import Cgroup
from trainers.isolation.confined import Confinement
from trainers.processes.child import end_marked
from trainers.processes.fork_server_client import ShimRequest
from trainers.processes.shims import (
    COMMAND_CGROUP,
    MARK_VARIABLE,
    SUPERVISOR_VARIABLE,
    StandardStreams,
    inside,
    make_cgroup,
    start_shim,
)
from trainers.shells import CHUNK_BYTES, SIGNAL_BASE, STDERR, STDOUT

#: Without a command: the best shell that there is, which reads its commands from its input.
_SHELL = ("/bin/sh", "-c", "if command -v bash >/dev/null 2>&1; then exec bash; else exec sh; fi")
#: Seconds that processes have between SIGTERM and SIGKILL; a shell that ends is ended at once.
_GRACE_S = 1.0


@dataclass(frozen=True, kw_only=True)
class ShellPlace:
    """Where a worker's shells run: as its command does."""

    folder: Path
    environment: Mapping[str, str]
    #: Files whose contents become variables, by the names of these.
    variable_files: Mapping[str, str]
    #: A process in the container that is entered; 0: none is.
    container: int
    confinement: Confinement | None
    #: Processes and threads that one may have, where the machine can count them.
    most_processes: int | None


class ShellProcess:
    """One shell; `write` is called from one thread, `read` from another, `stop` and `resize` from any."""

    def __init__(
        self, place: ShellPlace, command: tuple[str, ...], size: tuple[int, int] | None, term: str
    ) -> None:
        """Start it, with a terminal of that size in rows and columns; None: with pipes.

        Raises ValueError or OSError for a command that the operating system cannot take.
        """
        self._mark = uuid.uuid4().hex
        variables = {MARK_VARIABLE: self._mark, SUPERVISOR_VARIABLE: str(os.getpid())}
        if size is not None:
            variables["TERM"] = term
        request = ShimRequest(
            command=list(command or _SHELL),
            folder=place.folder,
            environment={**place.environment, **variables},
            variable_files=place.variable_files,
            grace_s=_GRACE_S,
            container=place.container,
            confinement=place.confinement,
            has_terminal=size is not None,
        )
        self._has_terminal = size is not None
        self._is_input_over = False
        self._cgroup = make_cgroup(self._mark[:8], place.most_processes)
        if self._cgroup is not None:
            request = inside(request, self._cgroup)
        with contextlib.ExitStack() as theirs, contextlib.ExitStack() as ours:
            if self._cgroup is not None:
                ours.callback(self._cgroup.end)
            status, given = _pipe(ours, theirs)
            streams = (
                self._open_terminal(ours, theirs, place, size) if size else self._open_pipes(ours, theirs)
            )
            woken, self._waker = os.pipe()
            ours.callback(os.close, woken)
            ours.callback(os.close, self._waker)
            self._shim = start_shim(request, streams, given)
            self._status, self._woken = status, woken
            #: What is closed at the end.
            self._held = ours.pop_all()
        self._stopping = threading.Event()
        self._closing, self._is_closed = threading.Lock(), False

    def _open_terminal(
        self,
        ours: contextlib.ExitStack,
        theirs: contextlib.ExitStack,
        place: ShellPlace,
        size: tuple[int, int],
    ) -> StandardStreams:
        master, slave = os.openpty()
        ours.callback(os.close, master)
        theirs.callback(os.close, slave)
        self._input, self._outputs = master, {master: STDOUT}
        if place.confinement is not None and os.geteuid() == 0:
            os.fchown(slave, place.confinement.uid, -1)
        self.resize(size)
        os.set_blocking(master, False)
        return StandardStreams(slave, slave, slave)

    def _open_pipes(self, ours: contextlib.ExitStack, theirs: contextlib.ExitStack) -> StandardStreams:
        read, self._input = os.pipe()
        theirs.callback(os.close, read)
        self._closing_input = ours.enter_context(contextlib.ExitStack())
        self._closing_input.callback(os.close, self._input)
        os.set_blocking(self._input, False)
        (out, out_given), (err, err_given) = _pipe(ours, theirs), _pipe(ours, theirs)
        self._outputs = {out: STDOUT, err: STDERR}
        return StandardStreams(read, out_given, err_given)

    def resize(self, size: tuple[int, int]) -> None:
        """Its terminal has that many rows and columns now; its processes get SIGWINCH from the kernel."""
        if self._has_terminal:
            fcntl.ioctl(self._input, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))

    @property
    def is_stopping(self) -> bool:
        """It is to end."""
        return self._stopping.is_set()

    def write(self, content: bytes, within_s: float) -> bytes:
        """Write input, waiting as long until it is taken; returns what was not.  b"" ends the input.

        What nothing reads any more is dropped.
        """
        if self._is_input_over:
            return b""
        if not content and not self._has_terminal:
            self._is_input_over = True
            self._closing_input.close()
            return b""
        poll = select.poll()
        poll.register(self._woken, select.POLLIN)
        poll.register(self._input, select.POLLOUT)
        until = time.monotonic() + within_s
        while content and not self._stopping.is_set():
            left_s = until - time.monotonic()
            if left_s <= 0 or not poll.poll(1000 * left_s):
                return content
            try:
                content = content[os.write(self._input, content) :]
            except BlockingIOError:
                continue
            except OSError:
                break
        return b""

    def read(self) -> list[tuple[int, bytes]]:
        """The next output, with the stream that it is of, waiting for it; [] when nothing is to come."""
        while self._outputs:
            poll = select.poll()
            for one in self._outputs:
                poll.register(one, select.POLLIN)
            found = [chunk for one, _ in poll.poll() if (chunk := self._read(one)) is not None]
            if found:
                return found
        return []

    def _read(self, descriptor: int) -> tuple[int, bytes] | None:
        stream = self._outputs[descriptor]
        try:
            content = os.read(descriptor, CHUNK_BYTES)
        except OSError as error:
            # A terminal that nothing has open any more.
            if error.errno != errno.EIO:
                raise
            content = b""
        if not content:
            del self._outputs[descriptor]
            return None
        return stream, content

    def stop(self) -> None:
        """End it with all that it has started, at once."""
        self._stopping.set()
        with self._closing:
            # Afterwards the number of the descriptor may be that of another file.
            if self._is_closed:
                return
            with contextlib.suppress(OSError):
                os.write(self._waker, b"x")
        self._shim.signal(signal.SIGUSR1)
        if self._cgroup is not None:
            # In case the shell has stopped its shim.
            late = threading.Timer(_GRACE_S, Cgroup(self._cgroup.path / COMMAND_CGROUP).send_kill)
            late.daemon = True
            late.start()

    def wait(self) -> dict[str, object]:
        """Wait until it is gone, with all that it has started; `{"exit_code": n}` or `{"start_failed": why}`.

        To be called once, after `stop`, or when `read` has nothing more.
        """
        self._shim.wait()
        written = b""
        while part := os.read(self._status, 1 << 16):
            written += part
        if not written:
            end_marked(MARK_VARIABLE, self._mark)
        status: dict[str, object] = json.loads(written) if written else {"signal": signal.SIGKILL.value}
        if isinstance(number := status.get("signal"), int):
            return {"exit_code": SIGNAL_BASE + number}
        return status

    def close(self) -> None:
        """Close its descriptors; to be called once, after `wait`, when nothing else is called any more.

        Raises ProcessesRemain.
        """
        with self._closing:
            self._is_closed = True
            self._shim.close()
            self._held.close()


def _pipe(ours: contextlib.ExitStack, theirs: contextlib.ExitStack) -> tuple[int, int]:
    """A pipe of which this process reads one end, and the other is given away."""
    read, write = os.pipe()
    ours.callback(os.close, read)
    theirs.callback(os.close, write)
    return read, write
