"""The shells of one worker: each has a process, and two threads that move its input and output."""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from remora.script import channel
from trainers.processes.shell_process import ShellPlace, ShellProcess
from trainers.shells import SIGNAL_BASE

log = logging.getLogger(__name__)

#: Seconds that a call of the driver may take, which waits ten itself.
_CALL_S = 30.0
#: Seconds that the end of a worker waits for its shells.
_END_S = 10.0
#: Seconds for which input waits to be read before the driver is asked again.
_WRITE_S = 1.0
_NOT_STARTED = "its command has not started yet, or has ended: a shell needs the folders of a running command"
_WORKER_ENDS = "its worker has ended, or was stopped"
_KILLED = SIGNAL_BASE + signal.SIGKILL

Size = tuple[int, int]


class ShellCalls(Protocol):
    """The driver, as a supervisor calls it for one shell; every method may wait, and raises DriverAway."""

    def input(self, token: str, taken: int, size: Size | None) -> dict[str, Any]:
        """What is new, as `trainers.driver.shells.Shells.input` says."""

    def output(self, token: str, chunks: Sequence[tuple[int, bytes]]) -> str:
        """Hand over output, as `trainers.driver.shells.Shells.output` says."""

    def ended(self, token: str, message: str, exit_code: int | None) -> None:
        """It has ended."""


class DriverAway(Exception):
    """The driver does not answer any more."""


class RayShellCalls:
    """The same over Ray."""

    def __init__(self, driver: Any) -> None:
        self._driver = driver

    def input(self, token: str, taken: int, size: Size | None) -> dict[str, Any]:
        """See `ShellCalls`."""
        answer: dict[str, Any] = self._get(self._driver.shell_input.remote(token, taken, size))
        return answer

    def output(self, token: str, chunks: Sequence[tuple[int, bytes]]) -> str:
        """See `ShellCalls`."""
        return str(self._get(self._driver.shell_output.remote(token, chunks)))

    def ended(self, token: str, message: str, exit_code: int | None) -> None:
        """See `ShellCalls`."""
        self._get(self._driver.shell_ended.remote(token, message, exit_code))

    @staticmethod
    def _get(reference: Any) -> Any:
        # Not at the top: `remora dev` runs a worker without Ray, which takes a second to import.
        import ray

        try:
            return ray.get(reference, timeout=_CALL_S)
        except (ray.exceptions.RayError, TimeoutError) as error:
            raise DriverAway(str(error)[:200]) from error


class WorkerShells:
    """The shells of one worker; `clean` takes values of secrets out of a sentence."""

    def __init__(self, calls: ShellCalls, clean: Callable[[str], str]) -> None:
        self._calls = calls
        self._clean = clean
        self._place: ShellPlace | None = None
        self._open: dict[threading.Thread, ShellProcess | None] = {}
        self._lock = threading.Lock()
        #: The worker ends, and its shells with it.
        self._is_ending = False

    def begin(self, place: ShellPlace) -> None:
        """The command has started, with this place."""
        with self._lock:
            self._place = place

    def stop(self) -> None:
        """End all shells, and open none any more; does not wait."""
        with self._lock:
            self._place, self._is_ending = None, True
            processes = [one for one in self._open.values() if one is not None]
        for process in processes:
            process.stop()

    def close(self) -> None:
        """The same, and wait for their end."""
        self.stop()
        with self._lock:
            threads = list(self._open)
        for thread in threads:
            thread.join(_END_S)

    def ask(self, message: channel.Message) -> None:
        """The driver asks for a shell, `{token, command, size, term}`; does not wait."""
        thread = threading.Thread(target=self._run, args=(message,), name="shell", daemon=True)
        with self._lock:
            self._open[thread] = None
        thread.start()

    def _run(self, message: channel.Message) -> None:
        token = str(message["token"])
        try:
            self._serve(token, message)
        except DriverAway as error:
            log.info("a shell ended with its driver: %s", error)
        finally:
            with self._lock:
                self._open.pop(threading.current_thread(), None)

    def _serve(self, token: str, message: channel.Message) -> None:
        """Run a shell to its end, and report that.  Raises DriverAway."""
        size = None if message["size"] is None else (int(message["size"][0]), int(message["size"][1]))
        try:
            process = self._start(tuple(message["command"]), size, str(message["term"]))
        except (OSError, ValueError) as error:
            return self._report(token, f"it could not be started: {error}")
        if process is None:
            return self._report(token, _NOT_STARTED)
        arguments = (token, process, size)
        writing = threading.Thread(target=self._write, args=arguments, name="shell-input", daemon=True)
        writing.start()
        try:
            self._pass_on(token, process)
        finally:
            process.stop()
            status = process.wait()
            self._finish(token, process, writing, status)

    def _finish(
        self, token: str, process: ShellProcess, writing: threading.Thread, status: dict[str, object]
    ) -> None:
        try:
            if self._is_ending and status.get("exit_code") == _KILLED:
                self._report(token, _WORKER_ENDS)
            elif "start_failed" in status:
                self._report(token, f"it could not be started: {status['start_failed']}")
            else:
                self._report(token, "the shell has ended", int(str(status["exit_code"])))
        finally:
            # The driver answers its call, now that it knows of the end.
            writing.join()
            process.close()

    def _report(self, token: str, said: str, exit_code: int | None = None) -> None:
        self._calls.ended(token, self._clean(said)[:500], exit_code)

    def _start(self, command: tuple[str, ...], size: Size | None, term: str) -> ShellProcess | None:
        """The process of a shell; None: there is no place for one."""
        place = self._place
        if place is None:
            return None
        # Without the lock: `ask` and `stop`, which do not wait, need it.
        process = ShellProcess(place, command, size, term)
        with self._lock:
            self._open[threading.current_thread()] = process
            is_late = self._place is None
        if is_late:
            process.stop()
        return process

    def _pass_on(self, token: str, process: ShellProcess) -> None:
        """Hand its output to the driver until nothing is to come, or the shell is over."""
        if self._calls.output(token, []) == "over":
            return
        while chunks := process.read():
            while (said := self._calls.output(token, chunks)) == "full":
                pass
            if said == "over":
                return

    def _write(self, token: str, process: ShellProcess, size: Size | None) -> None:
        """Write its input and set its size, until it is over."""
        taken, rest = 0, b""
        with contextlib.suppress(DriverAway, OSError):
            while not process.is_stopping:
                news = self._calls.input(token, taken, size)
                if news["is_over"]:
                    break
                if news["size"] is not None and tuple(news["size"]) != size:
                    size = (int(news["size"][0]), int(news["size"][1]))
                    process.resize(size)
                for number, content in news["pieces"]:
                    if number <= taken:
                        continue
                    # One that reads nothing has to hear between two tries that it is over.
                    if rest := process.write(rest or content, _WRITE_S):
                        break
                    taken = number
        process.stop()
