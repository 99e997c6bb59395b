"""Sign-ins at an issuer that `remora login` stored: their token is renewed shortly before it ends.

Several commands may run at once, and an issuer may take a refresh token only once: one of them renews under a lock, and
the others read what it stored.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from pydantic import ConfigDict

from remora.client import credentials
from remora.client.device_flow import DeviceFlow, SignedIn, SignInFailed
from remora.views import SignInIssuer, View

#: Seconds before its end from which on a token is renewed.
_EARLY_S = 120.0


class StoredSignIn(View):
    """What is stored of a sign-in."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    issuer: SignInIssuer
    token: str
    #: Seconds since 1970.
    expires_at: float
    refresh_token: str | None = None

    def __repr__(self) -> str:
        """Without the tokens."""
        return f"<a sign-in at {self.issuer.issuer}>"

    __str__ = __repr__


def stored(issuer: SignInIssuer, signed_in: SignedIn) -> StoredSignIn:
    """What to store of a sign-in that has just been made."""
    return StoredSignIn(
        issuer=issuer,
        token=signed_in.token,
        expires_at=signed_in.expires_at,
        refresh_token=signed_in.refresh_token,
    )


@dataclass(frozen=True)
class RenewedToken:
    """Gives the token of the sign-in that is stored for the service at `url`."""

    url: str

    def __call__(self) -> str:
        """The token that is good now.  Raises SignInFailed, with what to do, when there is none."""
        found = self._find()
        if not _ends_soon(found):
            return found.token
        with credentials.credentials_lock():
            found = self._find()
            if not _ends_soon(found):
                return found.token
            return self._renewed(found).token

    def _find(self) -> StoredSignIn:
        found = credentials.stored_tokens().get(self.url)
        if not isinstance(found, StoredSignIn):
            raise SignInFailed(f"no sign-in is stored for {self.url} any more; run remora login")
        return found

    def _renewed(self, old: StoredSignIn) -> StoredSignIn:
        if old.refresh_token is None:
            if time.time() < old.expires_at:
                return old
            raise SignInFailed(f"the sign-in at {old.issuer.issuer} has ended; run remora login")
        try:
            with DeviceFlow(old.issuer) as flow:
                new = stored(old.issuer, flow.refresh(old.refresh_token))
        except SignInFailed as error:
            if time.time() < old.expires_at:
                return old
            raise SignInFailed(f"{error}; run remora login") from None
        credentials.store_locked(self.url, new)
        return new


def _ends_soon(found: StoredSignIn) -> bool:
    return time.time() + _EARLY_S >= found.expires_at
