"""An issuer with a page at which people sign in: the authorization-code flow with PKCE, as its wire format is."""

from __future__ import annotations

import base64
import hashlib
import secrets
from typing import Any
from urllib.parse import parse_qsl, unquote_plus, urlencode

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, RedirectResponse, Response

from examples.openid_issuer import Issuer


class PageIssuer(Issuer):
    """A visitor of its page is signed in as `person` at once, as with a session there; None: consent is refused."""

    def __init__(self, url: str, audience: str = "remora") -> None:
        super().__init__(url, audience)
        self.person: str | None = "alice"
        self.groups: tuple[str, ...] = ()
        self.client_id = "page"
        #: None: the application is a public client.
        self.client_secret: str | None = None
        #: Redirect URIs that the application has registered; None: any.
        self.redirect_uris: list[str] | None = None
        #: What the issuer says otherwise than it should, in the next tokens.
        self.wrong: dict[str, Any] = {}
        #: The newest request for its page.
        self.asked: dict[str, str] = {}
        self._codes: dict[str, dict[str, str]] = {}

    def application(self) -> FastAPI:
        app = super().application()
        app.add_api_route("/authorize", self._authorize)
        return app

    async def _authorize(self, request: Request) -> Response:
        """RFC 6749, 4.1.1 and 4.1.2."""
        self.asked = asked = dict(request.query_params)
        is_known = self.redirect_uris is None or asked["redirect_uri"] in self.redirect_uris
        if asked["client_id"] != self.client_id or not is_known:
            return JSONResponse({"error": "invalid_request"}, 400)
        answer = {"state": asked["state"], "iss": self.url, "session_state": "of-the-issuer"}
        if self.person is None:
            answer["error"] = "access_denied"
        else:
            answer["code"] = secrets.token_urlsafe(24)
            self._codes[answer["code"]] = asked
        return RedirectResponse(f"{asked['redirect_uri']}?{urlencode(answer)}", 302)

    async def _token(self, request: Request) -> JSONResponse:
        form = dict(parse_qsl((await request.body()).decode()))
        if form.get("grant_type") != "authorization_code":
            return await super()._token(request)
        self.requests["token"] = self.requests.get("token", 0) + 1
        if not self._is_client(request.headers.get("authorization"), form):
            return JSONResponse({"error": "invalid_client"}, 401)
        asked = self._codes.pop(form.get("code", ""), None)
        digest = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).decode().rstrip("=")
        if (
            asked is None
            or asked["code_challenge_method"] != "S256"
            or asked["code_challenge"] != challenge
            or asked["redirect_uri"] != form.get("redirect_uri")
        ):
            return JSONResponse({"error": "invalid_grant"}, 400)
        assert self.person is not None
        id_claims = {"aud": self.client_id, "nonce": asked["nonce"], **self.wrong}
        return JSONResponse(
            {
                "token_type": "Bearer",
                "access_token": self.token(self.person, self.groups),
                "id_token": self.token(self.person, self.groups, **id_claims),
                "expires_in": 3600,
            }
        )

    def _is_client(self, header: str | None, form: dict[str, str]) -> bool:
        if self.client_secret is None:
            return form.get("client_id") == self.client_id
        # Both are encoded as fields of a form are (RFC 6749, 2.3.1).
        pair = base64.b64decode((header or "").removeprefix("Basic ")).decode()
        return [unquote_plus(part) for part in pair.split(":")] == [self.client_id, self.client_secret]
