"""Finding and killing the processes of a cluster and of its jobs, and waiting for what follows."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import psutil

T = TypeVar("T")

#: Seconds within which anything must have happened on a busy machine.
PATIENCE_S = 180.0


def until(look: Callable[[], T | None], what: str, timeout_s: float = PATIENCE_S) -> T:
    """Look until there is something to see; returns it."""
    deadline = time.monotonic() + timeout_s
    pause = threading.Event()
    while not (seen := look()):
        assert time.monotonic() < deadline, f"not within {timeout_s:g} s: {what}"
        pause.wait(0.05)
    return seen


def is_alive(process: psutil.Process) -> bool:
    """False for one that has ended, whether or not its parent has noticed."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def kill(process: psutil.Process) -> None:
    """SIGKILL, and wait until it is dead: an injected fault that did not happen is no fault."""
    process.send_signal(signal.SIGKILL)
    until(lambda: not is_alive(process), f"{process} is dead", 10.0)


def processes_with(text: str) -> list[psutil.Process]:
    """Living processes whose command line or environment at their start contains this text."""
    wanted = text.encode()
    found = []
    for process in psutil.process_iter():
        folder = Path(f"/proc/{process.pid}")
        try:
            if wanted in (folder / "cmdline").read_bytes() or wanted in (folder / "environ").read_bytes():
                found.append(process)
        except OSError:  # it has ended
            continue
    return [process for process in found if is_alive(process)]


class JobProcesses:
    """The processes of one running job on this machine."""

    def __init__(self, home: Path, job_id: str) -> None:
        self._home = home
        self._job_id = job_id

    def child(self, rank: int) -> psutil.Process:
        """The user's own process of a rank."""
        return until(lambda: self._shim(rank).children(), f"the child of rank {rank} runs")[0]

    def supervisor(self, rank: int) -> psutil.Process:
        """The process that supervises a rank."""
        return psutil.Process(int(self._shim(rank).environ()["REMORA_SUPERVISOR"]))

    def driver(self) -> psutil.Process:
        """The job's driver: of all drivers the one that is connected to a supervisor of the job."""

        def look() -> list[psutil.Process]:
            ends = {(one.raddr, one.laddr) for one in self.supervisor(0).net_connections("tcp")}
            found = []
            for one in processes_with(str(self._home)):
                with contextlib.suppress(psutil.NoSuchProcess):  # a ready driver may end meanwhile
                    if one.name().startswith("ray::Driver") and any(
                        (each.laddr, each.raddr) in ends for each in one.net_connections("tcp")
                    ):
                        found.append(one)
            return found

        (driver,) = until(look, "the driver of the job runs")
        return driver

    def left(self) -> list[psutil.Process]:
        """What still runs on behalf of the job's command."""
        return processes_with(f"REMORA_JOB_ID={self._job_id}")

    def _shim(self, rank: int) -> psutil.Process:
        def look() -> list[psutil.Process]:
            return [
                one
                for one in self.left()
                if any(word.endswith("command_shim.py") for word in one.cmdline())
                and one.environ().get("RANK") == str(rank)
            ]

        return until(look, f"the shim of rank {rank} runs")[0]
