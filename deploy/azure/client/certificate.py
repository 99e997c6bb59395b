"""The certificate of a team's API: one that is given, or one of an authority of the cluster's own, made here.

Both are secrets of the vault, and so is the authority, which is written first: what was killed between is continued by
the next call.  docs/decisions/0225-a-teams-api-has-a-certificate-of-an-authority-of-its-own.md
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization

from cluster.ray.certificates import (
    MACHINE_DAYS,
    CertificateUnusable,
    Credentials,
    expires_at,
    issue,
    make_authority,
    names_of,
    parse_authority,
)
from deploy.azure.client.parameters import Wrong
from deploy.azure.client.resource_manager import (
    VERSIONS,
    Json,
    Refused,
    ResourceManager,
    with_new_role,
)

#: What a key vault keeps in one secret, bytes.
MOST_BYTES = 25_000
_DAY_S = 86_400.0
#: Days before its end in which a certificate that was made here is replaced, and one that was given is named.
RENEWED_DAYS = 60
#: Tags of the secret: who made it, for which name, when it ends, and a digest of the certificate itself.
MADE, NAME, UNTIL, DIGEST = "remora:made", "remora:name", "remora:until", "remora:certificate"
#: The same digest of the authority that has signed it, where it was made here.
AUTHORITY = "remora:authority"
_BY_UP, _GIVEN = "up", "given"

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class ApiCertificate:
    """A certificate with its chain and its key, as one text in PEM.  What is shown of it is nothing of the key."""

    pem: bytes
    names: tuple[str, ...]
    #: When it ends, seconds since 1970.
    until: float

    def __repr__(self) -> str:
        return f"ApiCertificate({', '.join(self.names)})"

    @property
    def digest(self) -> str:
        """Of the certificate alone."""
        return _digest(self.pem)

    def is_for(self, host: str) -> bool:
        """Whether it names this host, itself or by a `*` in the place of its first part."""
        known = {one.lower().rstrip(".") for one in self.names}
        return bool(known & {host.lower(), f"*.{host.lower().partition('.')[2]}"})


def read_certificate(path: Path, now: float) -> ApiCertificate:
    """The certificate of a file (PEM): its own, its chain and its key, in any order.  Raises Wrong."""
    try:
        with path.expanduser().open("rb") as file:
            text = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise Wrong(f"the certificate cannot be read: {error}") from None
    if len(text) > MOST_BYTES:
        raise Wrong(f"{path} is larger than the {MOST_BYTES} bytes that a key vault keeps of one secret")
    try:
        certificates = x509.load_pem_x509_certificates(text)
    except ValueError:
        raise Wrong(f"{path} holds no certificate in PEM, or a damaged one") from None
    try:
        key = serialization.load_pem_private_key(text, password=None)
    except TypeError:
        raise Wrong(f"the key of {path} is encrypted, and the service has no password: decrypt it") from None
    except (ValueError, UnsupportedAlgorithm):
        raise Wrong(f"{path} holds no private key in PEM: add that of the certificate") from None
    own = [one for one in certificates if _matches(one, key)]
    if not own:
        raise Wrong(f"the key of {path} belongs to none of its certificates")
    return _checked(path, own[0], [one for one in certificates if one not in own], key, now)


def _matches(certificate: x509.Certificate, key: Any) -> bool:
    try:
        return bool(certificate.public_key() == key.public_key())
    except (ValueError, UnsupportedAlgorithm):
        return False


def _checked(
    path: Path, own: x509.Certificate, chain: list[x509.Certificate], key: Any, now: float
) -> ApiCertificate:
    if own.not_valid_after_utc.timestamp() <= now:
        raise Wrong(f"the certificate of {path} ended on {own.not_valid_after_utc:%Y-%m-%d}")
    if own.not_valid_before_utc.timestamp() > now:
        raise Wrong(f"the certificate of {path} is not good before {own.not_valid_before_utc:%Y-%m-%d}")
    parts = [one.public_bytes(serialization.Encoding.PEM) for one in (own, *chain)]
    parts.append(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    names = tuple(names_of(parts[0]))
    return ApiCertificate(pem=b"".join(parts), names=names, until=own.not_valid_after_utc.timestamp())


def made(authority: Credentials, host: str, now: float) -> ApiCertificate:
    """A certificate of an authority for a host.  Raises CertificateUnusable."""
    own = issue(authority, host, [host], now)
    pem = own.certificate + authority.certificate + own.key
    return ApiCertificate(pem=pem, names=tuple(names_of(own.certificate)), until=expires_at(own.certificate))


def is_due(tags: Mapping[str, str] | None, host: str, authority: str, now: float) -> bool:
    """Whether one is to be made: there is none, or the one that was made here ends soon or is of another host (pure).

    `tags` are those of the secret, None where there is none, and `authority` is the digest of who is to sign it.
    """
    if tags is None:
        return True
    is_right = (tags.get(NAME), tags.get(AUTHORITY)) == (host, authority)
    return tags.get(MADE) == _BY_UP and not (is_right and _until(tags) >= now + RENEWED_DAYS * _DAY_S)


class CertificateOfApi:
    """The certificate of one cluster's API in its vault."""

    def __init__(
        self, manager: ResourceManager, cluster: str, vault_id: str, vault_uri: str, poll_s: float, say: Say
    ) -> None:
        self._manager = manager
        self._cluster = cluster
        self._vault_id = vault_id
        self._vault_uri = vault_uri
        self._poll_s = poll_s
        self._say = say

    def store(self, given: ApiCertificate, host: str) -> None:
        """Let the API have this one.  Raises Wrong when it is not for the host, and Refused."""
        if not given.is_for(host):
            known = ", ".join(given.names[:5]) or "no host"
            raise Wrong(f"the certificate names {known[:200]}, and the API is reached as {host}")
        tags = self._tags("tls") or {}
        if tags.get(DIGEST) != given.digest:
            self._put("tls", given.pem, {MADE: _GIVEN, **_facts(given, host)})
            self._say(f"the certificate of the API is stored; it ends on {_day(given.until)}")

    def make(self, host: str, now: float, file: Path) -> bool:
        """Let the API have a certificate of the cluster's own where it has none, or one that ends soon.

        The authority's certificate is written to `file`, for clients.  False when the API has one that was given.
        Raises Refused.
        """
        tags = self._tags("tls")
        if tags is not None and tags.get(MADE) != _BY_UP:
            until = _until(tags)
            if until and until < now + RENEWED_DAYS * _DAY_S:
                self._say(
                    f"the certificate of the API ends on {_day(until)}: give another with --certificate"
                )
            return False
        try:
            authority = self._authority(now)
            signer = _digest(authority.certificate)
            if is_due(tags, host, signer, now):
                own = made(authority, host, now)
                self._put("tls", own.pem, {MADE: _BY_UP, AUTHORITY: signer, **_facts(own, host)})
                self._say(
                    f"a certificate of the API is made; it ends on {_day(own.until)}, and `up` renews it"
                )
        except CertificateUnusable as error:
            raise Refused(f"the authority of the API cannot be used: {error}") from None
        _write(file, authority.certificate)
        return True

    def _authority(self, now: float) -> Credentials:
        """The authority, made where there is none that outlives a certificate."""
        if self._tags("api-authority") is not None:
            name = self._name("api-authority")
            text = with_new_role(lambda: self._manager.secret(self._vault_uri, name), self._poll_s)
            if text is not None:
                found = parse_authority(text.encode())
                if expires_at(found.certificate) > now + MACHINE_DAYS * _DAY_S:
                    return found
        authority = make_authority(now, f"Remora API of {self._cluster}")
        self._put("api-authority", authority.joined(), {})
        return authority

    def _name(self, secret: str) -> str:
        return f"remora-{self._cluster}-{secret}"

    def _tags(self, secret: str) -> Mapping[str, str] | None:
        path = f"{self._vault_id}/secrets/{self._name(secret)}"
        document = self._manager.get(path, VERSIONS["vaults"])
        return None if document is None else document.get("tags") or {}

    def _put(self, secret: str, value: bytes, tags: Mapping[str, str]) -> None:
        properties = {"value": value.decode(), "contentType": "application/x-pem-file"}
        body: Json = {"tags": {"remora:cluster": self._cluster, **tags}, "properties": properties}
        self._manager.put(f"{self._vault_id}/secrets/{self._name(secret)}", VERSIONS["vaults"], body)


def _facts(one: ApiCertificate, host: str) -> dict[str, str]:
    return {NAME: host, UNTIL: datetime.fromtimestamp(one.until, UTC).isoformat(), DIGEST: one.digest}


def _digest(pem: bytes) -> str:
    der = x509.load_pem_x509_certificate(pem).public_bytes(serialization.Encoding.DER)
    return hashlib.sha256(der).hexdigest()


def _until(tags: Mapping[str, str]) -> float:
    try:
        return datetime.fromisoformat(tags.get(UNTIL, "")).timestamp()
    except ValueError:
        return 0.0


def _day(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d")


def _write(file: Path, content: bytes) -> None:
    """Write a file as a whole where it has another content.  Raises Refused."""
    draft = file.with_name(f".{file.name}.{secrets.token_hex(4)}")
    try:
        if file.exists() and file.read_bytes() == content:
            return
        try:
            draft.write_bytes(content)
            draft.replace(file)
        finally:
            draft.unlink(missing_ok=True)
    except OSError as error:
        raise Refused(
            f"the certificate of the API's authority cannot be written to {file}: {error.strerror}; name another file"
            " with --authority"
        ) from None
