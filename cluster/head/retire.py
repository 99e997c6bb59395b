"""python -m cluster.head.retire --home DIR --head IP:PORT --for NAME: let a drivers' node be the only one for drivers.

Nodes of other releases, on whichever machine they are, take no more drivers.  Those that they have go on; Ray ends a
node with its last one.  Ray Train's coordinator moves off them.  Nothing is retired before the node NAME is there.
Prints the names of those that are retired.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cluster.head.commands import NAME_LABEL, Part

#: Seconds that its last driver may take: longer than any attempt.
_PATIENCE_S = 365 * 24 * 3600.0
#: Seconds in which the node that takes the next drivers has to join the cluster.
JOINED_S = 60.0
_LOOK_S = 0.25
#: Nodes for drivers that belong to a release are called so; an operator's own have other names, and go on.
_OF_A_RELEASE = f"{Part.DRIVERS}-"


def others(nodes: Iterable[Mapping[str, Any]], name: str) -> dict[str, str] | None:
    """Living drivers' nodes of other releases, Ray's ids by their names (pure); None while `name` is not there."""
    named = {node["Labels"].get(NAME_LABEL, ""): node["NodeID"] for node in nodes if node["Alive"]}
    if name not in named:
        return None
    return {one: node for one, node in named.items() if one.startswith(_OF_A_RELEASE) and one != name}


def main(words: Sequence[str]) -> int:
    """Ask Ray; the exit status of the process."""
    parser = argparse.ArgumentParser(prog="python -m cluster.head.retire", description=__doc__)
    parser.add_argument("--home", type=Path, required=True, help="the service's home")
    parser.add_argument("--head", required=True, help="address and port of the head")
    parser.add_argument("--for", dest="name", required=True, help="name of the node for the next drivers")
    given = parser.parse_args(words)

    import ray

    from cluster.local.connection import connect
    from cluster.ray.coordinator import move_coordinator
    from cluster.ray.drain import drain

    try:
        connect(given.home, given.head)
        deadline = time.monotonic() + JOINED_S
        while (found := others(ray.nodes(), given.name)) is None:
            if time.monotonic() > deadline:
                print(f"{given.name} is not in the Ray cluster", file=sys.stderr)
                return 1
            time.sleep(_LOOK_S)
        for name, node in sorted(found.items()):
            drain(node, "another release is in force", time.time() + _PATIENCE_S)
            print(name)
        move_coordinator(found.values())
    except Exception as error:  # Ray raises what its RPC library raises
        print(f"the Ray cluster does not answer: {error}", file=sys.stderr)
        return 1
    finally:
        ray.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
