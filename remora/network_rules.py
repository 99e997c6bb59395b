"""Which connections commands of jobs may not make, as a ruleset of nftables by their users (pure).

A command reaches the internet and the other workers of its job, whose ports are any.  It does not reach what knows the
machine's identity (the metadata service and Azure's wire server), the platform's own processes on this machine, and
those ports of other machines that are known.

On this machine the kernel decides by the owner of the socket that listens, whichever port that is and however short it
has been open: who asks is noted when a command's SYN leaves, and the answer to it, which the kernel sends on behalf of
the listening socket, becomes a refusal where that socket is one of the platform's.

A SYN may have no owner: the kernel has sockets of its own, also on behalf of a command (the TCP below AF_SMC).  So that
of no user is treated as that of a job.

Source: nft(8); RFC 9293, 3.10.7.3 (a RST that acknowledges the SYN refuses the connection);
https://learn.microsoft.com/azure/virtual-network/what-is-ip-address-168-63-129-16
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from typing import NamedTuple

from remora.isolation import UidRange

#: What the names of our tables begin with; nothing else in the machine's ruleset is read or written.
TABLE = "remora"
#: Connections to this machine that a user may try in a second, and at once; and how many are remembered.  One that no
#: job answered is remembered for three minutes, longer than the kernel repeats an answer.
_A_SECOND, _AT_ONCE, _MOST = 1000, 20_000, 262_144
#: No user's number: every socket with an owner has another one.
_NO_UID = 2**32 - 1
_RULESET = """\
add table inet {table}
delete table inet {table}
table inet {table} {{
  set others4 {{ type ipv4_addr . inet_service; flags interval; }}
  set others6 {{ type ipv6_addr . inet_service; flags interval; }}
  set asked4 {{
    type ipv4_addr . inet_service . ipv4_addr . inet_service; flags dynamic,timeout; timeout 3m; size {most};
  }}
  set asked6 {{
    type ipv6_addr . inet_service . ipv6_addr . inet_service; flags dynamic,timeout; timeout 3m; size {most};
  }}
  set tries {{ type uid; flags dynamic,timeout; timeout 1m; size 65536; }}
  chain output {{
    type filter hook output priority filter; policy accept;
    meta skuid {first}-{last} jump jobs
    tcp flags & (syn | ack) == syn | ack jump answers
    meta skuid != {no_uid} return
    tcp flags & (syn | ack) == syn jump jobs
  }}
  chain jobs {{
    meta l4proto != tcp return
    ip daddr 169.254.169.254 tcp dport != 53 reject with tcp reset
    ip6 daddr fd00:ec2::254 tcp dport != 53 reject with tcp reset
    ip daddr 168.63.129.16 tcp dport {{ 80, 443, 32526 }} reject with tcp reset
    fib daddr type local goto here
    ip daddr . tcp dport @others4 reject with tcp reset
    ip6 daddr . tcp dport @others6 reject with tcp reset
  }}
  chain here {{
    tcp flags & (syn | ack) != syn return
    update @tries {{ meta skuid limit rate over {a_second}/second burst {at_once} packets }} reject with tcp reset
    meta skuid != {no_uid} goto noted
    limit rate over {a_second}/second burst {at_once} packets reject with tcp reset
    goto noted
  }}
  chain noted {{
    update @asked4 {{ ip saddr . tcp sport . ip daddr . tcp dport }} return
    update @asked6 {{ ip6 saddr . tcp sport . ip6 daddr . tcp dport }} return
    reject with tcp reset
  }}
  chain answers {{
    ip daddr . tcp dport . ip saddr . tcp sport @asked4 goto by_owner
    ip6 daddr . tcp dport . ip6 saddr . tcp sport @asked6 goto by_owner
  }}
  chain by_owner {{
    meta skuid != {{ {platform} }} goto allowed
    tcp flags set rst | ack
  }}
  chain allowed {{
    delete @asked4 {{ ip daddr . tcp dport . ip saddr . tcp sport }}
    delete @asked6 {{ ip6 daddr . tcp dport . ip6 saddr . tcp sport }}
  }}
}}
"""


class Ports(NamedTuple):
    """Ports of another machine that are closed to jobs."""

    #: An address in numbers.
    address: str
    first: int
    last: int


def table_of(uids: UidRange, node_uid: int) -> str:
    """The name of the table for these users of jobs, on whose machine the platform runs as `node_uid`."""
    return f"{tables_of(node_uid)}{uids.first}_{uids.last}"


def tables_of(node_uid: int) -> str:
    """What the names of all tables begin with that a platform of this user makes."""
    return f"{TABLE}_{node_uid}_"


def ruleset(uids: UidRange, node_uid: int) -> str:
    """What `nft -f` reads: our table, which takes the place of the one before in one step.

    What listens as `node_uid` or as root on this machine is closed to the users.
    """
    return _RULESET.format(
        table=table_of(uids, node_uid),
        first=uids.first,
        last=uids.last,
        platform=", ".join(str(one) for one in sorted({0, node_uid})),
        a_second=_A_SECOND,
        at_once=_AT_ONCE,
        most=_MOST,
        no_uid=_NO_UID,
    )


def closed_elsewhere(table: str, others: Iterable[Ports]) -> str:
    """What `nft -f` reads to close these ports of other machines, and no others, in one step.

    Raises ValueError for what is no address or no port.
    """
    lines = []
    for version in (4, 6):
        lines.append(f"flush set inet {table} others{version}")
        if elements := ", ".join(_elements(others, version)):
            lines.append(f"add element inet {table} others{version} {{ {elements} }}")
    return "\n".join(lines) + "\n"


def _elements(others: Iterable[Ports], version: int) -> list[str]:
    """Ranges that do not overlap: nft refuses others."""
    every = [(ipaddress.ip_address(one.address), _port(one.first), _port(one.last)) for one in others]
    found: list[Ports] = []
    for address, first, last in sorted(every, key=lambda one: (str(one[0]), *one[1:])):
        if address.version != version:
            continue
        if found and found[-1].address == str(address) and first <= found[-1].last + 1:
            found[-1] = found[-1]._replace(last=max(last, found[-1].last))
        else:
            found.append(Ports(str(address), first, last))
    return [f"{one.address} . {one.first}-{one.last}" for one in found]


def _port(port: int) -> int:
    if not 0 < port < 65536:
        raise ValueError(f"{port} is no port")
    return port
