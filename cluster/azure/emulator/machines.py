"""Emulated machines that run: each boots on this host, from its start-up data and with the image's service.

It does what cloud-init and systemd of a real one do: it writes the files of the document below a root folder of its
own and starts the service that the document names, whose unit is the image's, in `deploy/node/`.  So what joins the Ray
head is `cluster.node`, as on a real machine; it learns who it is, and the secret, from the emulator's services.
"""

from __future__ import annotations

import contextlib
import logging
import shlex
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from cluster.azure.emulator.emulated_cloud import Cloud, EmulatedMachine
from cluster.azure.emulator.notices import metadata_url
from cluster.azure.emulator.start_up import (
    Service,
    StartUp,
    StartUpFailed,
    command_below,
    read,
    read_unit,
    started_service,
)
from cluster.local import records
from cluster.local.machine import own_flags
from cluster.local.provider import Boot, LocalProvider
from cluster.provider import ProviderError

log = logging.getLogger(__name__)

#: What the image has.
_IMAGE = Path(__file__).resolve().parents[3] / "deploy/node"


class LocalMachines:
    """Gives the machines of an emulated cloud processes of this host; each is known by the machine's name there."""

    def __init__(self, cloud: Cloud, home: Path, url: Callable[[], str]) -> None:
        """`home` is that of the cluster that they run beside; `url` tells where the emulator serves."""
        self._url = url
        # Which head they join stands in their start-up data.
        self._provider = LocalProvider(home, "")
        self._running: set[str] = set()
        self._lock = threading.Lock()
        # One thread: what happens to a machine happens in the order in which it was asked for.
        self._hands = ThreadPoolExecutor(1, thread_name_prefix="emulated-machines")
        cloud.on_start.append(lambda machine: self._do(self.start, machine))
        cloud.on_end.append(lambda machine: self._do(self.end, machine))

    def start(self, machine: EmulatedMachine) -> None:
        """Boot.  Raises StartUpFailed and ProviderError."""
        start_up = read(machine.custom_data)
        service = _service(started_service(start_up))
        with self._lock:
            self._running.add(machine.name)
        self._provider.boot(machine.name, lambda record: self._boot(machine, start_up, service, record))

    def _boot(
        self, machine: EmulatedMachine, start_up: StartUp, service: Service, record: records.MachineRecord
    ) -> Boot:
        root = Path(record.temporary) / "root"
        try:
            _write(root, start_up)
            runtime = root / "run" / service.runtime_folder
            runtime.mkdir(mode=0o700, parents=True)
        except OSError as error:
            raise StartUpFailed(f"its files cannot be written: {error}") from error
        variables = {
            # What systemd gives it.
            "RUNTIME_DIRECTORY": str(runtime),
            # What a real one finds at a link-local address, and the folders and the address that it has for itself.
            "AZURE_POD_IDENTITY_AUTHORITY_HOST": self._url(),
            "REMORA_METADATA_URL": metadata_url(self._url(), machine.name),
            "REMORA_RAY_FLAGS": shlex.join(own_flags(record)),
            # Its GPUs are numbers, which no tool of this host knows of.
            "REMORA_GPUS": "0",
        }
        return Boot(command=command_below(str(root), service, start_up, sys.executable), variables=variables)

    def end(self, machine: EmulatedMachine) -> None:
        """Take the power away."""
        with self._lock:
            was_running = machine.name in self._running
            self._running.discard(machine.name)
        if was_running:
            self._forget(machine.name)

    def close(self) -> None:
        """End every machine that still runs."""
        self._hands.shutdown(wait=True)
        with self._lock:
            left = list(self._running)
            self._running.clear()
        for name in left:
            self._forget(name)

    def _forget(self, name: str) -> None:
        self._provider.kill(name)
        self._provider.delete(name)

    def _do(self, work: Callable[[EmulatedMachine], None], machine: EmulatedMachine) -> None:
        def attempt() -> None:
            try:
                work(machine)
            except (StartUpFailed, ProviderError) as error:
                # As on a real one: it runs and never joins.
                log.warning("machine %s: %s", machine.name, error)

        # Nothing boots any more while everything ends.
        with contextlib.suppress(RuntimeError):
            self._hands.submit(attempt)


def _service(name: str) -> Service:
    try:
        return read_unit((_IMAGE / name).read_text())
    except OSError as error:
        raise StartUpFailed(
            f"its start-up data starts {name}, which the image does not have: {error}"
        ) from error


def _write(root: Path, start_up: StartUp) -> None:
    for file in start_up.files:
        path = root / file.path.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(file.content)
        path.chmod(file.mode)
