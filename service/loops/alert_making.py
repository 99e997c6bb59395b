"""What follows from facts and from looks at what is watched: stored in the transaction that forgets or moves these."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial

import sqlalchemy as sa

from cluster.policies.policies import BudgetPolicy, Policies, ProjectPolicy
from remora.alert_kinds import AlertKind
from remora.roles import EVERYWHERE, Role
from service.loops.tick import Tick
from service.policies_in_force import policies_in_force
from service.queue.alert_watches import (
    Look,
    Spent,
    Watch,
    look_at_budgets,
    look_at_pace,
    look_at_wait,
    unseen_ends,
    watch_from,
)
from service.queue.alerts import AlertRow, Message, NotificationRow, message_of
from service.queue.rows import JobRow
from service.store import alert_facts, alerts, jobs, spending
from service.store.ids import new_id
from service.store.present_rights import Absent, access_now

#: What is spent of the budgets of the day and the month, by project; `*` is the cluster.
Budgets = dict[str, dict[str, Spent]]

#: Facts, and watches, that one tick looks at; the others follow in the next ticks.
FACTS, WATCHES = 500, 200


def take_facts(connection: sa.Connection, tick: Tick) -> None:
    """Store what follows from the oldest facts, and forget them."""
    facts = alert_facts.first(connection, FACTS)
    projects = {fact.project for fact in facts if fact.project} | {EVERYWHERE}
    rights = _Rights(connection, tick)
    messages: list[tuple[AlertRow, Message]] = []
    watches: dict[tuple[str, AlertKind, str], Watch] = {}
    for alert in alerts.lock_of_projects(connection, projects):
        for fact in facts:
            message, watch = message_of(alert, fact), watch_from(alert, fact)
            if message is not None and rights.may_see(alert):
                messages.append((alert, message))
            if watch is not None:
                watches[watch.alert_id, watch.kind, watch.about] = watch
    alerts.put_watches(connection, list(watches.values()))
    alerts.notify(connection, _rows(messages, tick.now), tick.now)
    rights.note(connection)
    alert_facts.forget(connection, facts)


def look(connection: sa.Connection, tick: Tick) -> None:
    """Look at what is due, store what follows, and when each is looked at again."""
    watches = alerts.due_watches(connection, tick.now, WATCHES)
    of_alerts = alerts.find(connection, {watch.alert_id for watch in watches}, lock=True)
    of_jobs = jobs.find_jobs(connection, {w.about for w in watches if w.kind is not AlertKind.BUDGET})
    budgets = cache(partial(_budgets, connection, policies_in_force(connection, tick.settings)))
    rights = _Rights(connection, tick)
    messages: list[tuple[AlertRow, Message]] = []
    kept: list[Watch] = []
    over: list[Watch] = []
    for watch in watches:
        alert = of_alerts.get(watch.alert_id)
        if alert is None or alert.ended_at is not None:
            over.append(watch)
            continue
        found = _look_at(alert, watch, of_jobs.get(watch.about), budgets, tick.now)
        messages += [(alert, one) for one in found.messages if rights.may_see(alert)]
        (kept if found.watch is not None else over).append(found.watch or watch)
    alerts.end_watches(connection, over)
    alerts.put_watches(connection, kept)
    alerts.notify(connection, _rows(messages, tick.now), tick.now)
    rights.note(connection)


def _look_at(
    alert: AlertRow, watch: Watch, job: JobRow | None, budgets: Callable[[float], Budgets], now: float
) -> Look:
    match watch.kind:
        case AlertKind.JOB_WAITS:
            return look_at_wait(alert, watch, job, now)
        case AlertKind.JOB_SLOW:
            return look_at_pace(alert, watch, job, now)
    messages: list[Message] = []
    for at in (*unseen_ends(watch, now), now):
        look = look_at_budgets(alert, watch, budgets(at).get(alert.project, {}), at)
        watch, messages = look.watch or watch, [*messages, *look.messages]
    return Look(watch, tuple(messages))


def _budgets(connection: sa.Connection, policies: Policies, at: float) -> Budgets:
    """What was spent at a time of the budgets of its day and month."""
    whole, of_projects = spending.spent(connection, at)
    limits: dict[str, BudgetPolicy | ProjectPolicy] = {EVERYWHERE: policies.budget, **policies.projects}
    day = spending.day_of(at)
    found: Budgets = {}
    for name, limit in limits.items():
        spent = whole if name == EVERYWHERE else of_projects.get(name)
        today, month = (0.0, 0.0) if spent is None else (spent.today, spent.this_month)
        found[name] = {}
        if limit.usd_per_day is not None:
            found[name]["day"] = Spent(f"day {day}", today, limit.usd_per_day)
        if limit.usd_per_month is not None:
            found[name]["month"] = Spent(f"month {day[:7]}", month, limit.usd_per_month)
    return found


def _rows(messages: Sequence[tuple[AlertRow, Message]], now: float) -> list[NotificationRow]:
    """In the order of what happened, for each alert."""
    return [
        NotificationRow(
            id=new_id("ntf", now),
            alert_id=alert.id,
            key=one.key[:200],
            at=one.at,
            created_at=now,
            kind=one.kind.value,
            message=one.message,
            data=dict(one.data),
        )
        for alert, one in messages
    ]


class _Rights:
    """Which alerts may report, by what their owners may do now: asked once for each alert."""

    def __init__(self, connection: sa.Connection, tick: Tick) -> None:
        self._connection = connection
        self._tick = tick
        #: Why not, by alert; None: it may.
        self._known: dict[str, str | None] = {}

    def may_see(self, alert: AlertRow) -> bool:
        """Whether its owner still has the role that creating the alert needs."""
        if alert.id not in self._known:
            self._known[alert.id] = self._why_not(alert)
        return self._known[alert.id] is None

    def note(self, connection: sa.Connection) -> None:
        """Show at alerts that may not report why that is so."""
        for alert_id, why in self._known.items():
            if why is not None:
                alerts.note_error(connection, alert_id, why)

    def _why_not(self, alert: AlertRow) -> str | None:
        if self._tick.settings.authentication != "required":
            return None
        owner = Absent(alert.owner, alert.credential, alert.groups)
        access, why_not = access_now(self._connection, owner, alert.project, self._tick.now)
        if why_not is not None:
            return f"nothing is reported: {why_not}"
        if not alert.is_own_only and not access.principal.has(Role.ADMIN, alert.project):
            return f"nothing is reported: {alert.owner} is no admin of the project {alert.project} any more"
        return None
