"""Says whether a host is this machine itself, which no network and no proxy is between."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit


def is_loopback(host: str) -> bool:
    """True for `localhost` and for loopback addresses, in brackets or without; names are not looked up."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def is_loopback_url(url: str) -> bool:
    """True where the host of a URL is this machine."""
    try:
        return is_loopback(urlsplit(url).hostname or "")
    except ValueError:
        return False
