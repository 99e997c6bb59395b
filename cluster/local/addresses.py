"""Loopback addresses for machines that share one host.

Every living machine has an address of its own out of 127.0.0.0/8, so that nothing can mistake one for another by its
address.  Ray turns 127.0.0.1 into the host's outer address, so that one is not used.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Collection
from ipaddress import ip_address
from pathlib import Path

from cluster.ray.addresses import address_towards


def head_address(home: Path) -> str:
    """The head's address; different homes most probably get different ones."""
    return f"{_block(home)}.1"


def node_address(home: Path, taken: Collection[str]) -> str | None:
    """The lowest free address of this home, None when all 253 are taken."""
    block = _block(home)
    return next((free for n in range(2, 255) if (free := f"{block}.{n}") not in taken), None)


def addresses_towards(head: str) -> list[str]:
    """The host of a head's address (`host:port`), and this machine's own address on the way to it where there is one.

    Nothing is sent to it; a name is looked up.
    """
    host, _, port = head.strip().rpartition(":")
    host = host.strip("[]")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65_535:
        return []
    own = []
    with contextlib.suppress(OSError, UnicodeError):
        own.append(address_towards(head.strip()))
    return [_as_written(one) for one in (host, *own)]


def _as_written(host: str) -> str:
    """An IP address in its usual form, and without the name of an interface."""
    try:
        return str(ip_address(host.partition("%")[0]))
    except ValueError:
        return host


def heads_of(file: Path) -> list[str]:
    """Addresses of the heads to which a process of the service connects: that of the file, and of the settings."""
    found = [os.environ.get("REMORA_RAY_ADDRESS", "")]
    with contextlib.suppress(OSError, UnicodeError):
        found.append(file.read_text())
    return [one.strip() for one in found if one.strip()]


def _block(home: Path) -> str:
    digest = hashlib.sha256(str(home.resolve()).encode()).digest()
    return f"127.{64 + digest[0] % 64}.{digest[1]}"
