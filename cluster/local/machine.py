"""Start, stop, kill and freeze one machine of the local cluster: its first process and all that it starts."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import psutil

from cluster import processes
from cluster.local import node_starter, records
from cluster.local.certificates import machine_variables
from cluster.local.environment import MACHINE_VARIABLE, bare_environment, machine_environment
from cluster.local.faults import LocalFault
from cluster.local.folders import ClusterFolders
from cluster.local.mounts import unmount_below
from cluster.local.records import MachineRecord
from cluster.provider import ProviderError, Unanswered
from cluster.ray.joining import NODE_VARIABLE, ray_start
from remora.cgroups import LEAF, Cgroup

#: Seconds between SIGTERM and SIGKILL.
STOP_GRACE_S = 3.0
#: Shared memory of one machine's object store; Ray refuses less than 75 MB.
OBJECT_STORE_BYTES = 100_000_000

#: Seconds after which what the starter of nodes did not answer is asked again.
_AGAIN_S = 5.0
#: Holds together what a machine's first process will start, and becomes that process.
_INIT = Path(__file__).with_name("machine_init.py")

log = logging.getLogger(__name__)

#: Children of this process that may have ended and wait to be reaped.
_children: list[subprocess.Popen[bytes]] = []


def start(
    home: Path,
    machine: MachineRecord,
    record: Path,
    log: Path,
    flags: Sequence[str],
    fault: LocalFault | None = None,
    late_s: float = 0.0,
    variables: Mapping[str, str] | None = None,
) -> MachineRecord:
    """Start the machine's `ray start` in a session of its own and return at once, with its record written.

    `flags` follow those that every machine has, and `variables` are added to its environment, with those of its own
    certificate where the cluster uses TLS.  With a `fault` that happens to it; one that joins late does so by `late_s`.
    Raises ProviderError when the process cannot be started.
    """
    command = _faulty(ray_start(sys.executable, [*own_flags(machine), *flags]), fault, late_s)
    own = machine_variables(
        ClusterFolders(home.resolve()), machine.id, machine.address, Path(machine.temporary)
    )
    environment = machine_environment(home, **(variables or {}), **_marks(machine), **own)
    return start_first(machine, record, log, command, environment)


def _faulty(command: list[str], fault: LocalFault | None, late_s: float) -> list[str]:
    """The first process of a machine with which something goes wrong; a late one becomes `ray start` in the end."""
    python = [sys.executable, "-P", "-c"]
    match fault:
        case LocalFault.DIE:
            return [*python, "raise SystemExit('Error: it dies while it starts, as a rehearsal wants it')"]
        case LocalFault.NEVER_JOIN:
            return [*python, "import signal\nwhile True: signal.pause()"]
        case LocalFault.JOIN_LATE:
            late = "import os, sys, time\ntime.sleep(float(sys.argv[1]))\nos.execv(sys.argv[2], sys.argv[2:])"
            return [*python, late, str(late_s), *command]
    return command


def boot(
    machine: MachineRecord, record: Path, log: Path, command: Sequence[str], **variables: str
) -> MachineRecord:
    """The same with a first process of any kind, which gets nothing of this host's cluster but its own place.

    Which node it is, if any, it finds out by itself.  `variables` are added to its environment.
    """
    marks = {name: value for name, value in _marks(machine).items() if name != NODE_VARIABLE}
    return start_first(machine, record, log, command, bare_environment(**marks, **variables))


def start_first(
    machine: MachineRecord, record: Path, log: Path, command: Sequence[str], environment: Mapping[str, str]
) -> MachineRecord:
    """Start the machine's first process in a session and a cgroup of its own and return at once.

    Its record is written then.  Raises ProviderError when it cannot be started, which is Unanswered when it may have
    started all the same.
    """
    inside = _enter_cgroup(machine)
    records.write(record, machine)
    try:
        if shutil.which(command[0], path=environment.get("PATH")) is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), command[0])
        pid = _spawn([sys.executable, "-S", "-E", str(_INIT), inside, *command], environment, log)
    except node_starter.NoAnswer as error:
        # It may run all the same: the record stays, by which it is found or ended.
        message = f"it is not known whether {machine.id} starts: {error}"
        raise Unanswered(message, retry_after_s=_AGAIN_S) from error
    except OSError as error:
        record.unlink(missing_ok=True)
        raise ProviderError(f"{machine.id} cannot be started: {error}") from error
    started = machine.started_as(pid)
    records.write(record, started)
    return started


def _spawn(command: Sequence[str], environment: Mapping[str, str], log: Path) -> int:
    """Start it here, or where this process is in a container by what starts nodes for it; returns its process id.

    There nothing is started here, also while that does not answer: it would end with this container.
    """
    if os.environ.get(node_starter.VARIABLE):
        return node_starter.ask(log.parent / node_starter.SOCKET, command, environment, log)
    process = node_starter.spawn(command, environment, log)
    _children.append(process)
    return process.pid


def _enter_cgroup(machine: MachineRecord) -> str:
    """The folder of the cgroup that its first process is to enter, made now; empty where there are none.

    It lies in that of the machine, beside those that the machine makes for commands.
    """
    if machine.cgroup is None:
        return ""
    try:
        Cgroup(Path(machine.cgroup)).make(LEAF)
    except OSError as error:
        log.warning("%s gets no cgroup: %s", machine.id, error)
        return ""
    return str(Path(machine.cgroup, LEAF))


def own_flags(machine: MachineRecord) -> list[str]:
    """Flags of `ray start` that keep the machine apart from the others of this host."""
    return [
        f"--node-ip-address={machine.address}",
        f"--temp-dir={machine.temporary}",
        f"--object-store-memory={OBJECT_STORE_BYTES}",
        "--include-log-monitor=false",
    ]


def _marks(machine: MachineRecord) -> dict[str, str]:
    """What all its processes carry."""
    work = Path(machine.temporary) / "work"
    return {MACHINE_VARIABLE: machine.mark, NODE_VARIABLE: machine.id, "REMORA_WORK_DIR": str(work)}


def end(
    mark: str,
    temporary: Path | None,
    grace_s: float = STOP_GRACE_S,
    known: MachineRecord | None = None,
    cgroup: Path | None = None,
) -> bool:
    """End every process of the machine with this mark, at once when `grace_s` is 0, and remove its temporary folder.

    `known` is its record, when there is one, `cgroup` where it would be held now.  False when there was nothing to end,
    which is fine.  Raises ProviderError when something cannot be ended.
    """
    recorded = Path(known.cgroup) if known and known.cgroup else None
    held = [Cgroup(path) for path in {recorded, cgroup} if path is not None]
    try:
        leader = (known.pid, known.identity) if known and known.pid and known.identity else None
        # What is killed at once is killed whole first, so that none of it sees the others go.
        count = 0 if grace_s > 0 else sum(one.kill() for one in held)
        count += processes.sweep(MACHINE_VARIABLE, mark, grace_s, leader)
        count += sum(one.end() for one in held)
    except processes.ProcessesRemain as error:
        raise ProviderError(f"{mark} cannot be ended: {error}") from error
    reap()
    if temporary is not None:
        unmount_below(temporary)
        shutil.rmtree(temporary, ignore_errors=True)
    return count > 0


def end_cgroup(path: Path) -> bool:
    """End all that runs in the cgroup of a machine about which nothing else is known; False when nothing did.

    Raises ProviderError when something cannot be ended.
    """
    try:
        return Cgroup(path).end() > 0
    except processes.ProcessesRemain as error:
        raise ProviderError(str(error)) from error


def freeze(mark: str) -> None:
    """Stop every process of the machine without ending it, like a host that hangs."""
    processes.signal_all(processes.find_by_environment(MACHINE_VARIABLE, mark), signal.SIGSTOP)


def thaw(mark: str) -> None:
    """Let a frozen machine go on."""
    processes.signal_all(processes.find_by_environment(MACHINE_VARIABLE, mark), signal.SIGCONT)


def reap() -> None:
    """Take the exit codes of ended children of this process, so that no zombie stays."""
    _children[:] = [child for child in _children if child.poll() is None]


def parents_of(found: Iterable[psutil.Process]) -> set[int]:
    """Process ids of the parents of these, of those that still live."""
    parents = set[int]()
    for process in found:
        with contextlib.suppress(psutil.NoSuchProcess):
            parents.add(process.ppid())
    return parents


def is_reaper(process: psutil.Process) -> bool:
    """Whether it is what stands above the first process of a machine without a cgroup."""
    try:
        return str(_INIT) in process.cmdline()[:4]
    except psutil.NoSuchProcess:
        return False


def complaint(log: Path) -> str:
    """Where a machine's log is, and the last line in it that reports an error, if there is one."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - 16384))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        lines = []
    errors = (line.strip()[:300] for line in reversed(lines) if "Error" in line or "ERR " in line)
    words = next(errors, "")
    return f"{words} (see {log})" if words else f"see {log}"
