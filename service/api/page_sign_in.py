"""Signing in on the page with the account of an issuer: from the page to the issuer, and back with a session.

Both routes are for browsers alone.  They answer with redirects: to the issuer's page, and to a view of our own page;
and with a page of one sentence where there are too many sign-ins.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import HTMLResponse, RedirectResponse, Response

from service.api import sessions
from service.api.context import context_of
from service.api.parameters import Parameters
from service.api.problem_documents import ApiProblem
from service.api.rates import Rates, network_of, retry_after
from service.api.web_page import POLICY
from service.openid.code_exchange import CodeExchange
from service.openid.code_flow import (
    LIFETIME_S,
    CodeAnswer,
    SignInBegun,
    SignInFailed,
    address_of,
    begin,
    code_of,
    from_cookie,
    to_cookie,
)
from service.openid.issuers import Issuer
from service.secrets.key_file import KeyFile, KeysUnusable
from service.secrets.sign_in_keys import SignInKeys

log = logging.getLogger(__name__)

router = APIRouter(prefix="/v1/sign-in", include_in_schema=False)

#: What has begun.  It must come back with a request that the issuer's page causes, so that it is no `Strict` one.
COOKIE, SECURE_COOKIE = "remora_sign_in", "__Host-remora_sign_in"

#: What is shown where there are too many sign-ins.
_TOO_MANY = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Too many sign-ins · Remora</title>
<link rel="stylesheet" href="/web/page.css">
</head>
<body>
<main><div class="card"><h1>Too many sign-ins</h1>
<p>There are too many sign-ins at the moment. Load this page again in {seconds} s.</p>
<p><a href="/">Back to the page</a></p></div></main>
</body>
</html>
"""

Name = Annotated[str, Path(max_length=100)]
Text = Annotated[str, Field(max_length=8000)]


class BeginParameters(Parameters):
    """The view of the page that is shown afterwards."""

    view: Annotated[str, Field(max_length=200)] = "jobs"


class AnswerParameters(BaseModel):
    """What the issuer says; issuers add fields of their own."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    state: Text | None = None
    code: Text | None = None
    error: Text | None = None
    iss: Text | None = None


@router.get("/{issuer}/page", operation_id="begin_page_sign_in")
async def begin_sign_in(
    request: Request, issuer: Name, query: Annotated[BeginParameters, Query()]
) -> Response:
    """Lead the browser to the issuer's page."""
    exchange, found = _issuer(request, issuer)
    if refused := _too_often(context_of(request).sign_in_rates, _sender(request)):
        return refused
    begun = begin(issuer, query.view, context_of(request).clock())
    try:
        page = await exchange.page_of(found)
        kept = await _to_cookie(request, begun)
    except SignInFailed as failed:
        return _failed(issuer, failed)
    answer = _redirect(address_of(begun, found, page, _redirect_uri(request, issuer)))
    answer.set_cookie(_cookie(request), kept, max_age=LIFETIME_S, **_attributes(request))
    return answer


@router.get("/{issuer}/answer", operation_id="end_page_sign_in")
async def end_sign_in(
    request: Request, issuer: Name, query: Annotated[AnswerParameters, Query()]
) -> Response:
    """Take the issuer's answer: a session in a cookie, and a view of the page."""
    exchange, found = _issuer(request, issuer)
    given = CodeAnswer(state=query.state, code=query.code, error=query.error, issuer=query.iss)
    try:
        # What this service has not signed asks nothing of the issuer, and takes nothing from those who sign in.
        begun = await _from_cookie(request)
        code = code_of(begun, issuer, found, given)
        assert begun is not None
        context = context_of(request)
        refused = _too_often(context.sign_in_rates, _sender(request)) or _too_often(
            context.redeem_rates, issuer
        )
        if refused:
            return refused
        token = await exchange.redeem(found, begun, code, _redirect_uri(request, issuer))
        await _prove(request, token)
    except SignInFailed as failed:
        answer = _failed(issuer, failed)
    else:
        answer = _redirect(f"/#/{begun.view}")
        sessions.keep(answer, request, token)
    # A code and its state are good for one answer.
    answer.delete_cookie(_cookie(request), **_attributes(request))
    return answer


async def _prove(request: Request, token: str) -> None:
    """Raise SignInFailed for a token with which no request would be answered."""
    if len(token) > sessions.MOST_CHARACTERS:
        text = f"its token has {len(token)} characters, and a browser keeps {sessions.MOST_CHARACTERS}"
        raise SignInFailed("token_too_long", text)
    try:
        principal = await context_of(request).identities.authenticate({"authorization": f"Bearer {token}"})
    except ApiProblem as problem:
        code = "issuer_unreachable" if problem.status == 503 else "sign_in_refused"
        raise SignInFailed(code, problem.detail) from None
    if principal is None:
        raise SignInFailed("sign_in_refused", "its token is none that the service accepts")


def _issuer(request: Request, name: str) -> tuple[CodeExchange, Issuer]:
    """What asks the issuer of that name, at which people sign in on the page.  Raises ApiProblem."""
    context = context_of(request)
    found = context.settings.openid.get(name)
    if context.exchange is None or found is None or not found.pages:
        raise ApiProblem(404, "issuer_not_found", "people do not sign in on the page at such an issuer")
    return context.exchange, found


async def _to_cookie(request: Request, begun: SignInBegun) -> str:
    """The cookie of what has begun.  Raises SignInFailed."""
    try:
        return to_cookie(begun, await asyncio.to_thread(_keys(request).newest))
    except KeysUnusable as error:
        raise SignInFailed("sign_in_unavailable", str(error)) from None


async def _from_cookie(request: Request) -> SignInBegun | None:
    """What this browser has begun.  Raises SignInFailed."""
    kept = request.cookies.get(_cookie(request), "")
    if not kept:
        return None
    try:
        keys = await asyncio.to_thread(_keys(request).all)
    except KeysUnusable as error:
        raise SignInFailed("sign_in_unavailable", str(error)) from None
    return from_cookie(kept, keys, context_of(request).clock())


def _keys(request: Request) -> SignInKeys:
    context = context_of(request)
    return SignInKeys(context.database, KeyFile(context.settings.secrets_key))


def _sender(request: Request) -> str:
    return network_of(request.client.host if request.client else "")


def _too_often(rates: Rates, key: str) -> Response | None:
    """The refusal of one sign-in more: a page, as a person reads it; the sign-in that has begun can go on later."""
    wait_s = rates.take(key, time.monotonic())
    if not wait_s:
        return None
    seconds = retry_after(wait_s)
    headers = {
        "Cache-Control": "no-store",
        "Content-Security-Policy": POLICY,
        "Referrer-Policy": "no-referrer",
        "Retry-After": seconds,
        "X-Content-Type-Options": "nosniff",
    }
    return HTMLResponse(_TOO_MANY.format(seconds=seconds), 429, headers)


def _failed(issuer: str, failed: SignInFailed) -> RedirectResponse:
    """The page says it in its own words: a link with a text would show what its writer likes."""
    log.warning("a sign-in at the issuer %s failed: %s", issuer, failed)
    return _redirect(f"/#/sign-in/{failed.code}")


def _redirect(url: str) -> RedirectResponse:
    # Not kept by browsers, and no address of a code is sent on to anybody.
    return RedirectResponse(url, 303, {"Cache-Control": "no-store", "Referrer-Policy": "no-referrer"})


def _redirect_uri(request: Request, issuer: str) -> str:
    """This service's own address, by the name that the request addresses it by, which the gate has checked."""
    return f"{request.url.scheme}://{request.headers['host']}/v1/sign-in/{issuer}/answer"


def _cookie(request: Request) -> str:
    return SECURE_COOKIE if request.url.scheme == "https" else COOKIE


def _attributes(request: Request) -> dict[str, Any]:
    return {"path": "/", "httponly": True, "samesite": "lax", "secure": request.url.scheme == "https"}
