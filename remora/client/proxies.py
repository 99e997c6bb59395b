"""Whether requests to an address go through the proxies of the environment."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import httpx2

from remora.loopback import is_loopback_url


def options_for(url: str) -> dict[str, Any]:
    """Options of an HTTP client: no proxy stands before this machine; certificates are the environment's everywhere."""
    if not is_loopback_url(url):
        return {}
    options: dict[str, Any] = {"trust_env": False}
    if urlsplit(url).scheme == "https":
        # Without the environment, SSL_CERT_FILE would not count either.
        options["verify"] = httpx2.create_ssl_context()
    return options
