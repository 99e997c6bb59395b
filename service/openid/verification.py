"""What a signed token says about its bearer, and why it is refused (pure: keys and time are arguments).

The checks are those of RFC 8725 (best practices for JSON Web Tokens) and of OpenID Connect Core 1.0, section 3.1.3.7:
an algorithm of a fixed list, the key that the header names, issuer, audience, tenant and times.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jwt

from service.openid.issuers import Issuer

#: Signatures that are accepted: asymmetric ones only, so that a public key is never taken for a shared secret.
ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "ES256", "ES384", "EdDSA")
#: Characters of a token; Entra ID's with 200 groups have about 9,000.
MAX_TOKEN_CHARACTERS = 16 * 1024
#: Seconds by which the clocks of issuer and service may differ.
LEEWAY_S = 60.0
#: Seconds that a token may live: who lost a group keeps it that long.
MAX_LIFETIME_S = 24 * 3600.0
#: Groups of one token.
MAX_GROUPS = 1000
_MAX_NAME_CHARACTERS = 200


class TokenRefusedError(Exception):
    """A token proves nothing; the text says why, without a part of the token."""


class UnknownKeyError(TokenRefusedError):
    """The token names a key that is not among the issuer's known keys: it may have changed them."""


@dataclass(frozen=True)
class Identity:
    """The bearer of a token, as its issuer knows him."""

    #: Never given to anyone else by this issuer.
    subject: str
    #: For people to read.
    name: str
    groups: frozenset[str]
    #: Seconds since 1970.
    expires_at: float


def issuer_of(token: str) -> str:
    """Whose token it says it is; nothing is proved yet.  Raises TokenRefusedError."""
    if len(token) > MAX_TOKEN_CHARACTERS:
        raise TokenRefusedError(f"the token has more than {MAX_TOKEN_CHARACTERS} characters")
    try:
        claims = jwt.decode(token, options={"verify_signature": False})
    except (jwt.PyJWTError, ValueError, RecursionError):
        raise TokenRefusedError("the token is no JSON Web Token") from None
    issuer = claims.get("iss")
    if not isinstance(issuer, str):
        raise TokenRefusedError("the token does not name its issuer")
    return issuer.rstrip("/")


def verify(token: str, issuer: Issuer, keys: Mapping[str, jwt.PyJWK], now: float) -> Identity:
    """The identity that a token proves; `keys` are the issuer's by their `kid`.

    Raises UnknownKeyError where the token's key is not among them, and TokenRefusedError for everything else.
    """
    claims = _signed_claims(token, _key_of(token, keys), issuer, issuer.audience)
    expires_at = _check_times(claims, now)
    _check_tenant(claims, issuer)
    subject = _text(claims, issuer.subject_claim)
    if subject is None:
        raise TokenRefusedError(f"the token has no claim {issuer.subject_claim!a}, which names its bearer")
    name = _text(claims, issuer.name_claim) or _text(claims, "name") or subject
    return Identity(subject, name, _groups(claims, issuer), expires_at)


def check_id_token(
    token: str, issuer: Issuer, keys: Mapping[str, jwt.PyJWK], now: float, *, nonce: str
) -> None:
    """Check that an ID token is for our application and for the sign-in with this nonce (OpenID Core 1.0, 3.1.3.7).

    Raises UnknownKeyError and TokenRefusedError as `verify` does.
    """
    client_id = issuer.client_id or ""
    claims = _signed_claims(token, _key_of(token, keys), issuer, client_id)
    _check_times(claims, now)
    _check_tenant(claims, issuer)
    if claims.get("azp", client_id) != client_id:
        raise TokenRefusedError("the ID token was issued to another application")
    given = claims.get("nonce")
    if not isinstance(given, str) or not hmac.compare_digest(
        given.encode("utf-8", "replace"), nonce.encode()
    ):
        raise TokenRefusedError("the ID token belongs to another sign-in")


def _check_tenant(claims: Mapping[str, Any], issuer: Issuer) -> None:
    if issuer.tenant is not None and claims.get("tid") != issuer.tenant:
        raise TokenRefusedError("the token is of another tenant")


def _key_of(token: str, keys: Mapping[str, jwt.PyJWK]) -> jwt.PyJWK:
    try:
        header = jwt.get_unverified_header(token)
    except (jwt.PyJWTError, ValueError, RecursionError):
        raise TokenRefusedError("the token is no JSON Web Token") from None
    if header.get("alg") not in ALGORITHMS:
        raise TokenRefusedError(f"the token is not signed by one of {', '.join(ALGORITHMS)}")
    if "crit" in header:
        raise TokenRefusedError("the token asks for an extension that the service does not know")
    kid = header.get("kid")
    if not isinstance(kid, str):
        raise TokenRefusedError("the token does not name its key")
    key = keys.get(kid)
    if key is None:
        raise UnknownKeyError("the token is signed by a key that its issuer does not publish")
    if key.algorithm_name != header["alg"]:
        raise TokenRefusedError("the token is signed by another algorithm than its key is for")
    return key


def _signed_claims(token: str, key: jwt.PyJWK, issuer: Issuer, audience: str) -> dict[str, Any]:
    try:
        claims = jwt.decode(
            token,
            key,
            algorithms=[key.algorithm_name],
            audience=audience,
            # Times are compared with the `now` of the caller; the issuer below, without its last slash.
            options={
                "verify_exp": False,
                "verify_nbf": False,
                "verify_iat": False,
                "require": ["exp", "iat", "iss", "aud"],
            },
        )
    except jwt.InvalidAudienceError:
        raise TokenRefusedError("the token is for another audience") from None
    except jwt.MissingRequiredClaimError as error:
        raise TokenRefusedError(f"the token has no claim {error.claim!a}") from None
    except (jwt.PyJWTError, ValueError, RecursionError):
        raise TokenRefusedError("the signature of the token is wrong") from None
    if str(claims["iss"]).rstrip("/") != issuer.issuer:
        raise TokenRefusedError("the token is of another issuer")
    return claims


def _check_times(claims: Mapping[str, Any], now: float) -> float:
    """When the token ends, in seconds since 1970."""
    expires_at, issued_at = _seconds(claims, "exp"), _seconds(claims, "iat")
    if expires_at + LEEWAY_S <= now:
        raise TokenRefusedError("the token has expired")
    if issued_at > now + LEEWAY_S:
        raise TokenRefusedError("the token was issued in the future; compare the clocks")
    if "nbf" in claims and _seconds(claims, "nbf") > now + LEEWAY_S:
        raise TokenRefusedError("the token is not valid yet")
    if expires_at - issued_at > MAX_LIFETIME_S:
        raise TokenRefusedError(f"the token lives longer than {MAX_LIFETIME_S / 3600:g} hours")
    return expires_at


def _seconds(claims: Mapping[str, Any], name: str) -> float:
    value = claims[name]
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e11:
        raise TokenRefusedError(f"the claim {name!a} of the token is no time")
    return float(value)


def _text(claims: Mapping[str, Any], name: str) -> str | None:
    value = claims.get(name)
    if (
        not isinstance(value, str)
        or not value
        or len(value) > _MAX_NAME_CHARACTERS
        or not value.isprintable()
    ):
        return None
    return value


def _groups(claims: Mapping[str, Any], issuer: Issuer) -> frozenset[str]:
    """The groups; none where the issuer says only that there are many, which is refused and not guessed."""
    if issuer.groups_claim in (claims.get("_claim_names") or {}):
        raise TokenRefusedError(
            "the bearer is in more groups than a token holds; assign the application's groups only, or app roles"
        )
    groups = claims.get(issuer.groups_claim, [])
    if not isinstance(groups, list) or len(groups) > MAX_GROUPS:
        raise TokenRefusedError(
            f"the claim {issuer.groups_claim!a} is no list of at most {MAX_GROUPS} groups"
        )
    return frozenset(
        group for group in groups if isinstance(group, str) and 0 < len(group) <= _MAX_NAME_CHARACTERS
    )
