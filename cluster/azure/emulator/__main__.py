"""`python -m cluster.azure.emulator [--port N] [--home FOLDER]`: the emulator until SIGINT or SIGTERM.

With `--home` its machines are nodes of the local cluster of that folder; without, they are books only.
"""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path

from cluster.azure.emulator.machines import LocalMachines
from cluster.azure.emulator.server import EmulatorServer
from cluster.azure.emulator.state import Cloud

DEFAULT_PORT = 7266


def main(arguments: list[str]) -> None:
    """Serve until a signal."""
    parser = argparse.ArgumentParser(prog="python -m cluster.azure.emulator", description=__doc__)
    parser.add_argument("--port", type=int, default=DEFAULT_PORT, help="0 takes one that is free")
    parser.add_argument("--home", type=Path, help="folder of the local cluster whose nodes the machines are")
    chosen = parser.parse_args(arguments)
    ends = {signal.SIGINT, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)
    cloud = Cloud()
    machines = LocalMachines(cloud, chosen.home) if chosen.home is not None else None
    try:
        with EmulatorServer(cloud, chosen.port) as server:
            print(server.url, flush=True)
            signal.sigwait(ends)
    finally:
        if machines is not None:
            machines.close()


if __name__ == "__main__":
    main(sys.argv[1:])
