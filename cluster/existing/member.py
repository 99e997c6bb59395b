"""This machine's own node in an existing cluster: the service connects through it, and drivers run on it."""

from __future__ import annotations

import json
import time
from ipaddress import ip_address
from pathlib import Path

from cluster.local import certificates, head, machine, records
from cluster.local.addresses import head_address
from cluster.local.folders import ClusterFolders
from cluster.local.records import MachineRecord
from cluster.provider import ProviderError
from cluster.ray.addresses import address_towards
from remora.ray_resources import DRIVERS, DRIVERS_AMOUNT


def start_member(home: Path, address: str) -> MachineRecord:
    """Start this home's member of the cluster at `address` (`host:port`), and return without waiting until it joined.

    One that runs already is returned as it is.  It is recorded as a head is, and found and ended like one.
    Raises ProviderError when it cannot be started, or while a head or a member of another cluster runs.
    """
    folders = ClusterFolders(home.resolve())
    try:
        folders.make()
    except OSError as error:
        raise ProviderError(f"the folders of the cluster cannot be made: {error}") from error
    with records.locked(folders.lock):
        running = head.find_head(folders.home)
        if running is not None and running.ray_address == address:
            return running
        if running is not None:
            raise ProviderError(
                f"another cluster of this home runs, at {running.ray_address}: end it with `remora down`, or give"
                " another --home"
            )
        folders.make()
        certificates.begin(folders, encrypted=False)
        own = own_address(folders.home, address)
        cgroup = folders.cgroup_of(folders.head_id)
        return machine.start(
            folders.home,
            MachineRecord(
                id=folders.head_id,
                mark=folders.mark_of(folders.head_id),
                pool="",
                address=own,
                ray_address=address,
                created_at=time.time(),
                temporary=str(folders.temporary_of(folders.head_id)),
                cgroup=None if cgroup is None else str(cgroup),
            ),
            folders.head,
            folders.logs / "head.log",
            [
                *(f"--address={address}", "--num-cpus=0", "--num-gpus=0", "--labels=remora-role=member"),
                f"--resources={json.dumps({DRIVERS: DRIVERS_AMOUNT})}",
                # That of other nodes of this machine is taken.
                "--dashboard-agent-listen-port=0",
            ],
        )


def own_address(home: Path, head: str) -> str:
    """The address at which the cluster reaches this machine.  Raises ProviderError where no way leads to the head."""
    try:
        towards = address_towards(head)
    except (OSError, ValueError) as error:
        raise ProviderError(f"{head} is not the address of a head that is reached: {error}") from error
    # Ray would turn this one into the machine's outer address, at which a head on the loopback does not look.
    return head_address(home) if ip_address(towards.partition("%")[0]).is_loopback else towards
