"""Signing in at an OpenID Connect issuer from a terminal: the device authorization grant of RFC 8628.

The issuer shows its page in any browser, on any machine; this program waits until the code that it printed was entered
there.  The tokens that come back are renewed by the refresh token (RFC 6749, section 6) for as long as the issuer lets.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import httpx2
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from remora.client.proxies import options_for
from remora.errors import ConfigurationError
from remora.loopback import is_loopback_url
from remora.views import SignInIssuer

_DEVICE_GRANT = "urn:ietf:params:oauth:grant-type:device_code"
_TIMEOUT_S = 15.0
_MAX_ANSWER_BYTES = 256 * 1024
#: Seconds between two questions where the issuer names none, and more of them when it asks for it (RFC 8628, 3.5).
_INTERVAL_S = 5.0
#: Seconds to wait for a person at most, whatever the issuer allows.
_MAX_WAIT_S = 1800.0

Text = Annotated[str, Field(min_length=1, max_length=16 * 1024)]
ModelT = TypeVar("ModelT", bound=BaseModel)


class SignInFailed(ConfigurationError):
    """The issuer gave no token; the message says why and what to do."""


class _Answer(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class _Configuration(_Answer):
    issuer: Text
    token_endpoint: Text
    device_authorization_endpoint: Text | None = None


class _Started(_Answer):
    device_code: Text
    user_code: Text
    verification_uri: Text
    verification_uri_complete: Text | None = None
    expires_in: Annotated[float, Field(gt=0)]
    interval: Annotated[float, Field(ge=0, le=600)] = _INTERVAL_S


class _Granted(_Answer):
    access_token: Text
    id_token: Text | None = None
    refresh_token: Text | None = None
    expires_in: Annotated[float, Field(gt=0)] = 3600.0


class _Refused(_Answer):
    error: Text
    error_description: str = ""


@dataclass(frozen=True)
class SignedIn:
    """What the issuer gave."""

    #: The token that the service accepts.
    token: str
    #: Seconds since 1970.
    expires_at: float
    #: None: a new sign-in is needed after that.
    refresh_token: str | None


@dataclass(frozen=True)
class Prompt:
    """What a person has to do: open the page and enter the code."""

    page: str
    code: str


class DeviceFlow:
    """Talks to one issuer.  Close it, or use it in a `with` statement."""

    def __init__(self, issuer: SignInIssuer) -> None:
        """Raises SignInFailed for an issuer that is not reached over https."""
        self._issuer = issuer
        self._check(issuer.issuer)
        self._http = httpx2.Client(timeout=_TIMEOUT_S, **options_for(issuer.issuer))
        self._known: _Configuration | None = None

    def __enter__(self) -> DeviceFlow:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def sign_in(
        self, show: Callable[[Prompt], None], sleep: Callable[[float], None] = time.sleep
    ) -> SignedIn:
        """Show a code, and wait until it was entered on the issuer's page.  Raises SignInFailed."""
        endpoint = self._configuration().device_authorization_endpoint
        if endpoint is None:
            raise SignInFailed(
                f"{self._issuer.issuer} has no sign-in for terminals (RFC 8628); use a token: remora login --token -"
            )
        form = {"client_id": self._issuer.client_id, "scope": " ".join(self._issuer.scopes)}
        started = self._expect(_Started, self._post(endpoint, form))
        show(Prompt(started.verification_uri_complete or started.verification_uri, started.user_code))
        return self._granted(started, sleep)

    def refresh(self, refresh_token: str) -> SignedIn:
        """New tokens for an old refresh token.  Raises SignInFailed."""
        form = {
            "grant_type": "refresh_token",
            "refresh_token": refresh_token,
            "client_id": self._issuer.client_id,
            "scope": " ".join(self._issuer.scopes),
        }
        asked_at = time.time()
        granted = self._expect(_Granted, self._post(self._configuration().token_endpoint, form))
        return self._signed_in(granted, asked_at, refresh_token)

    def _granted(self, started: _Started, sleep: Callable[[float], None]) -> SignedIn:
        form = {
            "grant_type": _DEVICE_GRANT,
            "device_code": started.device_code,
            "client_id": self._issuer.client_id,
        }
        deadline = time.monotonic() + min(started.expires_in, _MAX_WAIT_S)
        interval = started.interval
        while time.monotonic() < deadline:
            sleep(interval)
            asked_at = time.time()
            answer = self._post(self._configuration().token_endpoint, form)
            match answer.get("error"):
                case "authorization_pending":
                    continue
                case "slow_down":
                    interval += _INTERVAL_S
                case _:
                    return self._signed_in(self._expect(_Granted, answer), asked_at, None)
        raise SignInFailed("the code was not entered in time; run remora login again")

    def _signed_in(self, granted: _Granted, asked_at: float, refresh_token: str | None) -> SignedIn:
        token = granted.id_token if self._issuer.accepts == "id_token" else granted.access_token
        if token is None:
            raise SignInFailed(f"{self._issuer.issuer} gave no ID token; ask for the scope openid")
        return SignedIn(token, asked_at + granted.expires_in, granted.refresh_token or refresh_token)

    def _configuration(self) -> _Configuration:
        if self._known is None:
            url = f"{self._issuer.issuer}/.well-known/openid-configuration"
            found = self._expect(_Configuration, self._sent("GET", url))
            if found.issuer.rstrip("/") != self._issuer.issuer:
                raise SignInFailed(f"{url} is the configuration of another issuer")
            self._known = found
        return self._known

    def _post(self, url: str, form: Mapping[str, Any]) -> dict[str, Any]:
        self._check(url)
        return self._sent("POST", url, {name: value for name, value in form.items() if value})

    def _sent(self, method: str, url: str, form: Mapping[str, str] | None = None) -> dict[str, Any]:
        """The JSON object of an answer, whatever its status: errors of this protocol are objects, too."""
        try:
            with self._http.stream(method, url, data=form) as response:
                content = b""
                for part in response.iter_bytes():
                    content += part
                    if len(content) > _MAX_ANSWER_BYTES:
                        raise SignInFailed(f"{url} answers with more than {_MAX_ANSWER_BYTES} bytes")
                found = _object(content)
        except httpx2.HTTPError as error:
            raise SignInFailed(f"{url} cannot be reached: {error or type(error).__name__}") from None
        if found is None or (not response.is_success and "error" not in found):
            raise SignInFailed(
                f"{url} answers with status {response.status_code} and no JSON object that says why"
            )
        return found

    def _expect(self, model: type[ModelT], answer: Mapping[str, Any]) -> ModelT:
        if "error" in answer:
            try:
                refused = _Refused.model_validate(answer)
            except ValidationError:
                refused = _Refused(error="an error without a name")
            said = " ".join(f"{refused.error} {refused.error_description}".split())[:300]
            raise SignInFailed(f"{self._issuer.issuer} refuses the sign-in: {said}")
        try:
            return model.model_validate(answer)
        except ValidationError as error:
            fields = ", ".join(".".join(map(str, one["loc"])) for one in error.errors()[:5])
            raise SignInFailed(f"{self._issuer.issuer} answers without what is needed: {fields}") from None

    def _check(self, url: str) -> None:
        if not url.startswith("https://") and not is_loopback_url(url):
            raise SignInFailed(
                f"{url[:200]!a} is not reached over https, so that a password would cross the network in clear"
            )


def _object(content: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
