"""Starts the user's command under a keeper, reads what it prints and what it says, and ends it."""

from __future__ import annotations

import contextlib
import json
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

from remora import channel
from trainers.output import LineCutter

#: Set in the environment of the command, and so of all that it starts, to find them when the keeper cannot.
_MARK_VARIABLE = "REMORA_CHILD"
_KEEPER = Path(__file__).with_name("keeper.py")
_READ_SIZE = 1 << 16


class Child:
    """The user's process of one rank.

    `on_line(stream, text)` and `on_message(message)` are called from threads of this object, and `on_line` may block:
    then the script's writes block too.
    """

    def __init__(
        self,
        command: list[str],
        *,
        folder: Path,
        environment: Mapping[str, str],
        line_bytes: int,
        grace_s: float,
        on_line: Callable[[str, str], None],
        on_message: Callable[[channel.Message], None],
    ) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        status_read, status_write = os.pipe()
        self._channel = ours
        self._sending = threading.Lock()
        self._status_read = status_read
        self._mark = uuid.uuid4().hex
        try:
            keeper = [sys.executable, "-S", "-E", str(_KEEPER), str(status_write), str(grace_s), "--"]
            self._process = subprocess.Popen(
                [*keeper, *command],
                cwd=folder,
                env={
                    **environment,
                    channel.FD_VARIABLE: str(theirs.fileno()),
                    _MARK_VARIABLE: self._mark,
                },
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=(theirs.fileno(), status_write),
                # Its own group: a signal sent to the supervisor's group by hand shall reach the keeper by its rules.
                process_group=0,
            )
        except BaseException:
            ours.close()
            os.close(status_read)
            raise
        finally:
            theirs.close()
            os.close(status_write)
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._threads = [
            threading.Thread(
                target=self._read_lines, args=("stdout", self._process.stdout, line_bytes, on_line)
            ),
            threading.Thread(
                target=self._read_lines, args=("stderr", self._process.stderr, line_bytes, on_line)
            ),
            threading.Thread(target=self._read_messages, args=(on_message,)),
        ]
        for thread in self._threads:
            thread.daemon = True
            thread.start()

    @property
    def pid(self) -> int:
        """Process id of the keeper."""
        return self._process.pid

    def send(self, message: channel.Message) -> None:
        """Say something to the script; lost when it is gone."""
        with self._sending, contextlib.suppress(OSError):
            self._channel.sendall(channel.encode(message))

    def stop(self, *, at_once: bool) -> None:
        """End it: with a grace for its own SIGTERM code, or at once."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGUSR1 if at_once else signal.SIGTERM)

    def wait(self) -> dict[str, object]:
        """Wait until it and all that it started are gone and all output was handed on.

        Returns `{"exit_code": n}`, `{"signal": n}` or `{"start_failed": why}`, with `"outlived": n` when processes
        had to be ended after it.
        """
        returncode = self._process.wait()
        if returncode < 0:
            # Somebody killed the keeper, and what it kept is nobody's; the kernel ends the command itself only.
            end_marked(_MARK_VARIABLE, self._mark)
        for thread in self._threads:
            thread.join()
        self._channel.close()
        with os.fdopen(self._status_read, "rb") as pipe:
            written = pipe.read()
        if written:
            status: dict[str, object] = json.loads(written)
            return status
        # The keeper itself was killed before it could write.
        return {"signal": -returncode} if returncode < 0 else {"exit_code": returncode or 1}

    @staticmethod
    def _read_lines(name: str, pipe: IO[bytes], line_bytes: int, on_line: Callable[[str, str], None]) -> None:
        cutter = LineCutter(line_bytes)
        with pipe:
            while received := os.read(pipe.fileno(), _READ_SIZE):
                for line in cutter.feed(received):
                    on_line(name, line)
        for line in cutter.finish():
            on_line(name, line)

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
