"""What Ray programs that are no jobs wait for."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import sqlalchemy as sa
from fastapi import APIRouter, Query, Request

from remora.views import Page, RayRequest
from service.api.authorisation import access_of
from service.api.context import context_of
from service.api.hidden_job_ids import ForeignJobs
from service.api.parameters import Parameters
from service.store.ray_requests import all_requests

router = APIRouter(prefix="/v1/ray-requests")


@router.get("", operation_id="list_ray_requests", response_model=Page[RayRequest])
async def list_ray_requests(request: Request, _: Annotated[Parameters, Query()]) -> Page[RayRequest]:
    """What Ray programs ask for and do not have yet, the oldest first, with the reason.

    Who is no operator sees what is asked for in the name of its own projects.
    """
    context, access = context_of(request), access_of(request)

    def work(connection: sa.Connection) -> list[RayRequest]:
        shown = ForeignJobs(connection, access)
        return [
            shown.texts(RayRequest(**asdict(row)), "reason")
            for row in all_requests(connection)
            if access.projects is None or row.project in access.projects
        ]

    return Page[RayRequest](items=await context.database.read(work))
