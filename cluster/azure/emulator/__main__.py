"""`python -m cluster.azure.emulator [--port N] [--home FOLDER [--cluster NAME]]`: the emulator until SIGINT or SIGTERM.

With `--home` its machines run on this host, beside the local cluster of that folder whose secret its key vault holds,
each with an agent that hears of its eviction; without, they are books only.
"""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from pathlib import Path

from cluster.azure.catalogue_file import read_sizes, with_own
from cluster.azure.emulator.clock import Clock
from cluster.azure.emulator.emulated_cloud import Cloud
from cluster.azure.emulator.key_vault import secrets_of
from cluster.azure.emulator.machines import LocalMachines
from cluster.azure.emulator.notices import metadata_of
from cluster.azure.emulator.server import EmulatorServer

DEFAULT_PORT = 7266
#: Seconds that something due may be late while no request comes.
PASSES_EVERY_S = 0.25


def main(arguments: list[str]) -> None:
    """Serve until a signal."""
    parser = argparse.ArgumentParser(prog="python -m cluster.azure.emulator", description=__doc__)
    parser.add_argument("--port", type=int, default=DEFAULT_PORT, help="0 takes one that is free")
    parser.add_argument("--home", type=Path, help="folder of the local cluster whose nodes the machines are")
    parser.add_argument(
        "--cluster", default="remora", help="its name, of which the secret's in the vault is made"
    )
    parser.add_argument("--catalogue", type=Path, help="file with sizes that it sells beside the usual ones")
    chosen = parser.parse_args(arguments)
    own = () if chosen.catalogue is None else read_sizes(chosen.catalogue.read_text())
    # Handlers and no mask: machines would inherit that, and nothing on them could be ended by SIGTERM.
    stopping = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda _number, _frame: stopping.set())
    if chosen.home is None:
        _serve(EmulatorServer(Cloud(with_own(own)), port=chosen.port), stopping)
        return
    cloud, clock = Cloud(with_own(own)), Clock()
    metadata = metadata_of(cloud, clock).application()
    secrets = secrets_of(chosen.home, chosen.cluster)
    server = EmulatorServer(cloud, chosen.port, metadata, clock, PASSES_EVERY_S, secrets)
    machines = LocalMachines(cloud, chosen.home, lambda: server.url)
    try:
        _serve(server, stopping)
    finally:
        machines.close()


def _serve(server: EmulatorServer, stopping: threading.Event) -> None:
    with server:
        print(server.url, flush=True)
        stopping.wait()


if __name__ == "__main__":
    main(sys.argv[1:])
