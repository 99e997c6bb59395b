"""Managed identity as a machine of Azure has it: tokens from the metadata service."""

from __future__ import annotations

import secrets

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from cluster.azure.emulator.clock import Clock
from cluster.azure.emulator.faults import EmulatorFaults, FaultPoint

_LIFETIME_S = 86_400


class Tokens:
    """The tokens that were given out, and the route that gives them."""

    def __init__(self, faults: EmulatorFaults, clock: Clock) -> None:
        self._faults = faults
        self._clock = clock
        #: For which resource each was given out.
        self._given: dict[str, str] = {}

    def allows(self, authorization: str, resource: str | None = None) -> bool:
        """True for the Authorization header with a token that was given out here, for this resource if one is named."""
        kind, _, token = authorization.partition(" ")
        given = self._given.get(token) if kind == "Bearer" else None
        return given is not None and (resource is None or given == resource)

    def forget(self) -> None:
        """Knob: every token becomes invalid, as when a role or an identity is taken away."""
        self._given.clear()

    def route(self) -> Route:
        """GET /metadata/identity/oauth2/token"""
        return Route("/metadata/identity/oauth2/token", self._give)

    async def _give(self, request: Request) -> Response:
        if request.headers.get("Metadata") != "true":
            return JSONResponse({"error": "invalid_request"}, status_code=400)
        fault = self._faults.take(FaultPoint.TOKEN)
        if fault is not None:
            return JSONResponse(
                {"error": fault.code, "error_description": fault.message}, status_code=fault.status
            )
        token = secrets.token_urlsafe(24)
        self._given[token] = request.query_params.get("resource", "")
        return JSONResponse(
            {
                "access_token": token,
                "expires_in": str(_LIFETIME_S),
                "expires_on": str(int(self._clock()) + _LIFETIME_S),
                "resource": self._given[token],
                "token_type": "Bearer",
            }
        )
