"""A network of its own for the nodes of a lab: each in a namespace, with a cable to a switch that can be pulled.

Needs root and iproute2: without them a laptop leaves out what it is for, and CI fails.  The head stays in the host's
namespace, at the switch's own address.  Nodes whose labels name a zone hang on a switch of that zone, whose one cable
to the head's switch can be pulled too.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cluster.local import head, node_starter, provider
from cluster.policies.placement import ZONE_LABEL
from tests.needed import is_missing

#: Rights of a process, as bits of `CapEff`: to set up networks, and to make namespaces.
_RIGHTS = (12, 21)


def _may_make_networks() -> bool:
    (rights,) = re.findall(r"^CapEff:\s*(\w+)$", Path("/proc/self/status").read_text(), re.MULTILINE)
    return all(int(rights, 16) >> bit & 1 for bit in _RIGHTS)


#: Why there can be no such network here; None where there can.
WHY_NOT = (
    "needs root, with the rights to make network namespaces (CAP_NET_ADMIN and CAP_SYS_ADMIN)"
    if not _may_make_networks()
    else "needs the program `ip`: apt-get install iproute2"
    if shutil.which("ip") is None
    else None
)


class Lan:
    """The switches and their cables; nodes are known by their address."""

    def __init__(self) -> None:
        # Names of interfaces have at most 15 characters.
        self._name = f"rem{os.getpid() % 100_000}"
        self._network = f"10.{64 + os.getpid() % 64}.{os.getpid() // 64 % 250}"
        #: The switch that each node's cable is plugged into.
        self._plugged: dict[str, str] = {}
        #: The switch of each zone.
        self._zones: dict[str, str] = {}
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
        self._plugged[address] = self._name
        return address

    def cut(self, address: str) -> None:
        """Pull a node's cable out of the switch: what it sends and is sent is lost, and neither end gets an error."""
        _ip("link", "set", self._of(address)[1], "nomaster")

    def heal(self, address: str) -> None:
        """Put the cable back."""
        _ip("link", "set", self._of(address)[1], "master", self._plugged[address])

    def cut_zone(self, zone: str) -> None:
        """Pull the cable between a zone and the head, which is also the way to the other zones.

        Nodes of the zone reach each other still, and so will those that are started there from now on.
        """
        _ip("link", "set", self._trunk(zone)[0], "nomaster")

    def heal_zone(self, zone: str) -> None:
        """Put that cable back."""
        _ip("link", "set", self._trunk(zone)[0], "master", self._name)

    def start_inside(self, command: list[str], **named: Any) -> subprocess.Popen[bytes]:
        """Start a machine in the namespace of its address; stands in for `Popen`."""
        address = _option(command, "--node-ip-address")
        if address in self._plugged:
            space, cable = self._of(address)
            labels = dict(one.split("=") for one in _option(command, "--labels").split(","))
            if ZONE_LABEL in labels:
                self._plugged[address] = self._switch_of(labels[ZONE_LABEL])
                _ip("link", "set", cable, "master", self._plugged[address])
            command = ["ip", "netns", "exec", space, *command]
        return subprocess.Popen(command, **named)

    def _switch_of(self, zone: str) -> str:
        """The zone's switch; made, and cabled to the head's, for its first node."""
        if zone not in self._zones:
            self._zones[zone] = switch = f"{self._name}z{zone}"
            inner, outer = self._trunk(zone)
            _ip("link", "add", switch, "type", "bridge")
            _ip("link", "add", inner, "type", "veth", "peer", "name", outer)
            _ip("link", "set", inner, "master", self._name, "up")
            _ip("link", "set", outer, "master", switch, "up")
            _ip("link", "set", switch, "up")
        return self._zones[zone]

    def close(self) -> None:
        for address in self._plugged:
            space, cable = self._of(address)
            # A namespace lives as long as anything looks into it; its cable need not.
            _ip("link", "delete", cable)
            _ip("netns", "delete", space)
        for zone, switch in self._zones.items():
            _ip("link", "delete", self._trunk(zone)[0])
            _ip("link", "delete", switch)
        _ip("link", "delete", self._name)

    def _of(self, address: str) -> tuple[str, str]:
        """Namespace and cable of an address."""
        number = address.rpartition(".")[2]
        return f"{self._name}n{number}", f"{self._name}c{number}"

    def _trunk(self, zone: str) -> tuple[str, str]:
        """The ends of a zone's cable at the head's switch and at its own."""
        return f"{self._name}i{zone}", f"{self._name}o{zone}"


def _option(command: list[str], flag: str) -> str:
    """What a machine's command says after `flag=`."""
    return next(word.partition("=")[2] for word in command if word.startswith(f"{flag}="))


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@contextmanager
def open_lan() -> Iterator[Lan]:
    """A network in which the local provider starts its machines; nothing of it is left afterwards."""
    if WHY_NOT is not None:
        is_missing(f"NO NODE IS CUT OFF FROM THE NETWORK: {WHY_NOT}")
    lan = Lan()
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(head, "head_address", lambda home: lan.head)
            patch.setattr(provider, "node_address", lan.plug_in)
            patch.setattr(
                node_starter, "subprocess", SimpleNamespace(**{**vars(subprocess), "Popen": lan.start_inside})
            )
            yield lan
    finally:
        lan.close()
