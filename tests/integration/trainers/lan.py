"""A network of its own for the nodes of a lab: each in a namespace, with a cable to a switch that can be pulled.

Needs root and iproute2.  The head stays in the host's namespace, at the switch's own address.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from cluster.local import head, machine, provider

#: Why there can be no such network here; None where there can.
WHY_NOT = (
    "needs root: network namespaces are made"
    if os.geteuid() != 0
    else "needs iproute2: the program `ip` is not installed"
    if shutil.which("ip") is None
    else None
)


class Lan:
    """The switch and its cables; nodes are known by their address."""

    def __init__(self) -> None:
        # Names of interfaces have at most 15 characters.
        self._name = f"rem{os.getpid() % 100_000}"
        self._network = f"10.{64 + os.getpid() % 64}.{os.getpid() // 64 % 250}"
        self._plugged: list[str] = []
        self.head = f"{self._network}.1"
        _ip("link", "add", self._name, "type", "bridge")
        _ip("address", "add", f"{self.head}/24", "dev", self._name)
        _ip("link", "set", self._name, "up")

    def plug_in(self, _: Any, taken: Any) -> str | None:
        """A new address with a namespace of its own; stands in for `node_address`."""
        del taken
        number = len(self._plugged) + 2
        space, cable = self._of(address := f"{self._network}.{number}")
        _ip("netns", "add", space)
        _ip("link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", space)
        _ip("link", "set", cable, "master", self._name, "up")
        _ip("-n", space, "address", "add", f"{address}/24", "dev", "eth0")
        for interface in ("lo", "eth0"):
            _ip("-n", space, "link", "set", interface, "up")
        self._plugged.append(address)
        return address

    def cut(self, address: str) -> None:
        """Pull a node's cable out of the switch: whatever it sends and is sent is lost, and nobody is told."""
        _ip("link", "set", self._of(address)[1], "nomaster")

    def heal(self, address: str) -> None:
        """Put the cable back."""
        _ip("link", "set", self._of(address)[1], "master", self._name)

    def start_inside(self, command: list[str], **named: Any) -> subprocess.Popen[bytes]:
        """Start a machine in the namespace of its address; stands in for `Popen`."""
        address = next(word.partition("=")[2] for word in command if word.startswith("--node-ip-address="))
        if address in self._plugged:
            command = ["ip", "netns", "exec", self._of(address)[0], *command]
        return subprocess.Popen(command, **named)

    def close(self) -> None:
        for address in self._plugged:
            space, cable = self._of(address)
            # A namespace lives as long as anything looks into it; its cable need not.
            _ip("link", "delete", cable)
            _ip("netns", "delete", space)
        _ip("link", "delete", self._name)

    def _of(self, address: str) -> tuple[str, str]:
        """Namespace and cable of an address."""
        number = address.rpartition(".")[2]
        return f"{self._name}n{number}", f"{self._name}c{number}"


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@contextmanager
def open_lan() -> Iterator[Lan]:
    """A network in which the local provider starts its machines; nothing of it is left afterwards."""
    lan = Lan()
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(head, "head_address", lambda home: lan.head)
            patch.setattr(provider, "node_address", lan.plug_in)
            patch.setattr(
                machine, "subprocess", SimpleNamespace(**{**vars(subprocess), "Popen": lan.start_inside})
            )
            yield lan
    finally:
        lan.close()
