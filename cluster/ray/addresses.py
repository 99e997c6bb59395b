"""Which address of this machine its head sees."""

from __future__ import annotations

import socket


def address_towards(head: str) -> str:
    """The address of this machine that the head sees, which is the one that Ray takes; nothing is sent.

    Raises OSError, and ValueError for what is no address and port.
    """
    host, _, port = head.rpartition(":")
    family, _, _, _, place = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(place)
        return str(probe.getsockname()[0])
