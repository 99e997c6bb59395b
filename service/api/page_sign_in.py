"""Signing in on the page with the account of an issuer: from the page to the issuer, and back with a session.

Both routes are for browsers alone.  They answer with redirects: to the issuer's page, and to a view of our own page.
"""

from __future__ import annotations

import logging
import time
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import RedirectResponse

from service.api import sessions
from service.api.context import context_of
from service.api.parameters import Parameters
from service.api.problem_documents import ApiProblem
from service.api.rates import retry_after
from service.openid.code_exchange import CodeExchange
from service.openid.code_flow import (
    CodeAnswer,
    SignInFailed,
    address_of,
    begin,
    code_of,
    from_cookie,
    to_cookie,
)
from service.openid.issuers import Issuer

log = logging.getLogger(__name__)

router = APIRouter(prefix="/v1/sign-in", include_in_schema=False)

#: What has begun.  It must come back with a request that the issuer's page causes, so that it is no `Strict` one.
COOKIE, SECURE_COOKIE = "remora_sign_in", "__Host-remora_sign_in"
#: Seconds that a person has to sign in.
LIFETIME_S = 600

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
) -> RedirectResponse:
    """Lead the browser to the issuer's page."""
    exchange, found = _issuer(request, issuer)
    begun = begin(issuer, query.view)
    try:
        page = await exchange.page_of(found)
    except SignInFailed as failed:
        return _failed(issuer, failed)
    answer = _redirect(address_of(begun, found, page, _redirect_uri(request, issuer)))
    answer.set_cookie(_cookie(request), to_cookie(begun), max_age=LIFETIME_S, **_attributes(request))
    return answer


@router.get("/{issuer}/answer", operation_id="end_page_sign_in")
async def end_sign_in(
    request: Request, issuer: Name, query: Annotated[AnswerParameters, Query()]
) -> RedirectResponse:
    """Take the issuer's answer: a session in a cookie, and a view of the page."""
    exchange, found = _issuer(request, issuer)
    begun = from_cookie(request.cookies.get(_cookie(request), ""))
    given = CodeAnswer(state=query.state, code=query.code, error=query.error, issuer=query.iss)
    try:
        code = code_of(begun, issuer, found, given)
        assert begun is not None
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
    client = request.client.host if request.client else ""
    wait_s = context.sign_in_rates.take(client, time.monotonic())
    if wait_s:
        raise ApiProblem(
            429,
            "too_many_requests",
            "this address begins too many sign-ins",
            headers={"Retry-After": retry_after(wait_s)},
        )
    return context.exchange, found


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
