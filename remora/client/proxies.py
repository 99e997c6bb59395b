"""Whether requests to an address go through the proxies of the environment, and which certificates count for it."""

from __future__ import annotations

import ssl
from typing import Any
from urllib.parse import urlsplit

import httpx2

from remora.loopback import is_loopback_url


def options_for(url: str) -> dict[str, Any]:
    """Options of an HTTP client: no proxy stands before this machine; certificates are the environment's everywhere."""
    if not is_loopback_url(url):
        return {}
    if urlsplit(url).scheme == "https":
        # Without the environment, SSL_CERT_FILE would not count either.
        return {"trust_env": False, "verify": httpx2.create_ssl_context()}
    # No certificate is asked for, and none is trusted: to read those of the machine takes longer than most requests.
    return {"trust_env": False, "verify": ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)}
