"""Sends a request to the address that was checked: what users name must not reach the service's own network."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
from collections.abc import Collection, Mapping
from functools import lru_cache
from urllib.parse import urlsplit

import httpx2

from service.alerts.destinations import AddressRefused, check_url, host_and_port, is_allowed

#: Seconds for everything about one request, and for one connection; addresses of a host that are tried.
TIMEOUT_S, CONNECT_S, MOST_ADDRESSES = 10.0, 3.0, 4
#: IPv6 networks with addresses of IPv4 in them, which are reached by who forwards them: RFC 3056, 4380, 6052 and 8215.
_FORWARDED = tuple(
    ipaddress.ip_network(one) for one in ("2002::/16", "2001::/32", "64:ff9b::/96", "64:ff9b:1::/48")
)


def is_public(address: str) -> bool:
    """Whether an IP address is one of the Internet that anyone may be sent to."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if isinstance(found, ipaddress.IPv6Address):
        if found.ipv4_mapped is not None:
            return is_public(str(found.ipv4_mapped))
        if any(found in network for network in _FORWARDED):
            return False
    return found.is_global and not (found.is_multicast or found.is_reserved or found.is_unspecified)


async def addresses_of(url: str, allowed_hosts: Collection[str]) -> list[str]:
    """The IP addresses of the URL's host, all of which may be sent to.  Raises AddressRefused, OSError."""
    check_url(url, allowed_hosts)
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    assert parts.hostname is not None
    found = await asyncio.get_running_loop().getaddrinfo(parts.hostname, port, type=socket.SOCK_STREAM)
    addresses = list(dict.fromkeys(str(one[4][0]) for one in found))[:MOST_ADDRESSES]
    if not is_allowed(url, allowed_hosts) and not all(is_public(one) for one in addresses):
        raise AddressRefused(
            f"{host_and_port(url)} is not on the public Internet, and no operator has named it in REMORA_ALERT_HOSTS"
        )
    return addresses


async def post(url: str, headers: Mapping[str, str], body: bytes, allowed_hosts: Collection[str]) -> int:
    """Send a body; the status of the answer, of which nothing else is read.  No redirect is followed.

    Raises AddressRefused, and OSError or httpx2.HTTPError where there is no answer within `TIMEOUT_S` seconds.
    """
    async with asyncio.timeout(TIMEOUT_S):
        problem: Exception = OSError("the host has no address")
        for address in await addresses_of(url, allowed_hosts):
            try:
                return await _post_to(address, url, headers, body)
            except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
                problem = error
        raise problem


async def _post_to(address: str, url: str, headers: Mapping[str, str], body: bytes) -> int:
    pinned = httpx2.URL(url).copy_with(host=address)
    timeout = httpx2.Timeout(TIMEOUT_S, connect=CONNECT_S)
    own = {"Host": host_and_port(url), "Content-Type": "application/json", "User-Agent": "remora"}
    # Not by a proxy of the environment, which would look the name up again.
    async with httpx2.AsyncClient(
        verify=_tls(), timeout=timeout, trust_env=False, follow_redirects=False
    ) as client:
        request = client.build_request(
            "POST",
            pinned,
            headers={**own, **headers},
            content=body,
            extensions={"sni_hostname": urlsplit(url).hostname},
        )
        response = await client.send(request, stream=True)
        try:
            return response.status_code
        finally:
            await response.aclose()


@lru_cache(maxsize=1)
def _tls() -> ssl.SSLContext:
    return ssl.create_default_context()
