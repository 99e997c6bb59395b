"""python -m cluster.head head|drivers --home DIR [--head IP:PORT] [--address IP]: the Ray head of a server, or drivers.

The head keeps the cluster's state in DIR/gcs and can be ended and started again: nodes, drivers and jobs go on.  DIR is
the service's home, with the secret of the cluster in `ray.token`, which is made when there is none.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from cluster.head.commands import Part, flags, variables
from cluster.local.certificates import machine_variables
from cluster.local.environment import machine_environment
from cluster.local.folders import ClusterFolders
from cluster.provider import ProviderError
from cluster.ray.joining import ray_start


def main(words: Sequence[str]) -> int:
    """Become `ray start`; returns an exit status only when that cannot be."""
    parser = argparse.ArgumentParser(prog="python -m cluster.head", description=__doc__)
    parser.add_argument("part", choices=[str(part) for part in Part])
    parser.add_argument("--home", type=Path, required=True, help="the service's home")
    parser.add_argument(
        "--head", default="127.0.0.2:6379", help="address and port of the head, which nodes reach"
    )
    parser.add_argument(
        "--address", default="", help="address of the drivers' node; that of the head unless given"
    )
    parser.add_argument("--name", default="", help="name of this process, where a home has several of a part")
    given = parser.parse_args(words)
    part = Part(given.part)
    folders = ClusterFolders(given.home.resolve())
    try:
        folders.make()
    except OSError as error:
        print(f"the folders of the cluster cannot be made: {error}", file=sys.stderr)
        return 2
    name = given.name or str(part)
    temporary = folders.temporary_of(name)
    address = given.address or given.head.rpartition(":")[0]
    command = ray_start(
        sys.executable, flags(part, name=name, address=address, head=given.head, temporary=temporary)
    )
    if part is Part.HEAD:
        # By it Ray takes the nodes that wait for this head for one that runs at its address already.
        (temporary / "ray_current_cluster").unlink(missing_ok=True)
        folders.address.write_text(f"{given.head}\n")
    try:
        tls = machine_variables(folders, name, address, temporary)
        environment = machine_environment(folders.home, **variables(part, folders.home / "gcs"), **tls)
    except ProviderError as error:
        print(error, file=sys.stderr)
        return 2
    return os.execve(command[0], command, environment)  # noqa: S606  # a list, no shell


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
