"""Signing in on the page by the authorization-code flow of OpenID Connect, with PKCE (pure, but for what is random).

A sign-in begins with a redirect to the issuer's page and ends with one back to the service, with a code for tokens.
What has begun is kept by the browser in a cookie that the service signs, so that any process of the API can go on with
it, and asks nothing of an issuer for a forged one: the `state` proves that the answer belongs to this browser, the
`nonce` that the token belongs to this sign-in, and the `verifier` (RFC 7636) that who redeems the code is who asked
for it.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated
from urllib.parse import quote_plus, urlencode

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from service.openid.issuers import Issuer

#: Views of the page to which a sign-in may lead back, such as `jobs/job_...`: nothing that leaves the page.
VIEW_FORM = r"[a-z]{1,40}(?:/[A-Za-z0-9_]{1,80})?"
_VIEW = re.compile(VIEW_FORM)
#: Seconds that a person has to sign in.
LIFETIME_S = 600
#: Characters of the cookie.
_MOST_CHARACTERS = 2000
#: The scope of refresh tokens, which the page has no use for.
_OFFLINE = "offline_access"

_Random = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{43}$")]


class SignInFailed(Exception):
    """A person is not signed in: `code` is a stable word for the page, the text a sentence for operators."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


class SignInBegun(BaseModel):
    """A sign-in that has begun, as the browser keeps it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    #: The operator's name of the issuer.
    issuer: Annotated[str, Field(max_length=100)]
    state: _Random
    nonce: _Random
    verifier: _Random
    #: The view of the page that is shown afterwards.
    view: Annotated[str, Field(pattern=f"^{VIEW_FORM}$")]
    #: Seconds since 1970 until which an answer is taken.
    until: float


@dataclass(frozen=True)
class CodeAnswer:
    """What the issuer sent the browser back with (RFC 6749, 4.1.2; RFC 9207)."""

    state: str | None = None
    code: str | None = None
    error: str | None = None
    issuer: str | None = None


def begin(issuer: str, view: str, now: float) -> SignInBegun:
    """A new sign-in at the issuer of that name; what is no view leads to the jobs."""
    return SignInBegun(
        issuer=issuer,
        state=secrets.token_urlsafe(32),
        nonce=secrets.token_urlsafe(32),
        verifier=secrets.token_urlsafe(32),
        view=view if _VIEW.fullmatch(view) else "jobs",
        until=now + LIFETIME_S,
    )


def to_cookie(begun: SignInBegun, key: bytes) -> str:
    """The value of a cookie, signed with the key."""
    content = _base64(begun.model_dump_json().encode())
    return f"{content}.{_signature(content, key)}"


def from_cookie(text: str, keys: Iterable[bytes], now: float) -> SignInBegun | None:
    """What such a value holds; None where none of the keys has signed it, or its time is over."""
    content, _, signature = text[: _MOST_CHARACTERS + 1].partition(".")
    given = signature.encode("utf-8", "surrogateescape")
    if not any(hmac.compare_digest(_signature(content, key).encode(), given) for key in keys):
        return None
    try:
        begun = SignInBegun.model_validate_json(base64.urlsafe_b64decode(content + "=" * (-len(content) % 4)))
    except (ValueError, ValidationError):
        return None
    return begun if now < begun.until else None


def _signature(content: str, key: bytes) -> str:
    return _base64(hmac.digest(key, content.encode("utf-8", "surrogateescape"), "sha256"))


def _base64(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).decode().rstrip("=")


def scopes_of(issuer: Issuer) -> tuple[str, ...]:
    """What is asked for: always an ID token, and no token that outlives the session."""
    return tuple(dict.fromkeys(["openid", *(one for one in issuer.scopes if one != _OFFLINE)]))


def address_of(begun: SignInBegun, issuer: Issuer, endpoint: str, redirect_uri: str) -> str:
    """The page of the issuer at which the person signs in."""
    challenge = _base64(hashlib.sha256(begun.verifier.encode()).digest())
    asked = {
        "response_type": "code",
        "client_id": issuer.client_id or "",
        "redirect_uri": redirect_uri,
        "scope": " ".join(scopes_of(issuer)),
        "state": begun.state,
        "nonce": begun.nonce,
        "code_challenge": challenge,
        "code_challenge_method": "S256",
    }
    return f"{endpoint}{'&' if '?' in endpoint else '?'}{urlencode(asked)}"


def code_of(begun: SignInBegun | None, name: str, issuer: Issuer, answer: CodeAnswer) -> str:
    """The code of an answer that belongs to what this browser began at that issuer.  Raises SignInFailed."""
    if begun is None or begun.issuer != name:
        raise SignInFailed("sign_in_expired", "the browser has begun no sign-in at this issuer")
    if not hmac.compare_digest(begun.state.encode(), (answer.state or "").encode("utf-8", "surrogateescape")):
        raise SignInFailed("sign_in_expired", "the answer belongs to another sign-in")
    if answer.issuer is not None and answer.issuer.rstrip("/") != issuer.issuer:
        raise SignInFailed("sign_in_refused", "the answer is of another issuer")
    if answer.error is not None:
        raise SignInFailed("sign_in_refused", f"the issuer says {answer.error[:100]!a}")
    if not answer.code:
        raise SignInFailed("sign_in_refused", "the answer has no code")
    return answer.code


def client_proof(
    issuer: Issuer, secret: str | None, methods: object
) -> tuple[Mapping[str, str], Mapping[str, str]]:
    """Headers and fields by which the application proves itself at the token endpoint (RFC 6749, 2.3.1).

    `methods` is what the issuer's configuration says of them; without a secret the verifier alone proves it.
    """
    client_id = issuer.client_id or ""
    if secret is None:
        return {}, {"client_id": client_id}
    if isinstance(methods, list) and "client_secret_basic" not in methods:
        return {}, {"client_id": client_id, "client_secret": secret}
    pair = f"{quote_plus(client_id)}:{quote_plus(secret)}"
    return {"Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}, {}
