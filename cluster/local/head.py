"""The head of the local Ray cluster: found again by its record, started in a session of its own, stopped whole."""

from __future__ import annotations

import json
import socket
import time
from pathlib import Path

from cluster.local import certificates, machine, records
from cluster.local.addresses import head_address
from cluster.local.folders import ClusterFolders
from cluster.local.records import MachineRecord
from cluster.provider import ProviderError
from cluster.ray import job_api
from remora.free_ports import free_port
from remora.ray_resources import DRIVERS, DRIVERS_AMOUNT


class HeadFailed(Exception):
    """The head ended before it could be reached, or took too long; the message says what it said last."""


def find_head(home: Path) -> MachineRecord | None:
    """The head of this home while it runs, else None.  Raises ProviderError when its record cannot be read."""
    folders = ClusterFolders(home.resolve())
    recorded = records.read(folders.head)
    if recorded is None:
        return None
    if recorded.pid is None:
        recorded = recorded.find_process()
        if recorded.pid is not None:
            records.write(folders.head, recorded)
    return recorded if recorded.is_running else None


def start_head(home: Path, *, encrypted: bool = False, jobs_port: int = 0, **variables: str) -> MachineRecord:
    """Start a head and return without waiting; `wait_until_reachable` waits.  `variables` are added to its environment.

    `encrypted`: processes of its cluster speak TLS with each other, with certificates of this cluster's own authority.
    `jobs_port`: the port of loopback at which it serves Ray's job API; 0: it does not.

    A head of this home that runs already is returned as it is; what a dead one left is removed.
    Raises ProviderError when the process cannot be started, or packages of the job API are missing.
    """
    folders = ClusterFolders(home.resolve())
    _make(folders)
    with records.locked(folders.lock):
        running = find_head(folders.home)
        if running is not None:
            return running
        if jobs_port:
            try:
                job_api.check_packages()
            except job_api.JobApiMissing as error:
                raise ProviderError(str(error)) from error
        _stop(folders, 0.0)
        _make(folders)
        certificates.begin(folders, encrypted=encrypted)
        address = head_address(folders.home)
        port = free_port()
        cgroup = folders.cgroup_of(folders.head_id)
        head = machine.start(
            folders.home,
            MachineRecord(
                id=folders.head_id,
                mark=folders.mark_of(folders.head_id),
                pool="",
                address=address,
                ray_address=f"{address}:{port}",
                created_at=time.time(),
                temporary=str(folders.temporary_of(folders.head_id)),
                cgroup=None if cgroup is None else str(cgroup),
            ),
            folders.head,
            folders.logs / "head.log",
            # Work runs on nodes; the head keeps the cluster's state and the drivers, which ask for no CPU.
            [
                *("--head", f"--port={port}", "--num-cpus=0", "--num-gpus=0", "--labels=remora-role=head"),
                f"--resources={json.dumps({DRIVERS: DRIVERS_AMOUNT})}",
                *("--no-monitor", *job_api.flags_of(jobs_port, free_port)),
                # Ray's default is one port for all heads of a machine.
                f"--ray-client-server-port={free_port()}",
            ],
            variables={**job_api.variables_of(jobs_port), **variables},
        )
        folders.address.write_text(f"{head.ray_address}\n")
        return head


def wait_until_reachable(home: Path, head: MachineRecord, timeout_s: float = 60.0) -> None:
    """Return when nodes can join the head.  Raises HeadFailed when it ends or takes longer than `timeout_s`."""
    log = ClusterFolders(home.resolve()).logs / "head.log"
    deadline = time.monotonic() + timeout_s
    while not is_reachable(head):
        machine.reap()
        if not head.is_running:
            raise HeadFailed(f"the Ray head ended while it started: {machine.complaint(log)}")
        if time.monotonic() > deadline:
            raise HeadFailed(
                f"the Ray head cannot be reached after {timeout_s:.0f} s: {machine.complaint(log)}"
            )
        time.sleep(0.05)


def is_reachable(head: MachineRecord) -> bool:
    """True when the head accepts connections."""
    host, _, port = head.ray_address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=1.0).close()
    except OSError:
        return False
    return True


def stop_head(home: Path, grace_s: float = machine.STOP_GRACE_S) -> bool:
    """End the head of this home and forget it; `grace_s` 0 kills it at once.  True when there was one.

    Raises ProviderError when something of it cannot be ended.
    """
    folders = ClusterFolders(home.resolve())
    ended = _stop(folders, grace_s)
    if folders.home.exists():
        with records.locked(folders.lock):
            folders.remove_temporary_if_empty()
    return ended


def _stop(folders: ClusterFolders, grace_s: float) -> bool:
    recorded = _recorded(folders)
    temporary = Path(recorded.temporary) if recorded else folders.temporary_of(folders.head_id)
    cgroup = folders.cgroup_of(folders.head_id)
    ended = machine.end(folders.mark_of(folders.head_id), temporary, grace_s, recorded, cgroup)
    folders.address.unlink(missing_ok=True)
    folders.head.unlink(missing_ok=True)
    return ended


def temporary_of(folders: ClusterFolders) -> Path | None:
    """The head's temporary folder as its record says, None when nothing can be read."""
    recorded = _recorded(folders)
    return Path(recorded.temporary) if recorded else None


def _recorded(folders: ClusterFolders) -> MachineRecord | None:
    try:
        return records.read(folders.head)
    except ProviderError:
        return None


def _make(folders: ClusterFolders) -> None:
    try:
        folders.make()
    except OSError as error:
        raise ProviderError(f"the folders of the cluster cannot be made: {error}") from error
