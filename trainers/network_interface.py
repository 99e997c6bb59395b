"""Which network interface of this machine carries an address."""

from __future__ import annotations

import psutil


def interface_of(address: str) -> str | None:
    """Name of the interface that carries the address, of 127.0.0.0/8 the loopback interface; None: none does."""
    for name, addresses in psutil.net_if_addrs().items():
        for one in addresses:
            if one.address == address or (address.startswith("127.") and one.address == "127.0.0.1"):
                return name
    return None
