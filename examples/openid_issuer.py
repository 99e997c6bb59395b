"""An issuer of OpenID Connect tokens on this machine's loopback, for the demo of a team and for tests.

It signs what it is asked to sign: discovery, keys, and the device flow of RFC 8628, whose codes its owner approves by a
call.  It checks no identity and is no part of a service.
"""

from __future__ import annotations

import base64
import contextlib
import datetime as dt
import ipaddress
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import parse_qsl

import jwt
import uvicorn
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

DEVICE_GRANT = "urn:ietf:params:oauth:grant-type:device_code"
#: Seconds that a token lives.
LIFETIME_S = 3600

IssuerT = TypeVar("IssuerT", bound="Issuer")


@dataclass
class SigningKey:
    """A key by which tokens are signed, and its public half as issuers publish it."""

    kid: str = field(default_factory=lambda: secrets.token_hex(8))
    private: rsa.RSAPrivateKey = field(default_factory=lambda: rsa.generate_private_key(65537, 2048))

    @property
    def public(self) -> dict[str, Any]:
        """A JSON Web Key (RFC 7517)."""
        numbers = self.private.public_key().public_numbers()
        parts = {"n": numbers.n, "e": numbers.e}
        return {
            "kty": "RSA",
            "use": "sig",
            "alg": "RS256",
            "kid": self.kid,
            **{name: _base64url(number) for name, number in parts.items()},
        }


@dataclass
class _Device:
    """A device that waits for its user to sign in; `claims` are there once he has."""

    user_code: str
    claims: dict[str, Any] | None = None


class Issuer:
    """The issuer; `url` is its claim `iss`."""

    def __init__(self, url: str, audience: str = "remora", clock: Callable[[], float] = time.time) -> None:
        self.url = url
        self.clock = clock
        self.audience = audience
        self.keys = [SigningKey()]
        #: How often each document was asked for.
        self.requests: dict[str, int] = {}
        self._devices: dict[str, _Device] = {}
        self._refresh: dict[str, dict[str, Any]] = {}
        self._changed = threading.Condition()

    def token(
        self, subject: str, member_of: tuple[str, ...] = (), key: SigningKey | None = None, **claims: Any
    ) -> str:
        """A signed token; a claim that is None is left out."""
        now = int(self.clock())
        given = {
            "iss": self.url,
            "aud": self.audience,
            "sub": subject,
            "preferred_username": f"{subject}@example.com",
            "groups": list(member_of),
            "iat": now,
            "exp": now + LIFETIME_S,
        } | claims
        signing = key or self.keys[-1]
        body = {name: value for name, value in given.items() if value is not None}
        return jwt.encode(body, signing.private, algorithm="RS256", headers={"kid": signing.kid})

    def rotate(self) -> SigningKey:
        """Sign with a new key from now on; the old one is withdrawn."""
        self.keys = [SigningKey()]
        return self.keys[0]

    def approve(self, user_code: str, subject: str, *groups: str) -> None:
        """What the user does on the issuer's page.  Raises KeyError for a code that no device waits with."""
        with self._changed:
            waiting = {one.user_code: one for one in self._devices.values()}
            waiting[user_code].claims = {"subject": subject, "groups": groups}

    def wait_for_device(self, timeout_s: float) -> str:
        """The code of a device that waits.  Raises TimeoutError."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._devices, timeout_s):
                raise TimeoutError("no device asked for a code")
            return next(iter(self._devices.values())).user_code

    def application(self) -> FastAPI:
        """The routes of the issuer."""
        app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
        app.add_api_route("/.well-known/openid-configuration", self._configuration)
        app.add_api_route("/keys", self._keys)
        app.add_api_route("/device", self._device, methods=["POST"])
        app.add_api_route("/token", self._token, methods=["POST"])
        return app

    async def _configuration(self) -> dict[str, Any]:
        self._count("configuration")
        return {
            "issuer": self.url,
            "jwks_uri": f"{self.url}/keys",
            "authorization_endpoint": f"{self.url}/authorize",
            "token_endpoint": f"{self.url}/token",
            "device_authorization_endpoint": f"{self.url}/device",
            "id_token_signing_alg_values_supported": ["RS256"],
        }

    async def _keys(self) -> dict[str, Any]:
        self._count("keys")
        return {"keys": [key.public for key in self.keys]}

    async def _device(self) -> dict[str, Any]:
        device_code, user_code = secrets.token_urlsafe(16), secrets.token_hex(4).upper()
        with self._changed:
            self._devices[device_code] = _Device(user_code)
            self._changed.notify_all()
        return {
            "device_code": device_code,
            "user_code": user_code,
            "verification_uri": f"{self.url}/authorize",
            "expires_in": 300,
            "interval": 1,
        }

    async def _token(self, request: Request) -> JSONResponse:
        form = dict(parse_qsl((await request.body()).decode()))
        with self._changed:
            if form.get("grant_type") == DEVICE_GRANT:
                device = self._devices.get(str(form.get("device_code")))
                if device is None:
                    return JSONResponse({"error": "expired_token"}, 400)
                if device.claims is None:
                    return JSONResponse({"error": "authorization_pending"}, 400)
                self._devices.pop(str(form["device_code"]))
                return JSONResponse(self._granted(device.claims))
            if form.get("grant_type") == "refresh_token":
                claims = self._refresh.get(str(form.get("refresh_token")))
                if claims is not None:
                    return JSONResponse(self._granted(claims))
        return JSONResponse({"error": "invalid_grant"}, 400)

    def _granted(self, claims: dict[str, Any]) -> dict[str, Any]:
        refresh = secrets.token_urlsafe(16)
        self._refresh[refresh] = claims
        token = self.token(claims["subject"], tuple(claims["groups"]))
        return {
            "token_type": "Bearer",
            "access_token": token,
            "id_token": token,
            "refresh_token": refresh,
            "expires_in": LIFETIME_S,
        }

    def _count(self, name: str) -> None:
        self.requests[name] = self.requests.get(name, 0) + 1


@contextlib.contextmanager
def serve_issuer(audience: str = "remora", certificate: tuple[Path, Path] | None = None) -> Iterator[Issuer]:
    """An issuer on a free port of 127.0.0.1, over TLS with a certificate and its key."""
    with serve(Issuer, audience, certificate) as issuer:
        yield issuer


@contextlib.contextmanager
def serve(
    kind: Callable[[str, str], IssuerT],
    audience: str = "remora",
    certificate: tuple[Path, Path] | None = None,
) -> Iterator[IssuerT]:
    """The same of an issuer that is made from its URL and its audience."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(64)
        port = listening.getsockname()[1]
        issuer = kind(f"{'https' if certificate else 'http'}://127.0.0.1:{port}", audience)
        options = (
            {} if certificate is None else {"ssl_certfile": certificate[0], "ssl_keyfile": certificate[1]}
        )
        config = uvicorn.Config(issuer.application(), log_config=None, lifespan="off", **options)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, args=([listening],), name="openid-issuer")
        thread.start()
        try:
            yield issuer
        finally:
            server.should_exit = True
            thread.join(20)


def make_certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 and localhost, signed by itself, and its key: two PEM files, good for a day."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = dt.datetime.now(dt.UTC)
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    built = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    certificate_file, key_file = folder / "certificate.pem", folder / "key.pem"
    certificate_file.write_bytes(built.public_bytes(serialization.Encoding.PEM))
    key_file.touch(mode=0o600)
    key_file.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    return certificate_file, key_file


def _base64url(number: int) -> str:
    size = (number.bit_length() + 7) // 8
    return base64.urlsafe_b64encode(number.to_bytes(size, "big")).rstrip(b"=").decode()
