"""The record on disk of each local machine, so that a later process can find and end it.

A record is written before its process is started and completed afterwards: a crash in between leaves a record
without a pid, and its process, if there is one, is found by the environment it carries.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from cluster import processes
from cluster.local.environment import MACHINE_VARIABLE
from cluster.provider import ProviderError


@dataclass(frozen=True, kw_only=True)
class MachineRecord:
    """One head or node: a `ray start --block` and all that it started."""

    #: Name of the machine: the node's id, or `head_...`.
    id: str
    #: What all its processes carry in their environment.
    mark: str
    #: Node pool; empty for the head.
    pool: str
    #: Its own loopback address.
    address: str
    #: The head that it belongs to, `host:port`; a head's own address.
    ray_address: str
    created_at: float
    #: Ray's temporary folder of this machine.
    temporary: str
    #: The cgroup in which all its processes are; None where there was none to have.
    cgroup: str | None = None
    pid: int | None = None
    #: Distinguishes the process from any other that gets its pid later.
    identity: str | None = None

    @property
    def is_running(self) -> bool:
        """True while its first process lives."""
        return (
            self.pid is not None and self.identity is not None and processes.is_alive(self.pid, self.identity)
        )

    def started_as(self, pid: int) -> MachineRecord:
        """The record completed by its process."""
        return replace(self, pid=pid, identity=processes.identity(pid))

    def find_process(self) -> MachineRecord:
        """The record completed by what runs, when its writer died before it could."""
        if self.pid is not None:
            return self
        found = processes.find_by_environment(MACHINE_VARIABLE, self.mark)
        # The first process leads the session that all others are in, or were born in.
        leaders = [process for process in found if _leads_session(process.pid)]
        oldest = min(leaders or found, key=lambda process: process.create_time(), default=None)
        return self if oldest is None else self.started_as(oldest.pid)


def read(path: Path) -> MachineRecord | None:
    """The record in a file, None when there is no such file.  Raises ProviderError when it cannot be understood."""
    try:
        fields: dict[str, Any] = json.loads(path.read_bytes())
        return MachineRecord(**fields)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError) as error:
        raise ProviderError(
            f"the record {path} cannot be read ({error}); `remora down` ends its machine"
        ) from error


def write(path: Path, machine: MachineRecord) -> None:
    """Write a record atomically.  Raises ProviderError when it cannot be written."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with draft.open("w") as file:
            json.dump(asdict(machine), file)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except OSError as error:
        raise ProviderError(f"the record {path} cannot be written: {error}") from error


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Lock out other processes and threads while a machine is made; the kernel frees the lock of a dead process."""
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _leads_session(pid: int) -> bool:
    try:
        return os.getsid(pid) == pid
    except ProcessLookupError:
        return False
