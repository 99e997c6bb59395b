"""Secrets of projects: stored and deleted, listed without their values, encrypted with a new key."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import asdict
from typing import Annotated, Any, TypeVar

import sqlalchemy as sa
from fastapi import APIRouter, Query, Request
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from starlette.responses import Response

from remora.spec.fields import NAME_FORM, is_name
from remora.terminal_text import one_line
from remora.views import FieldProblem, Page, Secret, SecretsRotation
from service.api.authentication import principal_of
from service.api.authorisation import access_of
from service.api.bodies import read_object
from service.api.context import Context, context_of
from service.api.parameters import Parameters
from service.api.problem_documents import ApiProblem
from service.api.writes import Noted, appender, note, write
from service.identities.principals import LOCAL, Forbidden
from service.policies_in_force import policies_in_force
from service.queue.secrets import (
    MAX_VALUE_BYTES,
    SecretRow,
    SecretSource,
    refuses_key_vault,
    refuses_name,
    refuses_value,
)
from service.secrets.key_file import KeyFile, KeysUnusable
from service.secrets.rotation import rotate
from service.secrets.storing import NewSecret, store_secret
from service.store import secret_rows as store

router = APIRouter(prefix="/v1")

T = TypeVar("T")

#: Bytes of a body: a value's with an escape for each, and what stands around it.
_MOST_BODY_BYTES = 6 * MAX_VALUE_BYTES + 8 * 1024
_MOST_VALUES = 20


class _Body(BaseModel):
    """A value, or where one is."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    value: str | None = Field(default=None, repr=False)
    key_vault: str | None = Field(default=None, max_length=400)
    author: Annotated[str, AfterValidator(one_line)] = Field(default="", max_length=200)


@router.get("/projects/{project}/secrets", operation_id="list_secrets", response_model=Page[Secret])
async def list_secrets(request: Request, project: str, _: Annotated[Parameters, Query()]) -> Page[Secret]:
    """The secrets of a project by name, without their values."""
    _check_project(request, project)
    rows = await context_of(request).database.read(lambda connection: store.of_project(connection, project))
    return Page[Secret](items=[_view(row) for row in rows])


@router.put("/projects/{project}/secrets/{name}", operation_id="set_secret", response_model=Secret)
async def set_secret(
    request: Request, project: str, name: str, _: Annotated[Parameters, Query()]
) -> Response:
    """Store a secret: a `value`, or the address of one in a `key_vault`; the next attempts use it.

    201 where there was none, 200 for a new version.
    """
    _check(request, project, name)
    context = context_of(request)
    body = await read_object(
        request,
        min(context.settings.max_body_bytes, _MOST_BODY_BYTES),
        _MOST_VALUES,
        context.checks,
        _checked,
    )
    principal = principal_of(request)
    if body.key_vault is not None and not principal.is_operator:
        raise Forbidden(
            "only operators name secrets of a key vault, which the service reads with its own identity"
        )
    # Where nothing is proved, the author is who the program says.
    author = body.author if principal is LOCAL else principal.id
    new = _new(context, project, name, body, author)
    append = appender(request)

    replaced: list[SecretRow | None] = []

    def also(connection: sa.Connection, before: SecretRow | None, row: SecretRow) -> None:
        replaced[:] = [before]
        noted = Noted(project=project, object=name)
        noted.before = None if before is None else {"version": before.version}
        noted.after = {"version": row.version, "key_vault": body.key_vault}
        append(connection, noted)

    def most(connection: sa.Connection) -> int:
        return policies_in_force(connection, context.settings).limits_of(project).secrets

    def work() -> SecretRow:
        key_file = KeyFile(context.settings.secrets_key)
        return store_secret(context.database, key_file, new, context.clock(), also, most=most)

    row = await _in_thread(work)
    status = 201 if replaced == [None] else 200
    headers = {"Location": f"/v1/projects/{project}/secrets/{name}"} if status == 201 else {}
    return Response(_view(row).model_dump_json(), status, headers, media_type="application/json")


@router.delete("/projects/{project}/secrets/{name}", operation_id="delete_secret", response_model=Secret)
async def delete_secret(
    request: Request, project: str, name: str, _: Annotated[Parameters, Query()]
) -> Secret:
    """Delete a secret; jobs that use it cannot start any more."""
    _check(request, project, name)

    def work(connection: sa.Connection, noted: Noted) -> SecretRow:
        row = store.lock(connection, project, name)
        if row is None:
            raise _not_found(project, name)
        store.delete(connection, project, name)
        noted.project, noted.object, noted.before = project, name, {"version": row.version}
        return row

    return _view(await write(request, work))


@router.post("/secrets/rotate", operation_id="rotate_secrets", response_model=SecretsRotation)
async def rotate_secrets(request: Request, _: Annotated[Parameters, Query()]) -> SecretsRotation:
    """Encrypt the secrets of all projects with a new key; one that was interrupted is brought to its end instead."""
    context = context_of(request)
    key_file = KeyFile(context.settings.secrets_key)
    # Before it, as it is made of many transactions: one that is killed has been noted.
    await note(request, Noted(outcome="begun"))
    done = await _in_thread(lambda: rotate(context.database, key_file))
    return SecretsRotation(**asdict(done) | {"unreadable": list(done.unreadable)})


def _check_project(request: Request, project: str) -> None:
    """Raise ApiProblem for what is no name, and Forbidden where the principal has not the role that it needs."""
    if not is_name(project):
        said = f"{project[:80]!a} is no name of a project; use {NAME_FORM}"
        raise ApiProblem(422, "invalid_parameter", said)
    access_of(request).check(project)


def _check(request: Request, project: str, name: str) -> None:
    _check_project(request, project)
    if refusal := refuses_name(name):
        raise ApiProblem(422, "invalid_parameter", refusal)


def _checked(raw: dict[str, Any]) -> _Body:
    try:
        return _Body.model_validate(raw)
    except ValidationError as error:
        # What was given may be a secret, whatever its key.
        problems = [
            FieldProblem(
                field=".".join(map(str, one["loc"])).encode("ascii", "replace").decode()[:80],
                message=one["msg"],
            )
            for one in error.errors(include_url=False, include_input=False, include_context=False)
        ]
    first = problems[0]
    detail = f"{first.field}: {first.message}" if first.field else first.message
    raise ApiProblem(422, "invalid_parameter", detail, errors=problems)


def _new(context: Context, project: str, name: str, body: _Body, author: str) -> NewSecret:
    if (body.value is None) is (body.key_vault is None):
        raise ApiProblem(422, "invalid_parameter", "write either `value` or `key_vault`")
    if body.key_vault is not None:
        is_emulated = context.settings.cloud == "azure-emulated"
        source, refusal = SecretSource.KEY_VAULT, refuses_key_vault(body.key_vault, is_emulated=is_emulated)
    else:
        source, refusal = SecretSource.VALUE, refuses_value(body.value or "")
    if refusal:
        raise ApiProblem(422, "invalid_secret", refusal)
    content = body.key_vault if body.key_vault is not None else body.value or ""
    return NewSecret(project=project, name=name, source=source, content=content, updated_by=author)


async def _in_thread(work: Callable[[], T]) -> T:
    try:
        return await asyncio.to_thread(work)
    except KeysUnusable as error:
        raise ApiProblem(
            409, "keys_unusable", str(error), hint="this is for the service's operators"
        ) from None


def _not_found(project: str, name: str) -> ApiProblem:
    said = f"the project {project} has no secret {name}"
    return ApiProblem(404, "secret_not_found", said, hint="remora secrets list shows those that it has")


def _view(row: SecretRow) -> Secret:
    return Secret(
        project=row.project,
        name=row.name,
        version=row.version,
        source=row.source.value,
        created_at=row.created_at,
        updated_at=row.updated_at,
        updated_by=row.updated_by,
    )
