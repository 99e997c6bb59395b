"""Alerts, what they watch, and their notifications."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from remora.alert_kinds import DeliveryState
from remora.roles import EVERYWHERE
from service.queue.alert_watches import Watch
from service.queue.alerts import AlertRow, NotificationRow
from service.queue.deliveries import Delivered
from service.queue.intake import Kept
from service.store import kept_amounts
from service.store.project_lists import newest_of
from service.store.rows import in_parts, insert_into, upsert
from service.store.tables import PENDING_NOTIFICATIONS, alert_facts, alert_watches, alerts, notifications

_ALERT = sa.select(alerts).where(alerts.c.id == sa.bindparam("of"))
_LOCKED = _ALERT.with_for_update()
_WATCH = (alert_watches.c.alert_id, alert_watches.c.kind, alert_watches.c.about)


def holders_of(alert: AlertRow) -> tuple[str, ...]:
    """Whose number of alerts it is part of."""
    return (
        (alert.owner,)
        if alert.project == EVERYWHERE
        else (kept_amounts.project_holder(alert.project), alert.owner)
    )


def insert(
    connection: sa.Connection, alert: AlertRow, most: int | None = None, most_of_owner: int | None = None
) -> None:
    """Store a new alert.  Raises LimitReached when its project or its owner would have more than allowed."""
    for holder in holders_of(alert):
        limit = most_of_owner if holder == alert.owner else most
        kept_amounts.take(connection, holder, Kept.ALERTS, 1, limit)
    connection.execute(insert_into(alerts), {name: getattr(alert, name) for name in _columns(alerts)})


def get(connection: sa.Connection, alert_id: str, *, lock: bool = False) -> AlertRow | None:
    """The alert, kept from changing by others until the transaction ends if asked, or None."""
    row = connection.execute(_LOCKED if lock else _ALERT, {"of": alert_id}).first()
    return None if row is None else AlertRow(**row._mapping)


def page(
    connection: sa.Connection,
    projects: Collection[str] | None,
    own_of: str,
    administered: Collection[str] | None,
    before: str | None,
    limit: int,
) -> Iterator[AlertRow]:
    """Alerts newest first that a principal has created in these projects, or that are of a project it administers.

    None stands for all projects, those of the whole cluster too.
    """
    conditions: list[sa.ColumnElement[bool]] = [] if before is None else [alerts.c.id < before]
    if administered is not None:
        conditions.append(sa.or_(alerts.c.owner == own_of, alerts.c.project.in_(sorted(administered))))
    for row in connection.execute(newest_of(sa.select(alerts), alerts, projects, conditions, limit)):
        yield AlertRow(**row._mapping)


def delete(connection: sa.Connection, alert: AlertRow) -> None:
    """Delete an alert, which is locked, with what it watches and its notifications."""
    for table in (notifications, alert_watches):
        connection.execute(sa.delete(table).where(table.c.alert_id == alert.id))
    connection.execute(sa.delete(alerts).where(alerts.c.id == alert.id))
    for holder in holders_of(alert):
        kept_amounts.take(connection, holder, Kept.ALERTS, -1, None)


def lock_of_projects(connection: sa.Connection, projects: Collection[str]) -> list[AlertRow]:
    """Alerts of these projects that have not ended, oldest first, kept from changing until the transaction ends."""
    found: list[AlertRow] = []
    for part in in_parts(sorted(projects)):
        mine = sa.select(alerts).where(alerts.c.project.in_(part), alerts.c.ended_at.is_(None))
        found += [
            AlertRow(**row._mapping)
            for row in connection.execute(mine.order_by(alerts.c.id).with_for_update())
        ]
    return found


def find(connection: sa.Connection, alert_ids: Iterable[str], *, lock: bool = False) -> dict[str, AlertRow]:
    """Those of the alerts that exist, by id; locked in the order of their ids if asked."""
    found: dict[str, AlertRow] = {}
    for part in in_parts(sorted(set(alert_ids))):
        statement = sa.select(alerts).where(alerts.c.id.in_(part)).order_by(alerts.c.id)
        statement = statement.with_for_update() if lock else statement
        found.update({row.id: AlertRow(**row._mapping) for row in connection.execute(statement)})
    return found


def put_watches(connection: sa.Connection, watches: Sequence[Watch]) -> None:
    """Store watches, each in place of the one of the same alert, kind and job."""
    upsert(connection, alert_watches, [asdict(watch) for watch in watches], replace=True)


def end_watches(connection: sa.Connection, watches: Sequence[Watch]) -> None:
    """Delete watches that are over."""
    if watches:
        mine = (column == sa.bindparam(f"of_{column.name}") for column in _WATCH)
        keys = [{"of_alert_id": w.alert_id, "of_kind": w.kind, "of_about": w.about} for w in watches]
        connection.execute(sa.delete(alert_watches).where(*mine), keys)


def due_watches(connection: sa.Connection, now: float, limit: int) -> list[Watch]:
    """Watches whose time has come, the longest overdue first."""
    due = sa.select(alert_watches).where(alert_watches.c.due_at <= now).order_by(alert_watches.c.due_at)
    return [Watch(**row._mapping) for row in connection.execute(due.limit(limit))]


def what_is_due(connection: sa.Connection, now: float) -> tuple[bool, bool, bool]:
    """Whether there are facts of which nothing was made yet, watches that are due, and alerts that may be sent now."""
    facts = sa.select(alert_facts.c.seq).exists()
    watches = sa.select(alert_watches.c.kind).where(alert_watches.c.due_at <= now).exists()
    due_alerts = sa.select(alerts.c.id).where(alerts.c.due_at.is_not(None), alerts.c.due_at <= now).exists()
    found = connection.execute(sa.select(facts, watches, due_alerts)).one()
    return bool(found[0]), bool(found[1]), bool(found[2])


def notify(connection: sa.Connection, rows: Sequence[NotificationRow], now: float) -> None:
    """Store notifications, of locked alerts; what an alert has reported already is left out."""
    if not rows:
        return
    names = [name for name in _columns(notifications) if name != "seq"]
    values = [{name: getattr(row, name) for name in names} for row in rows]
    connection.execute(_once(connection.dialect.name), values)
    for part in in_parts(sorted({row.alert_id for row in rows})):
        idle = sa.update(alerts).where(alerts.c.id.in_(part), alerts.c.due_at.is_(None))
        connection.execute(idle.values(due_at=now))


def due(connection: sa.Connection, now: float, limit: int, without: Collection[str] = ()) -> list[AlertRow]:
    """Alerts of which a notification may be sent now, the longest overdue first; not those in `without`."""
    statement = sa.select(alerts).where(alerts.c.due_at.is_not(None), alerts.c.due_at <= now)
    if without:
        statement = statement.where(alerts.c.id.not_in(sorted(without)))
    statement = statement.order_by(alerts.c.due_at, alerts.c.id).limit(limit)
    return [AlertRow(**row._mapping) for row in connection.execute(statement)]


def pending(connection: sa.Connection, alert_id: str, limit: int) -> list[NotificationRow]:
    """The next notifications of an alert, in their order."""
    mine = sa.select(notifications).where(notifications.c.alert_id == alert_id, PENDING_NOTIFICATIONS)
    rows = connection.execute(mine.order_by(notifications.c.seq).limit(limit))
    return [NotificationRow(**row._mapping) for row in rows]


def notification_page(
    connection: sa.Connection, alert_id: str, before: int | None, limit: int
) -> list[NotificationRow]:
    """Notifications of an alert, newest first; `before` is the number of the last one of the page before."""
    mine = sa.select(notifications).where(notifications.c.alert_id == alert_id)
    mine = mine if before is None else mine.where(notifications.c.seq < before)
    rows = connection.execute(mine.order_by(notifications.c.seq.desc()).limit(limit))
    return [NotificationRow(**row._mapping) for row in rows]


def give_up(connection: sa.Connection, alert_ids: Collection[str], before: float, now: float) -> None:
    """Notifications of these alerts from before a time fail: they were not delivered."""
    for part in in_parts(sorted(alert_ids)):
        old = sa.update(notifications).where(
            notifications.c.alert_id.in_(part), PENDING_NOTIFICATIONS, notifications.c.created_at < before
        )
        connection.execute(old.values(state=DeliveryState.FAILED, settled_at=now))


def settle(connection: sa.Connection, outcomes: dict[str, Delivered], now: float) -> None:
    """Store what became of tries, by alert; of alerts that were deleted meanwhile nothing is left to store."""
    rows: list[dict[str, Any]] = []
    for alert_id, alert in find(connection, outcomes, lock=True).items():
        outcome = outcomes[alert_id]
        rows += [_settled(one.id, one.state, one.error, now) for one in outcome.settled]
        ended_at = now if outcome.has_ended else alert.ended_at
        state = {"failures": outcome.failures, "error": outcome.error, "ended_at": ended_at}
        connection.execute(sa.update(alerts).where(alerts.c.id == alert_id).values(state))
    if rows:
        mine = notifications.c.id == sa.bindparam("of"), PENDING_NOTIFICATIONS
        changed = sa.update(notifications).where(*mine)
        tries = notifications.c.tries + 1
        names = ("state", "error", "settled_at")
        values: dict[str, Any] = {name: sa.bindparam(f"new_{name}") for name in names}
        connection.execute(changed.values(tries=tries, **values), rows)
    for alert_id, outcome in outcomes.items():
        if outcome.has_ended:
            give_up(connection, [alert_id], float("inf"), now)
        plan_next(connection, alert_id, outcome.next_at)


def note_error(connection: sa.Connection, alert_id: str, error: str) -> None:
    """Why an alert reports nothing."""
    connection.execute(sa.update(alerts).where(alerts.c.id == alert_id).values(error=error[:300]))


def plan_next(connection: sa.Connection, alert_id: str, at: float) -> None:
    """An alert, which is locked, may send its next notification at that time, if it has one."""
    is_any = sa.exists().where(notifications.c.alert_id == alert_id, PENDING_NOTIFICATIONS)
    next_at = sa.case((is_any, sa.literal(at, sa.Double)), else_=sa.null())
    connection.execute(sa.update(alerts).where(alerts.c.id == alert_id).values(due_at=next_at))


def forget(connection: sa.Connection, before: float, most: int) -> int:
    """Delete notifications that were settled before a time; how many."""
    old = sa.select(notifications.c.seq).where(notifications.c.settled_at < before).limit(most)
    gone = sa.delete(notifications).where(notifications.c.seq.in_(old))
    return connection.execute(gone).rowcount


def is_any(connection: sa.Connection) -> bool:
    """Whether there is an alert, whose address is encrypted."""
    return connection.execute(sa.select(alerts.c.id).limit(1)).first() is not None


def of_other_keys(connection: sa.Connection, key_id: str, after: str, limit: int) -> list[AlertRow]:
    """Alerts that are not encrypted with this key, locked, behind an id, in their order."""
    others = sa.select(alerts).where(alerts.c.key_id != key_id, alerts.c.id > after)
    rows = connection.execute(others.order_by(alerts.c.id).limit(limit).with_for_update())
    return [AlertRow(**row._mapping) for row in rows]


def seal_again(connection: sa.Connection, alert_id: str, key_id: str, ciphertext: bytes) -> None:
    """Store the address of an alert, encrypted with another key."""
    values = {"key_id": key_id, "ciphertext": ciphertext}
    connection.execute(sa.update(alerts).where(alerts.c.id == alert_id).values(values))


def _settled(id: str, state: DeliveryState, error: str | None, now: float) -> dict[str, Any]:
    at = None if state is DeliveryState.PENDING else now
    return {"of": id, "new_state": state, "new_error": error, "new_settled_at": at}


def _columns(table: sa.Table) -> list[str]:
    return [column.name for column in table.columns]


def _once(dialect: str) -> sa.Insert:
    make = sqlite.insert if dialect == "sqlite" else postgresql.insert
    return make(notifications).on_conflict_do_nothing(index_elements=["alert_id", "key"])
