"""Sessions of a browser: a token in a cookie that no script of a page reads, and that no other site's page sends.

The cookie holds the token itself, so that its end and its revocation are the session's.  A write also needs the header
`X-CSRF-Token` with what the session's answer said: a page of another origin that made the browser send the cookie
cannot have read it.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from http.cookies import CookieError, SimpleCookie
from typing import Annotated, Any

import sqlalchemy as sa
from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from remora.views import Session
from service.api.authentication import bearer, principal_of
from service.api.context import context_of
from service.api.parameters import Parameters
from service.api.problem_documents import ApiProblem
from service.api.writes import Noted, write
from service.openid.verification import LEEWAY_S, MAX_LIFETIME_S
from service.store import signed_out

router = APIRouter(prefix="/v1/session")

#: Over https browsers take a cookie of the second name from this host alone, for the whole of it (RFC 6265bis, 4.1.3).
COOKIE, SECURE_COOKIE = "remora_session", "__Host-remora_session"
CSRF_HEADER = "x-csrf-token"
#: Seconds after which the browser forgets the cookie.
LIFETIME_S = 12 * 3600
#: Characters of a token that browsers keep in a cookie (RFC 6265, section 6.1, with its name and attributes).
MOST_CHARACTERS = 3800
_SAFE = ("GET", "HEAD", "OPTIONS")


@router.post("", status_code=201, operation_id="begin_session", response_model=Session)
async def begin(request: Request, _: Annotated[Parameters, Query()]) -> Response:
    """Keep the token of this request in a cookie; the answer has what writes need beside it."""
    principal = principal_of(request)
    token = bearer(request.headers) or token_of(request.headers)
    if token is None:
        raise ApiProblem(
            409, "nothing_to_prove", "this service asks for no token, so there is no session to begin"
        )
    if len(token) > MOST_CHARACTERS:
        text = f"the token has {len(token)} characters, and a browser keeps {MOST_CHARACTERS} in a cookie"
        raise ApiProblem(422, "token_too_long", text, hint="use a token of the service: remora tokens create")
    found = Session(principal=principal.id, name=principal.name, csrf_token=csrf_token(token))
    response = Response(found.model_dump_json(), 201, media_type="application/json")
    keep(response, request, token)
    return response


@router.get("", operation_id="show_session", response_model=Session)
async def show(request: Request, _: Annotated[Parameters, Query()]) -> Session:
    """What writes need beside the cookie of this request, for a page that was loaded again."""
    principal, token = principal_of(request), token_of(request.headers)
    if token is None:
        raise ApiProblem(
            404, "session_not_found", "the request has no cookie of a session", hint="POST /v1/session"
        )
    return Session(principal=principal.id, name=principal.name, csrf_token=csrf_token(token))


@router.delete("", status_code=204, operation_id="end_session", response_class=Response)
async def end(request: Request, _: Annotated[Parameters, Query()]) -> Response:
    """End the session: the browser forgets the cookie, and a token of an issuer is good for nothing any more.

    A token of the service stays good, as other programs may use it, until it is revoked.
    """
    token, now = token_of(request.headers), context_of(request).clock()

    def work(connection: sa.Connection, noted: Noted) -> None:
        noted.object = "session"
        # Three parts: a token of an issuer, as in `service.api.issued_tokens`.
        if token is not None and token.count(".") == 2:
            signed_out.put(connection, token, now + MAX_LIFETIME_S + LEEWAY_S)

    await write(request, work)
    response = Response(status_code=204)
    response.delete_cookie(_name(request), **_attributes(request))
    return response


def keep(response: Response, request: Request, token: str) -> None:
    """Have the browser keep a token, which must not have more than `MOST_CHARACTERS`."""
    response.set_cookie(_name(request), token, max_age=LIFETIME_S, **_attributes(request))


def token_of(headers: Mapping[str, str]) -> str | None:
    """The token in the cookie, or None."""
    cookies: SimpleCookie = SimpleCookie()
    try:
        cookies.load(headers.get("cookie", "")[:16_384])
    except CookieError:
        return None
    found = cookies.get(SECURE_COOKIE) or cookies.get(COOKIE)
    return found.value if found is not None and found.value else None


def csrf_token(token: str) -> str:
    """What has to stand in the header of writes; it says nothing about the token."""
    return hmac.new(token.encode("utf-8", "surrogateescape"), b"remora csrf", hashlib.sha256).hexdigest()


def csrf_problem(method: str, headers: Mapping[str, str], token: str) -> ApiProblem | None:
    """Why a request with the cookie is refused; None: it reads, or its page knows the session."""
    given = headers.get(CSRF_HEADER, "")
    if method in _SAFE or hmac.compare_digest(
        given.encode("utf-8", "surrogateescape"), csrf_token(token).encode()
    ):
        return None
    return ApiProblem(
        403,
        "csrf_token_missing",
        "a write by the cookie of a session needs the header X-CSRF-Token",
        hint="POST /v1/session with the token gives its value",
    )


def forgotten(problem: ApiProblem, scheme: str) -> ApiProblem:
    """The refusal of a cookie, which also makes the browser forget it."""
    name, secure = (SECURE_COOKIE, "; Secure") if scheme == "https" else (COOKIE, "")
    cookie = f"{name}=; Max-Age=0; Path=/; HttpOnly; SameSite=strict{secure}"
    headers = {**problem.headers, "Set-Cookie": cookie}
    return ApiProblem(problem.status, problem.code, problem.detail, hint=problem.hint, headers=headers)


def _name(request: Request) -> str:
    return SECURE_COOKIE if request.url.scheme == "https" else COOKIE


def _attributes(request: Request) -> dict[str, Any]:
    return {"path": "/", "httponly": True, "samesite": "strict", "secure": request.url.scheme == "https"}
