"""Find and end processes by a mark in their environment.

Sessions and process groups are not enough to find all of a node: workers and what they start live in sessions of
their own.  What a process cannot lose by accident is the environment it was started with, so every process of a node
carries the node's id there.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import psutil

from remora import cgroups

#: Rounds of looking again for processes that were forked while others were being ended.
_ROUNDS = 20
#: Seconds that the kernel may take to remove a process after SIGKILL.
_KILL_TIMEOUT_S = 10.0


#: Some processes did not end although they were killed; the message names them.
ProcessesRemain = cgroups.ProcessesRemain


def identity(pid: int) -> str | None:
    """What distinguishes this process from any other that had or will have its pid; None when there is no such process.

    Made of the machine's boot and the process's start in clock ticks: unlike a time of day it does not change when the
    clock is set.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    state, *fields = stat.rpartition(")")[2].split()
    return None if state in "ZX" else f"{_boot_id()}:{fields[18]}"


def is_alive(pid: int, expected_identity: str) -> bool:
    """True while exactly this process runs; zombies do not."""
    return identity(pid) == expected_identity


def find_by_environment(name: str, value: str) -> list[psutil.Process]:
    """Processes that were started with `name=value` in their environment, and all their descendants.

    This process is never among them; neither are zombies and processes of other users that may not be looked at.
    """
    found: dict[int, psutil.Process] = {}
    children: dict[int, list[psutil.Process]] = {}
    mark = f"{name}={value}".encode()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            children.setdefault(process.ppid(), []).append(process)
            if mark in Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0"):
                found[process.pid] = process
    todo = list(found)
    while todo:
        for child in children.get(todo.pop(), []):
            if child.pid not in found:
                found[child.pid] = child
                todo.append(child.pid)
    found.pop(os.getpid(), None)
    return [process for process in found.values() if _runs(process)]


def values_of(name: str) -> set[str]:
    """All values of this variable in the environments of this machine's processes, as far as they may be read."""
    beginning = f"{name}=".encode()
    found: set[str] = set()
    for pid in psutil.pids():
        with contextlib.suppress(OSError):
            for one in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                if one.startswith(beginning):
                    found.add(one.removeprefix(beginning).decode(errors="replace"))
    return found


def signal_all(processes: Iterable[psutil.Process], number: signal.Signals) -> None:
    """Send a signal to those that still exist; a recycled pid is never hit."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(number)


def end(processes: Iterable[psutil.Process], grace_s: float) -> None:
    """End processes with SIGTERM, those that remain after `grace_s` seconds with SIGKILL; 0 kills at once.

    Returns when all have ended.  Raises ProcessesRemain when even SIGKILL did not help.
    """
    remaining = list(processes)
    if grace_s > 0:
        signal_all(remaining, signal.SIGTERM)
        # A stopped process takes its SIGTERM only when it goes on.
        signal_all(remaining, signal.SIGCONT)
        remaining = wait_ended(remaining, grace_s)
    signal_all(remaining, signal.SIGKILL)
    remaining = wait_ended(remaining, _KILL_TIMEOUT_S)
    if remaining:
        pids = ", ".join(str(process.pid) for process in remaining)
        raise ProcessesRemain(f"processes {pids} did not end within {_KILL_TIMEOUT_S:.0f} s of SIGKILL")


def sweep(name: str, value: str, grace_s: float, leader: tuple[int, str] | None = None) -> int:
    """End every process that carries `name=value`, also those started meanwhile; returns how many there were.

    `leader` is the pid and identity of one that is known to belong to them, if there is one.
    Raises ProcessesRemain when new ones keep appearing or some cannot be ended.
    """
    count = 0
    for _ in range(_ROUNDS):
        processes = find_by_environment(name, value)
        if leader and is_alive(*leader) and leader[0] not in (process.pid for process in processes):
            processes.append(psutil.Process(leader[0]))
        if not processes:
            return count
        count += len(processes)
        end(processes, grace_s)
        # A process that is forked by an ending one gets no second grace.
        grace_s = 0.0
    raise ProcessesRemain(f"processes with {name}={value} keep appearing")


def wait_ended(processes: Iterable[psutil.Process], timeout_s: float) -> list[psutil.Process]:
    """Wait until all have ended (zombies have) or the time is over; returns those that still run."""
    deadline = time.monotonic() + timeout_s
    waiting: dict[int, psutil.Process] = {}
    poller = select.poll()
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            descriptor = os.pidfd_open(process.pid)
            if _runs(process):
                waiting[descriptor] = process
                poller.register(descriptor, select.POLLIN)
            else:
                os.close(descriptor)
    try:
        ended = set[int]()
        while len(ended) < len(waiting):
            left_s = deadline - time.monotonic()
            ready = poller.poll(max(0.0, left_s) * 1000)
            for descriptor, _ in ready:
                poller.unregister(descriptor)
                ended.add(descriptor)
            if not ready and left_s <= 0:
                break
        return [process for descriptor, process in waiting.items() if descriptor not in ended]
    finally:
        for descriptor in waiting:
            os.close(descriptor)


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@cache
def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
