"""python -m cluster.head.retire --home DIR --head IP:PORT --name NAME: let a drivers' node take no more drivers.

Those that it has go on; Ray ends it with the last one.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from cluster.head.commands import NAME_LABEL

#: Seconds that its last driver may take: longer than any attempt.
_PATIENCE_S = 365 * 24 * 3600.0


def main(words: Sequence[str]) -> int:
    """Ask Ray; the exit status of the process."""
    parser = argparse.ArgumentParser(prog="python -m cluster.head.retire", description=__doc__)
    parser.add_argument("--home", type=Path, required=True, help="the service's home")
    parser.add_argument("--head", required=True, help="address and port of the head")
    parser.add_argument("--name", required=True, help="name of the drivers' node")
    given = parser.parse_args(words)

    import ray

    from cluster.ray.connection import connect
    from cluster.ray.drain import drain

    try:
        connect(given.home, given.head)
        for node in ray.nodes():
            if node["Alive"] and node["Labels"].get(NAME_LABEL) == given.name:
                drain(node["NodeID"], "another release is in force", time.time() + _PATIENCE_S)
    except Exception as error:  # Ray raises what its RPC library raises
        print(f"{given.name} could not be retired: {error}", file=sys.stderr)
        return 1
    finally:
        ray.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
