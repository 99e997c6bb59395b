"""The certificates by which processes of one Ray cluster know each other: an authority per cluster, one per machine.

Ray checks both sides of every connection of its RPCs where `RAY_USE_TLS` is set: who connects shows a certificate of
the cluster's authority, and who is connected to shows one for the address that was asked for.  Each process reads its
files once, when it starts.  Nothing here touches a file; times are arguments.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import PurePath

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

#: Days for which an authority is good; a cluster that lives longer gets another one.
AUTHORITY_DAYS = 3650
#: Days for which a machine's certificate is good.  Ray keeps what it read at its start, so no machine lives longer.
MACHINE_DAYS = 397
#: Clocks of machines may differ by so much.
_SKEW = timedelta(days=1)
#: Longest text of an authority that is parsed, bytes.
_AUTHORITY_BYTES = 16_384
#: What processes of a machine ask of each other, besides its address.
_OWN_NAMES = ("localhost", "127.0.0.1")

#: Files of one machine, in a folder that its user alone may enter: the authority's certificate, and its own with its
#: key.  These are one file, so that a renewal replaces both at once.
AUTHORITY_FILE, OWN_FILE = "ca.crt", "own.pem"


class CertificateUnusable(Exception):
    """What should be an authority's certificate and key is not; the message is one sentence without any of it."""


@dataclass(frozen=True, kw_only=True)
class Credentials:
    """A certificate with its private key, both as PEM.  Its text shows nothing of the key."""

    certificate: bytes
    key: bytes

    def __repr__(self) -> str:
        return "Credentials(...)"

    def joined(self) -> bytes:
        """Both in one text, as a key vault keeps them."""
        return self.certificate + self.key


def make_authority(now: float, common_name: str = "Remora cluster authority") -> Credentials:
    """A new authority for one cluster, good for AUTHORITY_DAYS from `now` (seconds since 1970)."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name(common_name)
    built = (
        _builder(name, name, key, now, AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    return _credentials(built.sign(key, hashes.SHA256()), key)


def issue(authority: Credentials, name: str, addresses: Iterable[str], now: float) -> Credentials:
    """A certificate of this authority for a machine, good for MACHINE_DAYS from `now`, at most as long as its issuer.

    `addresses` are IP addresses or host names at which its processes are reached; they are reached at the loopback,
    too.  Raises CertificateUnusable for an authority that is none, or that has expired.
    """
    issuer, issuer_key = _authority(authority)
    if issuer.not_valid_after_utc.timestamp() <= now:
        raise CertificateUnusable(f"the cluster's authority expired on {issuer.not_valid_after_utc:%Y-%m-%d}")
    key = ec.generate_private_key(ec.SECP256R1())
    names = [_general_name(one) for one in dict.fromkeys((*addresses, *_OWN_NAMES))]
    built = (
        _builder(_name(name), issuer.subject, key, now, MACHINE_DAYS, issuer.not_valid_after_utc)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]),
            critical=False,
        )
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        # Without it Python refuses a certificate from 3.13 on.
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False
        )
    )
    return _credentials(built.sign(issuer_key, hashes.SHA256()), key)


def parse_authority(text: bytes) -> Credentials:
    """The authority that a file or a key vault holds, as `joined` wrote it.

    Raises CertificateUnusable when it is none.
    """
    if len(text) > _AUTHORITY_BYTES:
        raise CertificateUnusable(f"it has {len(text)} bytes, an authority at most {_AUTHORITY_BYTES}")
    found = Credentials(certificate=text, key=text)
    certificate, key = _authority(found)
    return _credentials(certificate, key)


def expires_at(certificate: bytes) -> float:
    """When a certificate (PEM) expires, seconds since 1970.  Raises CertificateUnusable when it is none."""
    try:
        return x509.load_pem_x509_certificate(certificate).not_valid_after_utc.timestamp()
    except ValueError as error:
        raise CertificateUnusable("it holds no certificate in PEM") from error


def names_of(certificate: bytes) -> list[str]:
    """The addresses and names of a certificate (PEM).  Raises CertificateUnusable when it is none."""
    try:
        found = x509.load_pem_x509_certificate(certificate).extensions
        names = found.get_extension_for_class(x509.SubjectAlternativeName).value
    except ValueError as error:
        raise CertificateUnusable("it holds no certificate in PEM") from error
    except x509.ExtensionNotFound:
        return []
    return [*map(str, names.get_values_for_type(x509.IPAddress)), *names.get_values_for_type(x509.DNSName)]


def tls_environment(folder: PurePath) -> dict[str, str]:
    """Variables of a process of Ray that uses the files of this folder."""
    return {
        "RAY_USE_TLS": "1",
        "RAY_TLS_CA_CERT": str(folder / AUTHORITY_FILE),
        "RAY_TLS_SERVER_CERT": str(folder / OWN_FILE),
        "RAY_TLS_SERVER_KEY": str(folder / OWN_FILE),
    }


#: Names of these variables, for processes that get none of them.
TLS_VARIABLES = tuple(tls_environment(PurePath()))


def _authority(given: Credentials) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    try:
        certificate = x509.load_pem_x509_certificate(given.certificate)
        key = serialization.load_pem_private_key(given.key, password=None)
        is_authority = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except (ValueError, TypeError, x509.ExtensionNotFound) as error:
        raise CertificateUnusable("it holds no authority's certificate and key in PEM") from error
    if not is_authority or not isinstance(key, ec.EllipticCurvePrivateKey):
        raise CertificateUnusable("its certificate is no authority's")
    if certificate.public_key() != key.public_key():
        raise CertificateUnusable("its certificate and its key do not belong together")
    return certificate, key


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    now: float,
    days: int,
    at_most: datetime | None = None,
) -> x509.CertificateBuilder:
    at = datetime.fromtimestamp(now, UTC)
    until = at + timedelta(days=days)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(at - _SKEW)
        .not_valid_after(until if at_most is None else min(until, at_most))
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(address: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(address))
    except ValueError:
        return x509.DNSName(address)


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common[:64])])


def _credentials(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> Credentials:
    return Credentials(
        certificate=certificate.public_bytes(serialization.Encoding.PEM),
        key=key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ),
    )
