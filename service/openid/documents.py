"""JSON documents of issuers, fetched with limits of time and bytes."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import httpx2
from pydantic import TypeAdapter, ValidationError

from remora.loopback import is_loopback
from service.openid.issuers import Issuer

#: Seconds for each document of an issuer.
TIMEOUT_S = 5.0
#: Bytes of each.
MAX_DOCUMENT_BYTES = 256 * 1024

_OBJECT: TypeAdapter[dict[str, Any]] = TypeAdapter(dict[str, Any])


async def fetch_object(
    client: httpx2.AsyncClient, url: str, *, method: str = "GET", good: tuple[int, ...] = (200,), **more: Any
) -> tuple[int, dict[str, Any]]:
    """The status and the JSON object of an answer whose status is one of `good`; `more` is for the request.

    Raises httpx2.HTTPError and ValueError.
    """
    content = bytearray()
    async with client.stream(method, url, timeout=TIMEOUT_S, follow_redirects=False, **more) as response:
        if response.status_code not in good:
            response.raise_for_status()
            raise ValueError(f"{url} answers {response.status_code}")
        async for part in response.aiter_bytes():
            content += part
            if len(content) > MAX_DOCUMENT_BYTES:
                raise ValueError(f"{url} has more than {MAX_DOCUMENT_BYTES} bytes")
        status: int = response.status_code
    try:
        return status, _OBJECT.validate_json(bytes(content))
    except ValidationError:
        raise ValueError(f"{url} is no JSON object") from None


async def configuration_of(client: httpx2.AsyncClient, issuer: Issuer) -> dict[str, Any]:
    """The issuer's own document of OpenID Connect Discovery 1.0.  Raises httpx2.HTTPError and ValueError."""
    _, found = await fetch_object(client, f"{issuer.issuer}/.well-known/openid-configuration")
    if str(found.get("issuer", "")).rstrip("/") != issuer.issuer:
        raise ValueError("its configuration is that of another issuer")
    return found


def secure_endpoint(configuration: dict[str, Any], name: str) -> str:
    """The URL of an endpoint: https, or http on this machine.  Raises ValueError."""
    url = configuration.get(name)
    if isinstance(url, str) and len(url) <= 2000:
        parts = urlsplit(url)
        is_secure = parts.scheme == "https" or (parts.scheme == "http" and is_loopback(parts.hostname or ""))
        if is_secure and parts.hostname and not parts.fragment and "@" not in parts.netloc:
            return url
    raise ValueError(f"its configuration names no secure {name}")
