"""The operators' policies: show, check, apply, roll back; and events of the whole cluster."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import Annotated, Any, TypeVar

import sqlalchemy as sa
from fastapi import APIRouter, Query, Request
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from sqlalchemy.exc import IntegrityError
from starlette.responses import Response

from cluster.policies.documents import MAX_DOCUMENT, digest_of, read_document, read_stored
from cluster.policies.policies import Policies
from cluster.policies.policy_problems import PoliciesRefused
from remora.spec.bounds import exceeds
from remora.terminal_text import one_line
from remora.views import ClusterEvent, FieldProblem, Page, Policy, PolicyCheck, PolicyVersion
from service.api.authorisation import access_of
from service.api.bodies import read_object
from service.api.context import Context, context_of
from service.api.led_clusters import controller_ages, notes_on_clusters, without_controller
from service.api.pages import as_json, write_page
from service.api.parameters import (
    EventsParameters,
    PageParameters,
    Parameters,
    make_cursor,
    read_number_cursor,
)
from service.api.problem_documents import ApiProblem
from service.api.writes import Noted, write
from service.clouds.fixed_pool import fixed_pool, known
from service.identities.principals import LOCAL
from service.policy_notes import notes_on
from service.queue.policy_versions import (
    PolicyDecision,
    PolicyRequest,
    PolicyRow,
    PolicyVersionConflict,
    next_version,
)
from service.store import policies as store

router = APIRouter(prefix="/v1")

BodyT = TypeVar("BodyT", bound="_Body")

#: Values in a body around a document.
_MOST_VALUES = 50
#: The version in a path that stands for the one in force.
NEWEST = "newest"


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Check(_Body):
    document: str


class _Change(_Body):
    document: str | None = None
    restores: int | None = Field(default=None, ge=0, le=2**31 - 1)
    based_on: int = Field(ge=0, le=2**31 - 1)
    author: Annotated[str, AfterValidator(one_line)] = Field(default="", max_length=200)
    comment: Annotated[str, AfterValidator(one_line)] = Field(default="", max_length=2000)


@router.get("/policies", operation_id="list_policies", response_model=Page[PolicyVersion])
async def list_policies(request: Request, query: Annotated[PageParameters, Query()]) -> Page[PolicyVersion]:
    """Versions of the policies, newest first; the last one is made from the settings."""
    context = context_of(request)
    before = read_number_cursor(query.cursor, 2**31 - 1)
    rows = await context.database.read(
        lambda connection: store.page_of_policies(connection, before=before, limit=query.limit)
    )
    is_last = len(rows) < query.limit
    if is_last:
        rows = [*rows, fixed_pool(context.settings)]
    items = [PolicyVersion.model_validate(asdict(row)) for row in rows]
    return Page[PolicyVersion](items=items, next_cursor=None if is_last else make_cursor(rows[-1].version))


@router.post("/policies", status_code=201, operation_id="apply_policies", response_model=Policy)
async def apply_policies(request: Request, _: Annotated[Parameters, Query()]) -> Response:
    """Put a document (`document`), or that of an earlier version (`restores`), in force.

    201 with the new version, 200 when that document is in force already.
    """
    context = context_of(request)
    change = await _body(request, context, _Change)
    if (change.document is None) is (change.restores is None):
        raise ApiProblem(422, "invalid_parameter", "write either `document` or `restores`")
    if change.restores is not None:
        document = (await _version(context, str(change.restores))).document
    else:
        document = change.document or ""
    # To look which site rules are installed takes longer than most documents.
    policies = await context.checks.run(lambda: _written(_checked(context, document)), None)
    requested = PolicyRequest(
        document=document,
        digest=digest_of(document),
        based_on=change.based_on,
        restores=change.restores,
        # What was proved, and not only said.
        author=change.author if access_of(request).principal is LOCAL else access_of(request).principal.name,
        comment=change.comment,
    )
    decision = await _store(request, requested)
    # Not by the checks, which may have no capacity: the document is in force.
    view = await asyncio.to_thread(_policy, decision.row, policies)
    headers = {"Location": f"/v1/policies/{decision.row.version}"}
    status = 200 if decision.event is None else 201
    return Response(view, status, headers, media_type="application/json")


@router.post("/policies/check", operation_id="check_policies", response_model=PolicyCheck)
async def check_policies(request: Request, _: Annotated[Parameters, Query()]) -> Response:
    """What `POST /v1/policies` would say to a document; nothing is stored."""
    context = context_of(request)
    document = (await _body(request, context, _Check)).document
    newest = await _version(context, NEWEST)
    quotas = await context.database.read(store.quotas_by_cluster)

    def check() -> PolicyCheck | tuple[Policies, PolicyCheck]:
        try:
            policies = _read(context, document)
        except PoliciesRefused as error:
            return PolicyCheck(problems=_field_problems(error))
        is_in_force = digest_of(document) == newest.digest
        notes = notes_on(policies, context.settings, quotas)
        return policies, PolicyCheck(policies=_written(policies), is_in_force=is_in_force, notes=notes)

    found = await context.checks.run(check, None)
    if isinstance(found, PolicyCheck):
        return as_json(found.model_dump_json())
    policies, checked = found
    ages = await controller_ages(context, policies)
    more = notes_on_clusters(policies, ages, without_controller(context, ages))
    return as_json(checked.model_copy(update={"notes": [*checked.notes, *more]}).model_dump_json())


@router.get("/policies/{version}", operation_id="get_policies", response_model=Policy)
async def get_policies(request: Request, version: str, _: Annotated[Parameters, Query()]) -> Response:
    """One version by its number, or the one in force by `newest`."""
    context = context_of(request)
    row = await _version(context, version)

    def read() -> str:
        try:
            return _policy(row, _written(read_stored(row.document)))
        except PoliciesRefused:
            return _policy(row, None)

    return as_json(await context.checks.run(read, len(row.document)))


@router.get("/events", operation_id="list_cluster_events", response_model=Page[ClusterEvent])
async def list_cluster_events(request: Request, query: Annotated[EventsParameters, Query()]) -> Response:
    """What happened to the cluster as a whole, oldest first."""
    after = read_number_cursor(query.cursor, query.after)

    def work(connection: sa.Connection) -> bytes:
        rows = store.page_of_cluster_events(connection, after=after, limit=query.limit)
        return write_page(rows, _event, lambda row: row.seq, query.limit)

    return as_json(await context_of(request).database.read(work))


def _event(row: store.ClusterEventRow) -> ClusterEvent:
    return ClusterEvent.model_validate(row, from_attributes=True)


async def _body(request: Request, context: Context, kind: type[BodyT]) -> BodyT:
    def check(raw: dict[str, Any]) -> BodyT:
        return _checked_body(kind, raw)

    return await read_object(request, context.settings.max_body_bytes, _MOST_VALUES, context.checks, check)


def _checked_body(kind: type[BodyT], raw: dict[str, Any]) -> BodyT:
    if too_much := exceeds(raw, values=_MOST_VALUES, characters=MAX_DOCUMENT + 8 * 1024):
        raise ApiProblem(422, "invalid_parameter", f"the body has {too_much}")
    try:
        return kind.model_validate(raw)
    except ValidationError as error:
        problems = [
            FieldProblem(field=_printable(".".join(map(str, one["loc"]))), message=_printable(one["msg"]))
            for one in error.errors(include_url=False)
        ]
    first = problems[0]
    detail = f"{first.field}: {first.message}" if first.field else first.message
    raise ApiProblem(422, "invalid_parameter", detail, errors=problems)


def _read(context: Context, document: str) -> Policies:
    return read_document(document, known(context.settings))


def _checked(context: Context, document: str) -> Policies:
    try:
        return _read(context, document)
    except PoliciesRefused as error:
        problems = _field_problems(error)
        first = _printable(str(error.problems[0]))
        raise ApiProblem(422, "invalid_policies", first, errors=problems) from None


def _field_problems(error: PoliciesRefused) -> list[FieldProblem]:
    return [
        FieldProblem(field=_printable(one.field), message=_printable(one.message), lines=list(one.lines))
        for one in error.problems
    ]


def _printable(text: str) -> str:
    return text.encode("utf-8", "replace").decode("utf-8")[:1000]


async def _store(request: Request, wanted: PolicyRequest) -> PolicyDecision:
    context = context_of(request)
    first, now = fixed_pool(context.settings), context.clock()

    def work(connection: sa.Connection, noted: Noted) -> PolicyDecision:
        newest = store.newest_policies(connection) or first
        decision = next_version(newest, wanted, now)
        store.insert_policies(connection, decision)
        noted.object, noted.outcome = "policies", "unchanged" if decision.event is None else "done"
        noted.before = {"version": newest.version, "digest": newest.digest}
        noted.after = {"version": decision.row.version, "digest": decision.row.digest}
        return decision

    try:
        try:
            return await write(request, work)
        except IntegrityError:
            # Another request stored that version at the same moment: now it can be read.
            return await write(request, work)
    except PolicyVersionConflict as error:
        hint = f"look at version {error.newest.version}, and make the change to that one"
        raise ApiProblem(409, "policies_changed", str(error), hint=hint) from None


async def _version(context: Context, version: str) -> PolicyRow:
    row: PolicyRow | None = None
    if version == NEWEST:
        row = await context.database.read(store.newest_policies) or fixed_pool(context.settings)
    elif version == "0":
        row = fixed_pool(context.settings)
    elif version.isascii() and version.isdecimal() and len(version) < 10:
        number = int(version)
        row = await context.database.read(lambda connection: store.get_policies(connection, number))
    if row is None:
        raise ApiProblem(
            404,
            "policies_not_found",
            f"there is no version {_printable(version)[:80]!r} of the policies",
            hint="`remora policy history` shows all versions",
        )
    return row


def _written(policies: Policies) -> dict[str, Any]:
    return policies.model_dump(mode="json")


def _policy(row: PolicyRow, policies: dict[str, Any] | None) -> str:
    return Policy(**asdict(row), policies=policies).model_dump_json()
