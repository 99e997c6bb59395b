"""What the attempts of a job did with their nodes, phase by phase."""

from __future__ import annotations

import re
from typing import Annotated

import sqlalchemy as sa
from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from remora.views import JobPhase, Page
from service.api.context import context_of, job_of
from service.api.pages import as_json, write_page
from service.api.parameters import PageParameters, read_cursor
from service.api.problem_documents import ApiProblem
from service.store.phases import newest_phases

router = APIRouter()

_POSITION = re.compile(r"([0-9]{1,9})-([0-9]{1,18})")


@router.get("/v1/jobs/{job_id}/phases", operation_id="list_phases", response_model=Page[JobPhase])
async def list_phases(request: Request, job_id: str, query: Annotated[PageParameters, Query()]) -> Response:
    """What its attempts did from when until when, the newest first."""
    await job_of(request, job_id)
    before = None if query.cursor is None else _position(read_cursor(query.cursor))

    def work(connection: sa.Connection) -> bytes:
        found = newest_phases(connection, job_id, before, query.limit)
        return write_page(found, lambda one: one, lambda one: f"{one.attempt}-{one.number}", query.limit)

    return as_json(await context_of(request).database.read(work))


def _position(text: str) -> tuple[int, int]:
    """The attempt and the number that a cursor stands for.  Raises ApiProblem `invalid_cursor`."""
    match = _POSITION.fullmatch(text)
    if match is None:
        raise ApiProblem(422, "invalid_cursor", "the cursor is not one that this list gave")
    return int(match[1]), int(match[2])
