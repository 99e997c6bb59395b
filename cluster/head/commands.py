"""By which flags and variables a machine is the Ray head of a server, or a node of the server's own (pure)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path

from cluster.ray import job_api
from remora.ray_resources import DRIVERS, DRIVERS_AMOUNT

#: Bytes of shared memory of each one's object store; Ray refuses less than 75 MB.
OBJECT_STORE_BYTES = 200_000_000
#: The label with the name of a part.
NAME_LABEL = "remora-part"
#: Seconds for which nodes and drivers wait for a head that is being started again.
RECONNECT_S = 300


class Part(StrEnum):
    """What a process is."""

    #: It keeps the state of the cluster, on disk, so that it can be started again while nodes and drivers go on.
    HEAD = "head"
    #: A Ray node that carries drivers alone, and lives on while the head is started again.
    DRIVERS = "drivers"
    #: A Ray node that carries nothing: Ray lets a controller connect through a node of its own machine alone.
    MEMBER = "member"


def flags(
    part: Part,
    *,
    name: str,
    address: str,
    head: str,
    temporary: Path,
    client_port: int,
    jobs_port: int = 0,
    agent_port: int = 0,
) -> list[str]:
    """Flags of `ray start` for one part at `address`; `head` is the `host:port` of the head.

    `name` is a label of the node, by which it is found to be retired.  `client_port` is a free one of this machine for
    Ray Client, which nothing of ours uses: Ray's own default cannot be had by two users' heads on one machine.
    At `jobs_port` the head serves Ray's job API, through its node's agent at the free `agent_port`; 0: it does not.
    """
    own = [
        f"--node-ip-address={address}",
        f"--temp-dir={temporary}",
        f"--object-store-memory={OBJECT_STORE_BYTES}",
        "--include-log-monitor=false",
        *("--num-cpus=0", "--num-gpus=0", f"--labels=remora-role={part},{NAME_LABEL}={name}"),
    ]
    if part is Part.HEAD:
        port = head.rpartition(":")[2]
        client = f"--ray-client-server-port={client_port}"
        return [
            "--head",
            f"--port={port}",
            client,
            "--no-monitor",
            *job_api.flags_of(jobs_port, lambda: agent_port),
            *own,
        ]
    if part is Part.MEMBER:
        return [f"--address={head}", *own]
    return [f"--address={head}", f"--resources={json.dumps({DRIVERS: DRIVERS_AMOUNT})}", *own]


def variables(part: Part, state: Path, jobs_port: int = 0) -> Mapping[str, str]:
    """Variables of a part, beside those of every process of the cluster; the head's state is in the folder `state`."""
    waits = {"RAY_gcs_rpc_server_reconnect_timeout_s": str(RECONNECT_S)}
    if part is Part.HEAD:
        stored = {"RAY_gcs_storage": "rocksdb", "RAY_gcs_storage_path": str(state)}
        return {**waits, **stored, **job_api.variables_of(jobs_port)}
    return waits
