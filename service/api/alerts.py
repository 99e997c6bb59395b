"""Alerts: created, listed, tried and deleted; where they are sent to is shown in part, and their secrets once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Annotated, Literal, TypeVar

import sqlalchemy as sa
from fastapi import APIRouter, Query, Request
from pydantic import Field
from starlette.responses import Response

from remora.alert_kinds import AlertKind, Channel
from remora.alert_views import Alert, NewAlert, Notification
from remora.roles import EVERYWHERE, Role
from remora.spec.fields import NAME_FORM, is_name
from remora.views import Page
from service.alerts.bodies import TEST
from service.alerts.destinations import AddressRefused, Destination, new_destination, sealed_destination
from service.api.authentication import principal_of
from service.api.authorisation import access_of
from service.api.context import Context, context_of
from service.api.pages import as_json, write_page
from service.api.parameters import PageParameters, Parameters, read_cursor
from service.api.problem_documents import ApiProblem, invalid_parameter
from service.api.typed_bodies import Body, read_body
from service.api.writes import Noted, appender, write
from service.identities.principals import Forbidden, Principal
from service.policies_in_force import policies_in_force
from service.queue.alert_watches import budget_watch
from service.queue.alerts import AlertRow, NotificationRow
from service.secrets.key_file import KeyFile, KeysUnusable
from service.secrets.storing import newest_key
from service.store import alert_starts
from service.store import alerts as store
from service.store.ids import is_id, new_id
from service.store.scoped import find_alert

router = APIRouter(prefix="/v1/alerts")

T = TypeVar("T")

_Percent = Annotated[int, Field(strict=True, ge=1, le=1000)]


class _Wanted(Body):
    #: None: the whole cluster.
    project: Annotated[str, Field(max_length=63)] | None
    jobs: Literal["own", "all"] = "own"
    kinds: Annotated[list[AlertKind], Field(min_length=1, max_length=len(AlertKind))]
    #: One of these: URLs, and an address.
    webhook: Annotated[str, Field(max_length=2000)] | None = None
    slack: Annotated[str, Field(max_length=2000)] | None = None
    email: Annotated[str, Field(max_length=254)] | None = None
    wait_s: Annotated[float, Field(ge=1, le=30 * 86_400)] = 3600.0
    budget_percents: Annotated[list[_Percent], Field(min_length=1, max_length=20)] = [50, 80, 100]  # noqa: RUF012
    slow_factor: Annotated[float, Field(ge=1.1, le=100)] = 1.5


@router.post("", status_code=201, operation_id="create_alert", response_model=NewAlert)
async def create_alert(request: Request, _: Annotated[Parameters, Query()]) -> Response:
    """Create an alert: `{"project": "vision", "kinds": ["job_ended"], "webhook": "https://example.com/hook"}`.

    This is the only answer with the secret that signs the requests of a webhook.
    """
    wanted = await read_body(request, _Wanted)
    principal, context = principal_of(request), context_of(request)
    _check(request, wanted, principal)
    destination = _destination(wanted, context)
    append = appender(request)

    def work() -> AlertRow:
        key_file = KeyFile(context.settings.secrets_key)
        # No rotation passes between the encryption and the row.
        with key_file.locked():
            row = _row(wanted, principal, destination, context, key_file)
            context.database.transact(lambda connection: _insert(connection, row, principal, context, append))
        return row

    row = await _in_thread(work)
    answer = NewAlert(**_view(row).model_dump(), secret=destination.secret)
    headers = {"Location": f"/v1/alerts/{row.id}", "Cache-Control": "no-store"}
    return Response(answer.model_dump_json(), 201, headers, media_type="application/json")


@router.get("", operation_id="list_alerts", response_model=Page[Alert])
async def list_alerts(request: Request, query: Annotated[PageParameters, Query()]) -> Response:
    """One's own alerts, and those of projects that one administers; newest first."""
    before = _before(query, "alert")
    principal, projects = principal_of(request), access_of(request).projects
    administered = principal.projects_with(Role.ADMIN)

    def work(connection: sa.Connection) -> bytes:
        rows = store.page(connection, projects, principal.id, administered, before, query.limit)
        return write_page(rows, _view, lambda row: row.id, query.limit)

    return as_json(await context_of(request).database.read(work))


@router.get("/{alert_id}", operation_id="show_alert", response_model=Alert)
async def show_alert(request: Request, alert_id: str, _: Annotated[Parameters, Query()]) -> Alert:
    """One alert, with what became of its last try."""
    access = access_of(request)
    row = await context_of(request).database.read(lambda c: find_alert(c, access, alert_id))
    if row is None:
        raise _not_found(alert_id)
    return _view(row)


@router.get("/{alert_id}/notifications", operation_id="list_notifications", response_model=Page[Notification])
async def list_notifications(
    request: Request, alert_id: str, query: Annotated[PageParameters, Query()]
) -> Response:
    """The notifications of an alert, newest first: those that wait, were delivered, or failed."""
    access = access_of(request)
    before = None if query.cursor is None else _number(read_cursor(query.cursor))

    def work(connection: sa.Connection) -> bytes | None:
        if find_alert(connection, access, alert_id) is None:
            return None
        rows = store.notification_page(connection, alert_id, before, query.limit)
        return write_page(rows, _notification_view, lambda row: row.seq, query.limit)

    body = await context_of(request).database.read(work)
    if body is None:
        raise _not_found(alert_id)
    return as_json(body)


@router.post("/{alert_id}/test", status_code=202, operation_id="test_alert", response_model=Notification)
async def send_test(request: Request, alert_id: str, _: Annotated[Parameters, Query()]) -> Notification:
    """Send a notification that reports nothing; the list of notifications shows what becomes of it."""
    access, now = access_of(request), context_of(request).clock()

    def work(connection: sa.Connection, noted: Noted) -> NotificationRow:
        row = find_alert(connection, access, alert_id, lock=True)
        if row is None:
            raise _not_found(alert_id)
        if row.ended_at is not None:
            said = "its receiver has answered that it is gone, so that nothing is sent to it any more"
            raise ApiProblem(409, "alert_ended", said, hint="delete the alert and create another one")
        new = _test_of(row, now)
        store.notify(connection, [new], now)
        noted.project, noted.object = _project(row), row.id
        return new

    return _notification_view(await write(request, work))


@router.delete("/{alert_id}", operation_id="delete_alert", response_model=Alert)
async def delete_alert(request: Request, alert_id: str, _: Annotated[Parameters, Query()]) -> Alert:
    """Delete an alert with its notifications; what was not sent yet is not sent any more."""
    access = access_of(request)

    def work(connection: sa.Connection, noted: Noted) -> AlertRow:
        row = find_alert(connection, access, alert_id, lock=True)
        if row is None:
            raise _not_found(alert_id)
        store.delete(connection, row)
        noted.project, noted.object, noted.before = _project(row), row.id, _facts(row)
        return row

    return _view(await write(request, work))


def _check(request: Request, wanted: _Wanted, principal: Principal) -> None:
    """Raise Forbidden where the principal may not have such an alert, ApiProblem for what is none."""
    if wanted.project is None:
        if not principal.is_operator:
            raise Forbidden("only operators create alerts of the whole cluster; name a project")
        return
    if not is_name(wanted.project):
        raise invalid_parameter("project", f"this is no name of a project; use {NAME_FORM}")
    access_of(request).check(wanted.project)
    if wanted.jobs == "all" and not principal.has(Role.ADMIN, wanted.project):
        said = f"an alert of all jobs needs the role admin in the project {wanted.project}"
        raise Forbidden(f'{said}; write "jobs": "own" for your own')


def _destination(wanted: _Wanted, context: Context) -> Destination:
    given = [
        (channel, target)
        for channel, target in (
            (Channel.WEBHOOK, wanted.webhook),
            (Channel.SLACK, wanted.slack),
            (Channel.EMAIL, wanted.email),
        )
        if target is not None
    ]
    if len(given) != 1:
        raise ApiProblem(422, "invalid_parameter", "write one of `webhook`, `slack` and `email`")
    ((channel, target),) = given
    if channel is Channel.EMAIL and not context.settings.smtp_host:
        said = "this service sends no e-mail"
        raise ApiProblem(
            422, "no_mail_server", said, hint="an operator sets REMORA_SMTP_HOST and REMORA_SMTP_FROM"
        )
    try:
        return new_destination(channel, target, context.settings.allowed_alert_hosts)
    except AddressRefused as error:
        raise invalid_parameter(channel.value, str(error)) from None


def _row(
    wanted: _Wanted, principal: Principal, destination: Destination, context: Context, key_file: KeyFile
) -> AlertRow:
    now = context.clock()
    alert_id, project = new_id("alert", now), wanted.project or EVERYWHERE
    sealed = sealed_destination(newest_key(context.database, key_file), project, alert_id, destination)
    return AlertRow(
        id=alert_id,
        project=project,
        owner=principal.id,
        credential=principal.credential,
        groups=list(principal.groups),
        # Of the whole cluster there are no jobs of one's own.
        is_own_only=wanted.jobs == "own" and wanted.project is not None,
        kinds=[kind.value for kind in AlertKind if kind in wanted.kinds],
        channel=destination.channel,
        address=destination.shown[:300],
        key_id=sealed.key_id,
        ciphertext=sealed.ciphertext,
        wait_s=wanted.wait_s,
        budget_percents=sorted(set(wanted.budget_percents)),
        slow_factor=wanted.slow_factor,
        created_at=now,
    )


def _insert(
    connection: sa.Connection,
    row: AlertRow,
    principal: Principal,
    context: Context,
    append: Callable[[sa.Connection, Noted], None],
) -> None:
    policies = policies_in_force(connection, context.settings)
    store.insert(
        connection,
        row,
        None if row.project == EVERYWHERE else policies.limits_of(row.project).alerts,
        None if principal.is_operator else policies.principals.alerts,
    )
    budgets = budget_watch(row)
    watches = alert_starts.watches_of(connection, row)
    store.put_watches(connection, [*watches, *([] if budgets is None else [budgets])])
    append(connection, Noted(project=_project(row), object=row.id, after=_facts(row)))


def _test_of(row: AlertRow, now: float) -> NotificationRow:
    notification_id = new_id("ntf", now)
    return NotificationRow(
        id=notification_id,
        alert_id=row.id,
        key=f"{TEST}:{notification_id}",
        at=now,
        created_at=now,
        kind=TEST,
        message="this is a test of an alert: nothing has happened",
        data={"project": _project(row)},
    )


async def _in_thread(work: Callable[[], T]) -> T:
    try:
        return await asyncio.to_thread(work)
    except KeysUnusable as error:
        raise ApiProblem(
            409, "keys_unusable", str(error), hint="this is for the service's operators"
        ) from None


def _before(query: PageParameters, kind: str) -> str | None:
    before = None if query.cursor is None else read_cursor(query.cursor)
    if before is not None and not is_id(kind, before):
        raise ApiProblem(422, "invalid_cursor", "the cursor is not one that this list gave")
    return before


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise ApiProblem(422, "invalid_cursor", "the cursor is not one that this list gave")
    return int(text)


def _project(row: AlertRow) -> str | None:
    return None if row.project == EVERYWHERE else row.project


def _facts(row: AlertRow) -> dict[str, object]:
    """What the audit says of an alert."""
    jobs = "own" if row.is_own_only else "all"
    return {"kinds": row.kinds, "jobs": jobs, "channel": row.channel.value, "address": row.address}


def _not_found(alert_id: str) -> ApiProblem:
    hint = "remora alerts list shows those that there are"
    return ApiProblem(404, "alert_not_found", f"there is no alert {alert_id[:80]!r}", hint=hint)


def _view(row: AlertRow) -> Alert:
    return Alert(
        id=row.id,
        project=_project(row),
        jobs="own" if row.is_own_only else "all",
        kinds=[AlertKind(kind) for kind in row.kinds],
        channel=row.channel,
        address=row.address,
        owner=row.owner,
        wait_s=row.wait_s,
        budget_percents=row.budget_percents,
        slow_factor=row.slow_factor,
        created_at=row.created_at,
        failures=row.failures,
        error=row.error,
        ended_at=row.ended_at,
    )


def _notification_view(row: NotificationRow) -> Notification:
    names = (
        "id",
        "alert_id",
        "at",
        "created_at",
        "kind",
        "message",
        "data",
        "state",
        "tries",
        "error",
        "settled_at",
    )
    return Notification(**{name: getattr(row, name) for name in names})
