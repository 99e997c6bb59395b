"""The middleware of every request: its id, its Host and Origin, who sends it, counters, and uncaught errors.

Plain ASGI, because Starlette's `BaseHTTPMiddleware` doubles the cost of a request and breaks streams.
"""

from __future__ import annotations

import logging
import re
import secrets
import time
from collections.abc import Sequence
from urllib.parse import urlsplit

from sqlalchemy.exc import DBAPIError
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from remora.loopback import is_loopback
from remora.process_log import about, request_about, request_id
from service.api import sessions
from service.api.authentication import Authenticator, proof_missing, proof_refused
from service.api.problem_documents import ApiProblem, of_database
from service.api.prometheus import Telemetry
from service.api.rates import retry_after
from service.api.trace_contexts import traceparent_of
from service.identities.permissions import is_open
from service.identities.principals import LOCAL, Principal
from service.listening import Listening
from service.store.failures import why_failed

log = logging.getLogger(__name__)

#: Bytes of a request's parameters; the longest one is a cursor of 4000 characters.
MAX_QUERY_BYTES = 8 * 1024
#: Headers that name the addressed host, the origin and who asks: if one comes twice, programs disagree about its value.
_ONCE = ("host", "authorization", "origin", "sec-fetch-site", "sec-fetch-mode", "sec-fetch-dest")
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_OBJECT = re.compile(r"/v1/(?:jobs/(?P<job>job_[0-9A-Z]{26})|nodes/(?P<node>node_[0-9A-Z]{26}))(?:/|$)")


class Gate:
    """Wraps the whole application."""

    def __init__(self, app: ASGIApp, telemetry: Telemetry) -> None:
        self._app = app
        self._telemetry = telemetry

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]]
        given = _only(headers, "x-request-id") or ""
        identity = given if _REQUEST_ID.fullmatch(given) else secrets.token_hex(8)
        token, token_about = request_id.set(identity), request_about.set(_about(scope))
        began = time.perf_counter()
        status = 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (b"x-request-id", identity.encode())]
            await send(message)

        try:
            reached: Listening = scope["app"].state.remora.reached
            refused = _refusal(scope, headers, reached) or _too_long(scope["query_string"])
            refused = refused or await _unproved(scope, headers) or _too_often(scope)
            if refused is not None:
                await refused.response()(scope, receive, send_with_id)
            else:
                await self._app(scope, receive, send_with_id)
        except Exception:
            log.exception("the request failed")
            if status:
                raise
            problem = ApiProblem(500, "internal_error", "the service made a mistake; its log says more")
            await problem.response()(scope, receive, send_with_id)
        finally:
            self._telemetry.count(scope, status, time.perf_counter() - began)
            request_id.reset(token)
            request_about.reset(token_about)


def _refusal(scope: Scope, headers: Sequence[tuple[str, str]], reached: Listening) -> ApiProblem | None:
    """A web page must not reach the service through a visitor's browser, whatever that can prove.

    A page of the service itself has the origin that the request is addressed to, to the letter: another port of this
    machine is another origin, and may be anybody's.
    """
    for name in _ONCE:
        if sum(one == name for one, _ in headers) > 1:
            return ApiProblem(400, "bad_request", f"the request has the header {name.title()} more than once")
    if reached.is_public and scope["scheme"] != "https" and not is_loopback(_client_of(scope)):
        return ApiProblem(
            403, "tls_required", "tokens must not cross the network in clear", hint="use https://"
        )
    host = _only(headers, "host") or ""
    if not reached.has_name(_host_of(f"//{host}")):
        return _unknown_host(reached)
    origin, site = _only(headers, "origin"), _only(headers, "sec-fetch-site")
    is_foreign = origin is not None and origin != f"{scope['scheme']}://{host.lower()}"
    # `none` stands for the browser's address line.  A link from elsewhere shows a page to its reader, and to no page.
    is_asked_elsewhere = site not in (None, "same-origin", "none") and not _opens_a_page(
        scope["method"], headers
    )
    if is_foreign or is_asked_elsewhere:
        return ApiProblem(403, "foreign_origin", "web pages of other origins may not use the service")
    return None


def _unknown_host(reached: Listening) -> ApiProblem:
    if not reached.is_public:
        return ApiProblem(
            421,
            "unknown_host",
            "the service answers only requests to this machine's own loopback address",
            hint="use http://127.0.0.1 or http://localhost",
        )
    names = ", ".join(sorted(reached.names)) or "its loopback address alone"
    hint = "its operator sets REMORA_PUBLIC_URL to the address that people use"
    return ApiProblem(
        421, "unknown_host", f"the service is not known by this name, but by {names}", hint=hint
    )


def _too_often(scope: Scope) -> ApiProblem | None:
    """A principal has its own rate, so that a loop of one does not slow the others down."""
    principal: Principal | None = scope.get("remora.principal")
    context = scope["app"].state.remora
    if principal is None or principal is LOCAL or context.rates is None:
        return None
    wait_s = context.rates.take(principal.id, time.monotonic())
    if not wait_s:
        return None
    text = f"{principal.id} sends more than {context.settings.max_requests_per_s:g} requests per second"
    hint = "wait as long as Retry-After says; follow a job by its stream instead of asking again"
    return ApiProblem(429, "too_many_requests", text, hint=hint, headers={"Retry-After": retry_after(wait_s)})


async def _unproved(scope: Scope, headers: Sequence[tuple[str, str]]) -> ApiProblem | None:
    """Put into the scope who sends the request, if it proves that; why it is refused otherwise."""
    identities: Authenticator = scope["app"].state.remora.identities
    given = dict(headers)
    cookie = sessions.token_of(given) if identities.is_required and "authorization" not in given else None
    if cookie is not None:
        if (refused := sessions.csrf_problem(scope["method"], given, cookie)) is not None:
            return refused
        given["authorization"] = f"Bearer {cookie}"
    is_asked_by_all = is_open(scope["path"])
    try:
        principal = await identities.authenticate(given)
    except ApiProblem as problem:
        if cookie is not None and problem.status == 401:
            return None if is_asked_by_all else sessions.forgotten(problem, scope["scheme"])
        return problem
    except DBAPIError as error:
        log.error("%s", why_failed(error))  # noqa: TRY400 - the sentence says it all
        return of_database(error)
    if principal is not None:
        scope["remora.principal"] = principal
        # What streams are asked for again: a session's cookie has become a header here.
        scope["remora.proof"] = given
        return None
    if "authorization" in given and not (is_asked_by_all and cookie is not None):
        unknown = proof_refused("invalid_token", "the token is none that this service knows")
        return unknown if cookie is None else sessions.forgotten(unknown, scope["scheme"])
    return None if is_asked_by_all else proof_missing()


def _too_long(query: bytes) -> ApiProblem | None:
    """Each parameter that is wrong costs an error of pydantic's, on the event loop."""
    if len(query) <= MAX_QUERY_BYTES:
        return None
    return ApiProblem(414, "query_too_long", f"the parameters have more than {MAX_QUERY_BYTES} bytes")


def _about(scope: Scope) -> dict[str, str]:
    """The job or the node that the path of a request names, and its span."""
    named = _OBJECT.match(scope["path"])
    ids = {} if named is None else named.groupdict()
    return about(**ids, traceparent=traceparent_of(Request(scope)))


def _client_of(scope: Scope) -> str:
    return scope["client"][0] if scope.get("client") else ""


def _opens_a_page(method: str, headers: Sequence[tuple[str, str]]) -> bool:
    mode, target = _only(headers, "sec-fetch-mode"), _only(headers, "sec-fetch-dest")
    return method == "GET" and (mode, target) == ("navigate", "document")


def _only(headers: Sequence[tuple[str, str]], name: str) -> str | None:
    return next((value for one, value in headers if one == name), None)


def _host_of(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""
