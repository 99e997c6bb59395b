"""Free TCP ports for servers to listen on.  Standard library only."""

from __future__ import annotations

import random
import socket

#: Below the range from which Linux takes the ports of outgoing connections (`net.ipv4.ip_local_port_range`, from 32768
#: by default), and above the ports of Ray's workers (10002 to 19999 by default).
FIRST, LAST = 20000, 29999
#: Scripts and tests seed the usual one, and then several processes would try the same ports in the same order.
_random = random.SystemRandom()


def free_port(host: str = "") -> int:
    """A TCP port of this machine that has no listener now; two callers at one time rarely get the same.

    `host` is the address to be listened on, all IPv4 addresses by default, as Ray does.  A port that the kernel picks
    would not do: between this call and the server's start, an outgoing connection from any address of the machine can
    take it, and a server that listens on all addresses then fails.  Raises OSError when there is none.
    """
    for _ in range(200):
        port = _random.randint(FIRST, LAST)
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            try:
                probe.bind((host, port))
            except OSError:
                continue
            return port
    raise OSError(f"no free TCP port between {FIRST} and {LAST} on this machine")


def is_free(port: int, host: str = "127.0.0.1") -> bool:
    """Whether a server could listen on the port now; connections that have just ended do not keep it."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
        return True
