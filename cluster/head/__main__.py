"""python -m cluster.head head|drivers|member --home DIR [--head IP:PORT] [--address IP]: a server's own part of Ray.

The head keeps the cluster's state in DIR/gcs and can be ended and started again: nodes, drivers and jobs go on.  DIR is
the service's home, with the secret of the cluster in `ray.token`, which is made when there is none.  With the variable
REMORA_RAY_JOBS_PORT the head serves Ray's job API at that port of loopback.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from cluster.head.commands import Part, flags, variables
from cluster.local.certificates import machine_variables, own_environment
from cluster.local.environment import machine_environment
from cluster.local.folders import ClusterFolders
from cluster.provider import ProviderError
from cluster.ray import job_api
from cluster.ray.addresses import address_towards
from cluster.ray.joining import ray_start
from remora.free_ports import free_port, is_free


def main(words: Sequence[str]) -> int:
    """Become `ray start`; returns an exit status only when that cannot be."""
    parser = argparse.ArgumentParser(prog="python -m cluster.head", description=__doc__)
    parser.add_argument("part", choices=[str(part) for part in Part])
    parser.add_argument("--home", type=Path, required=True, help="the service's home")
    parser.add_argument(
        "--head", default="127.0.0.2:6379", help="address and port of the head, which nodes reach"
    )
    parser.add_argument(
        "--address",
        default="",
        help="address of the node; unless given that of the head, and of a member the one that the head sees",
    )
    parser.add_argument("--name", default="", help="name of this process, where a home has several of a part")
    parser.add_argument(
        "--with-group",
        action="store_true",
        help="a controller of another user, in the group of this process, connects through it",
    )
    given = parser.parse_args(words)
    part = Part(given.part)
    folders = ClusterFolders(given.home.resolve())
    try:
        folders.make(with_group=given.with_group)
    except OSError as error:
        print(f"the folders of the cluster cannot be made: {error}", file=sys.stderr)
        return 2
    name = given.name or str(part)
    temporary = folders.temporary_of(name)
    try:
        address = given.address or _address(part, given.head)
    except (OSError, ValueError) as error:
        print(f"{given.head} is not the address and port of a head that is reached: {error}", file=sys.stderr)
        return 2
    jobs_port = job_api.usable_port(os.environ, is_free, _report) if part is Part.HEAD else 0
    try:
        own = flags(
            part,
            name=name,
            address=address,
            head=given.head,
            temporary=temporary,
            client_port=free_port("127.0.0.1"),
            jobs_port=jobs_port,
            agent_port=free_port("127.0.0.1") if jobs_port else 0,
        )
    except OSError as error:
        print(error, file=sys.stderr)
        return 2
    command = ray_start(sys.executable, own)
    if part is Part.HEAD:
        # By it Ray takes the nodes that wait for this head for one that runs at its address already.
        (temporary / "ray_current_cluster").unlink(missing_ok=True)
        folders.address.write_text(f"{given.head}\n")
    try:
        tls = machine_variables(folders, name, address, temporary)
        # A controller is reached at the address of the node through which it connects.
        own_environment(folders, [address])
        more = variables(part, folders.home / "gcs", jobs_port)
        environment = machine_environment(folders.home, **more, **tls)
    except ProviderError as error:
        print(error, file=sys.stderr)
        return 2
    return os.execve(command[0], command, environment)  # noqa: S606  # a list, no shell


def _report(text: str) -> None:
    print(text, file=sys.stderr)


def _address(part: Part, head: str) -> str:
    return address_towards(head) if part is Part.MEMBER else head.rpartition(":")[0]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
