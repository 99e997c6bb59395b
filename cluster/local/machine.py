"""Start, stop, kill and freeze one machine of the local cluster: a `ray start --block` and all that it starts."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from cluster import processes
from cluster.local import records
from cluster.local.environment import MACHINE_VARIABLE, NODE_VARIABLE, process_environment
from cluster.local.records import Machine
from cluster.provider import ProviderError

#: Seconds between SIGTERM and SIGKILL.
STOP_GRACE_S = 3.0
#: Shared memory of one machine's object store; Ray refuses less than 75 MB.
OBJECT_STORE_BYTES = 100_000_000

#: Children of this process that may have ended and wait to be reaped.
_children: list[subprocess.Popen[bytes]] = []


def start(home: Path, machine: Machine, record: Path, log: Path, arguments: list[str]) -> Machine:
    """Start the machine's first process in a session of its own and return at once, with its record written.

    `arguments` follow those that every machine has.  Raises ProviderError when the process cannot be started.
    """
    records.write(record, machine)
    command = [
        *(
            sys.executable,
            "-P",
            "-u",
            "-m",
            "ray.scripts.scripts",
            "start",
            "--block",
            "--disable-usage-stats",
        ),
        f"--node-ip-address={machine.address}",
        f"--temp-dir={machine.temporary}",
        f"--object-store-memory={OBJECT_STORE_BYTES}",
        "--include-log-monitor=false",
        *arguments,
    ]
    try:
        pid = start_beside(home, machine, log, command)
    except ProviderError:
        record.unlink(missing_ok=True)
        raise
    started = machine.started_as(pid)
    records.write(record, started)
    return started


def start_beside(home: Path, machine: Machine, log: Path, command: Sequence[str]) -> int:
    """Start a process of the machine in a session of its own and return its pid at once; it ends with the machine.

    Raises ProviderError when it cannot be started.
    """
    work = Path(machine.temporary) / "work"
    marks = {MACHINE_VARIABLE: machine.mark, NODE_VARIABLE: machine.id, "REMORA_WORK_DIR": str(work)}
    try:
        with log.open("ab") as output:
            process = subprocess.Popen(
                command,
                env=process_environment(home, **marks),
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
    except OSError as error:
        raise ProviderError(f"a process of {machine.id} cannot be started: {error}") from error
    _children.append(process)
    return process.pid


def end(
    mark: str, temporary: Path | None, grace_s: float = STOP_GRACE_S, known: Machine | None = None
) -> bool:
    """End every process of the machine with this mark, at once when `grace_s` is 0, and remove its temporary folder.

    `known` is its record, when there is one.  False when there was nothing to end, which is fine.
    Raises ProviderError when something cannot be ended.
    """
    try:
        leader = (known.pid, known.identity) if known and known.pid and known.identity else None
        count = processes.sweep(MACHINE_VARIABLE, mark, grace_s, leader)
    except processes.ProcessesRemain as error:
        raise ProviderError(f"{mark} cannot be ended: {error}") from error
    reap()
    if temporary is not None:
        shutil.rmtree(temporary, ignore_errors=True)
    return count > 0


def freeze(mark: str) -> None:
    """Stop every process of the machine without ending it, like a host that hangs."""
    processes.signal_all(processes.find_by_environment(MACHINE_VARIABLE, mark), signal.SIGSTOP)


def thaw(mark: str) -> None:
    """Let a frozen machine go on."""
    processes.signal_all(processes.find_by_environment(MACHINE_VARIABLE, mark), signal.SIGCONT)


def reap() -> None:
    """Take the exit codes of ended children of this process, so that no zombie stays."""
    _children[:] = [child for child in _children if child.poll() is None]


def complaint(log: Path) -> str:
    """Where a machine's log is, and the last line in it that tells of an error, if there is one."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - 16384))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        lines = []
    errors = (line.strip()[:300] for line in reversed(lines) if "Error" in line or "ERR " in line)
    words = next(errors, "")
    return f"{words} (see {log})" if words else f"see {log}"
