"""Which connections commands of jobs may not make, as a ruleset of nftables by their users (pure).

A command reaches the internet and the other workers of its job, whose ports are any.  It does not reach what knows the
machine's identity (the metadata service and Azure's wire server), the ports of the platform's own processes on this
machine, and those ports of other machines that are known.

Source: nft(8); https://learn.microsoft.com/azure/virtual-network/what-is-ip-address-168-63-129-16
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

from remora.isolation import UidRange

#: Name of the table; nothing else in the machine's ruleset is read or written.
TABLE = "remora"
#: A listening socket's state in /proc/net/tcp.
_LISTENING = "0A"
_RULESET = """\
add table inet {table}
delete table inet {table}
table inet {table} {{
  set own_ports {{ type inet_service; flags interval; auto-merge; {own_ports} }}
  set others4 {{ type ipv4_addr . inet_service; {others4} }}
  set others6 {{ type ipv6_addr . inet_service; {others6} }}
  chain output {{
    type filter hook output priority filter; policy accept;
    meta skuid {first}-{last} jump jobs
  }}
  chain jobs {{
    ip daddr 169.254.169.254 tcp dport != 53 reject with tcp reset
    ip6 daddr fd00:ec2::254 tcp dport != 53 reject with tcp reset
    ip daddr 168.63.129.16 tcp dport {{ 80, 443, 32526 }} reject with tcp reset
    fib daddr type local tcp dport @own_ports reject with tcp reset
    ip daddr . tcp dport @others4 reject with tcp reset
    ip6 daddr . tcp dport @others6 reject with tcp reset
  }}
}}
"""


def ruleset(uids: UidRange, own_ports: Iterable[int], others: Iterable[tuple[str, int]]) -> str:
    """What `nft -f` reads: our table, which takes the place of the one before in one step.

    `own_ports` are closed to the users on every address of this machine, `others` are addresses (numbers, not names)
    and ports of other machines.  Raises ValueError for what is none.
    """
    pairs = sorted({(ipaddress.ip_address(address), _port(port)) for address, port in others}, key=str)
    by_version = {
        version: [f"{address} . {port}" for address, port in pairs if address.version == version]
        for version in (4, 6)
    }
    return _RULESET.format(
        table=TABLE,
        first=uids.first,
        last=uids.last,
        own_ports=_elements(sorted({str(_port(port)) for port in own_ports})),
        others4=_elements(by_version[4]),
        others6=_elements(by_version[6]),
    )


def listening_ports(table: str, uid: int) -> set[int]:
    """Ports at which sockets of a user listen, by the text of /proc/net/tcp or /proc/net/tcp6."""
    found = set()
    for line in table.splitlines()[1:]:
        words = line.split()
        if len(words) > 7 and words[3] == _LISTENING and words[7] == str(uid):
            found.add(int(words[1].rpartition(":")[2], 16))
    return found


def _port(port: int) -> int:
    if not 0 < port < 65536:
        raise ValueError(f"{port} is no port")
    return port


def _elements(words: list[str]) -> str:
    return f"elements = {{ {', '.join(words)} }};" if words else ""
