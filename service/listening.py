"""Who may reach the API, and by which names: what the settings say, and what they must not say together (pure)."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias
from urllib.parse import urlsplit

from remora.isolation import Isolation
from remora.loopback import is_loopback
from service.settings import Settings

#: What stands for all addresses of a machine, by the version of the protocol.
EVERY_ADDRESS = {4: "0.0.0.0", 6: "::"}  # noqa: S104 - a name, not a choice

Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network


class ListeningProblem(Exception):
    """The API must not listen so; the message is one sentence for an operator, with what to do."""


@dataclass(frozen=True)
class Listening:
    """How the API is reached."""

    #: Without brackets.
    host: str
    port: int
    #: Files with the certificate, first the service's own, and its key; None: plain HTTP.
    certificate: tuple[str, str] | None
    #: Addresses of proxies, whose headers about their clients are believed.
    proxies: tuple[Network, ...]
    #: Names by which requests may address the service, besides those of this machine's loopback.
    names: frozenset[str]

    @property
    def is_public(self) -> bool:
        """True when other machines can reach it."""
        return not is_loopback(self.host)

    def has_name(self, host: str) -> bool:
        """True for the names and addresses by which requests may address it."""
        return is_loopback(host) or host.lower() in self.names

    @property
    def scheme(self) -> str:
        """`https` with a certificate, else `http`."""
        return "http" if self.certificate is None else "https"

    def may_connect(self, address: str | None) -> bool:
        """True for the peers of a connection that are let in: where there is no TLS here, proxies and this machine."""
        if self.certificate is not None or not self.is_public:
            return True
        return address is not None and (is_loopback(address) or self.is_proxy(address))

    def is_proxy(self, address: str | None) -> bool:
        """True for the address of a trusted proxy."""
        try:
            one = ipaddress.ip_address((address or "").partition("%")[0])
        except ValueError:
            return False
        mapped = getattr(one, "ipv4_mapped", None) or one
        return any(mapped in network for network in self.proxies)


#: Reached by this machine's programs alone, by its loopback's names.
LOCAL_ONLY = Listening(host="127.0.0.1", port=0, certificate=None, proxies=(), names=frozenset())


def listening(settings: Settings) -> Listening:
    """How to listen by these settings.  Raises ListeningProblem."""
    found = Listening(
        host=settings.host.strip("[]"),
        port=settings.port,
        certificate=_certificate(settings),
        proxies=tuple(_networks(settings.trusted_proxies)),
        names=_names(settings),
    )
    if found.is_public and settings.authentication == "none":
        raise ListeningProblem(
            f"REMORA_HOST is {found.host}, which other machines reach, and requests prove nothing about their"
            " senders: set REMORA_AUTHENTICATION=required, or REMORA_HOST=127.0.0.1"
        )
    if found.is_public and settings.isolation == "namespaces":
        raise ListeningProblem(
            f"REMORA_HOST is {found.host}, which other machines reach, and REMORA_ISOLATION is namespaces, in which"
            " jobs reach every port of their node and the metadata service of its cloud: set it to users, or to none"
        )
    if found.is_public and found.certificate is None and not found.proxies:
        raise ListeningProblem(
            f"REMORA_HOST is {found.host}, which other machines reach, and tokens would cross the network in clear: set"
            " REMORA_TLS_CERTIFICATE and REMORA_TLS_KEY, or REMORA_TRUSTED_PROXIES with the addresses of the proxies"
            " that end TLS"
        )
    return found


def isolation_of(settings: Settings) -> Isolation:
    """How jobs are kept apart: where other machines reach the API, `auto` does not go on without."""
    is_public = not is_loopback(settings.host.strip("[]"))
    return "users" if is_public and settings.isolation == "auto" else settings.isolation


def _certificate(settings: Settings) -> tuple[str, str] | None:
    given = (settings.tls_certificate, settings.tls_key)
    if given == (None, None):
        return None
    certificate, key = given
    if certificate is None or key is None:
        missing = "REMORA_TLS_KEY" if key is None else "REMORA_TLS_CERTIFICATE"
        raise ListeningProblem(f"a certificate needs its key: set {missing} too")
    return str(certificate), str(key)


def _networks(given: str) -> Sequence[Network]:
    networks = []
    for text in filter(None, (part.strip() for part in given.split(","))):
        try:
            networks.append(ipaddress.ip_network(text))
        except ValueError:
            raise ListeningProblem(
                f"REMORA_TRUSTED_PROXIES has {text[:80]!a}, which is no address and no network such as 10.0.0.0/24"
            ) from None
    return networks


def _names(settings: Settings) -> frozenset[str]:
    names = {settings.host.strip("[]").lower()} - set(EVERY_ADDRESS.values())
    if settings.public_url:
        parts = urlsplit(settings.public_url)
        if (
            parts.scheme not in ("http", "https")
            or not parts.hostname
            or parts.path.strip("/")
            or parts.query
        ):
            raise ListeningProblem(
                f"REMORA_PUBLIC_URL is {settings.public_url[:200]!a}; write it like https://remora.example.com"
            )
        names.add(parts.hostname)
    return frozenset(names)
