"""How people prove to the service who they are, for programs that ask before they have a token."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request

from remora.views import SignInIssuer, SignInWays
from service.api.context import context_of
from service.api.parameters import Parameters

router = APIRouter(prefix="/v1/sign-in")


@router.get("", operation_id="list_sign_in_ways", response_model=SignInWays)
async def ways(request: Request, _: Annotated[Parameters, Query()]) -> SignInWays:
    """The issuers at whose pages people sign in; those for programs alone are left out."""
    settings = context_of(request).settings
    issuers = [
        SignInIssuer(
            name=name,
            issuer=one.issuer,
            client_id=one.client_id,
            scopes=list(one.scopes),
            accepts=one.accepts,
            pages=one.pages,
        )
        for name, one in settings.openid.items()
        if one.client_id is not None
    ]
    return SignInWays(is_required=settings.authentication == "required", issuers=issuers)
