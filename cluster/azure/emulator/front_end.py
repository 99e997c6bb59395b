"""The part that all requests to the emulated Azure Resource Manager share: checks, errors, pages, operations."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from cluster.azure.emulator.actions import action_of
from cluster.azure.emulator.clock import Clock
from cluster.azure.emulator.emulated_cloud import Cloud, Json, Operation, Refused
from cluster.azure.emulator.faults import Effect, FaultPoint
from cluster.azure.emulator.tokens import Tokens

COMPUTE = "/subscriptions/{subscription}/providers/Microsoft.Compute"

Endpoint = Callable[[Request], Awaitable[Response]]


class ArmFrontEnd:
    """The checks, errors, pages and operations of one subscription with one resource group in one region."""

    def __init__(
        self,
        cloud: Cloud,
        tokens: Tokens,
        clock: Clock,
        group: str,
        region: str,
        subscription: str | None = None,
    ) -> None:
        """`subscription` is the only one that there is; None: each that is asked for."""
        self._subscription = subscription
        self.cloud = cloud
        self.clock = clock
        self.group = group
        self.region = region
        self._tokens = tokens

    def guarded(self, endpoint: Endpoint) -> Endpoint:
        """The endpoint with the checks that all requests share; errors become ARM's documents."""

        async def answered(request: Request) -> Response:
            try:
                self._check(request)
                self.cloud.advance(self.clock())
                answer = await endpoint(request)
            except Refused as refused:
                return error_response(refused)
            except ConnectionAbortedError:
                return _LostAnswer()
            if self.cloud.reads_left is not None and request.method == "GET":
                answer.headers["x-ms-ratelimit-remaining-subscription-reads"] = str(self.cloud.reads_left)
            return answer

        return answered

    def _check(self, request: Request) -> None:
        if not self._tokens.allows(request.headers.get("Authorization", "")):
            raise Refused(401, "InvalidAuthenticationToken", "The access token is missing or invalid.")
        self._check_role(request)
        if "api-version" not in request.query_params and "/operations/" not in request.url.path:
            raise Refused(400, "MissingApiVersionParameter", "The api-version query parameter is required.")
        asked = request.path_params.get("subscription", self._subscription)
        if (self._subscription is not None and asked != self._subscription) or asked in self.cloud.unseen:
            raise Refused(404, "SubscriptionNotFound", f"The subscription '{asked}' could not be found.")
        group = request.path_params.get("group", self.group)
        if group.lower() != self.group.lower():
            raise Refused(404, "ResourceGroupNotFound", f"Resource group '{group}' could not be found.")

    def _check_role(self, request: Request) -> None:
        action = action_of(request.method, request.url.path)
        if action is None:
            return
        self.cloud.actions.add(action)
        if self.cloud.allowed is not None and action not in self.cloud.allowed:
            said = f"The client does not have authorization to perform action '{action}' over scope."
            raise Refused(403, "AuthorizationFailed", said)

    def meet_fault(self, point: FaultPoint, **facts: Any) -> None:
        """Raise the fault that is set for this point, if there is one."""
        fault = self.cloud.faults.take(point, **facts)
        if fault is not None:
            raise ConnectionAbortedError if fault.effect is Effect.LOSE_ANSWER else Refused.by(fault)

    def page(self, request: Request, point: FaultPoint, documents: Sequence[Json]) -> Response:
        """The page that is asked for; raises a fault that is set for this point."""
        page, size = int(request.query_params.get("$skiptoken", "1")), self.cloud.page_size
        self.meet_fault(point, page=page)
        answer: Json = {"value": list(documents[(page - 1) * size : page * size])}
        if len(documents) > page * size:
            answer["nextLink"] = str(request.url.include_query_params(**{"$skiptoken": str(page + 1)}))
        return JSONResponse(answer)

    def operation_headers(self, request: Request, operation: Operation) -> dict[str, str]:
        """Where the client may ask about an operation."""
        path = COMPUTE.format(subscription=request.path_params["subscription"])
        root = f"{request.url.scheme}://{request.url.netloc}"
        url = f"{root}{path}/locations/{self.region}/operations/{operation.id}?p=1&api-version=2026-04-01"
        return {"Azure-AsyncOperation": url}

    def accepted(self, request: Request, operation: Operation) -> Response:
        """202 for an operation without a document."""
        headers = self.operation_headers(request, operation)
        return Response(status_code=202, headers={**headers, "Location": headers["Azure-AsyncOperation"]})


class _LostAnswer(Response):
    """An answer that begins and never ends: the server closes the connection."""

    async def __call__(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"10")]})


def error_response(refused: Refused) -> Response:
    """ARM's document of an error."""
    headers = {} if refused.retry_after is None else {"Retry-After": f"{refused.retry_after:g}"}
    if refused.status == 401:
        headers["WWW-Authenticate"] = (
            'Bearer authorization_uri="https://login.windows.net/", error="invalid_token"'
        )
    if refused.body is not None:
        kind = "text/html" if refused.body.startswith("<") else "application/json"
        return Response(refused.body, refused.status, headers, media_type=kind)
    body = {"error": {"code": refused.code, "message": str(refused)}}
    return JSONResponse(body, status_code=refused.status, headers=headers)


def is_forced(request: Request) -> bool:
    """A deletion that does not wait for the machine's system to shut down."""
    return request.query_params.get("forceDeletion", "").lower() == "true"


def iso(at: float) -> str:
    """Seconds since 1970 as Azure writes times."""
    return datetime.fromtimestamp(at, UTC).isoformat()
