"""What is not said by one event: jobs that wait too long or become slow, and parts of budgets (pure).

A watch is looked at when it is due.  What it has reported is part of its state, which is written with the notification.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import isinf
from statistics import median
from typing import Any

from cluster.scheduling.money import begin_of
from remora.alert_kinds import AlertKind
from remora.states import JobState
from service.queue.alerts import AlertRow, Fact, Message, wants
from service.queue.rows import JobRow

#: Seconds between two looks at the pace of a job, and at a budget.
LOOK_S = 60.0
#: Looks that say what is usual: fewer say nothing, and older ones are forgotten.
FEWEST_LOOKS, MOST_LOOKS = 10, 60
#: Looks in a row at which a job is slow before that is reported.
SLOW_LOOKS = 3
#: Days whose ends are looked at after a time without a controller.
MOST_DAYS, DAY_S = 31, 86_400.0
#: Seconds before the end of a day at which it is looked at.
LAST_S = 0.001
#: What a watch of budgets is about.
BUDGETS = "budgets"


@dataclass(frozen=True, kw_only=True)
class Watch:
    """What is looked at for an alert, and what is known of it."""

    alert_id: str
    kind: AlertKind
    #: Id of the job, or `BUDGETS`.
    about: str
    due_at: float
    state: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Look:
    """What follows from a look: the watch as it goes on, None if it is over, and what is reported."""

    watch: Watch | None
    messages: tuple[Message, ...] = ()


@dataclass(frozen=True)
class Spent:
    """What is spent of a budget in a period that has an end."""

    #: `day` or `month` with its date: `day 2026-07-01`.
    period: str
    usd: float
    limit: float

    @property
    def percent(self) -> float:
        """What is spent, in percent of the limit."""
        return 100.0 * self.usd / self.limit if self.limit > 0 else 100.0


def watch_from(alert: AlertRow, fact: Fact) -> Watch | None:
    """The watch that begins with a fact, in place of an earlier one of the same job; None: none does."""
    if not wants(alert, fact):
        return None
    if fact.kind is AlertKind.JOB_WAITS:
        state = {"since": fact.at, "seq": fact.event_seq, "attempt": fact.attempt or 0}
        due_at = fact.at + alert.wait_s
    elif fact.kind is AlertKind.JOB_SLOW:
        state, due_at = {"seq": fact.event_seq}, fact.at + LOOK_S
    else:
        return None
    return Watch(alert_id=alert.id, kind=fact.kind, about=fact.about, due_at=due_at, state=state)


def budget_watch(alert: AlertRow) -> Watch | None:
    """The watch of a new alert that reports parts of budgets."""
    if AlertKind.BUDGET.value not in alert.kinds:
        return None
    return Watch(alert_id=alert.id, kind=AlertKind.BUDGET, about=BUDGETS, due_at=alert.created_at)


def unseen_ends(watch: Watch, now: float) -> list[float]:
    """The last moments of the days (UTC) that ended since a watch of budgets was looked at, the newest ones.

    What was spent after the last look in a period is not seen in the next one.
    """
    looked_at, midnight = watch.state.get("at"), begin_of("day", now)
    if looked_at is None:
        return []
    ends = [midnight - days * DAY_S - LAST_S for days in range(MOST_DAYS)]
    return [end for end in reversed(ends) if end > looked_at]


def look_at_wait(alert: AlertRow, watch: Watch, job: JobRow | None, now: float) -> Look:
    """A job that was in the queue: whether it has been there for too long."""
    state = watch.state
    if job is None or job.state is not JobState.QUEUED or job.attempt != state["attempt"]:
        return Look(None)
    since = float(state["since"])
    if job.attempt == 0 and job.waits_from is not None:
        since = max(since, job.waits_from)
    if isinf(since):
        # It waits for other jobs.  Whenever that ends, its wait lasts until after the next look.
        return Look(replace(watch, due_at=now + alert.wait_s))
    if now < since + alert.wait_s:
        return Look(replace(watch, due_at=since + alert.wait_s))
    why = job.message or "no reason is known"
    message = f"job {job.name} ({job.id}) has waited for {_duration(now - since)}: {why}"
    key = f"job_waits:{job.id}:{state['seq']}"
    return Look(None, (_about_job(key, now, AlertKind.JOB_WAITS, message, job, {"since": since}),))


def look_at_pace(alert: AlertRow, watch: Watch, job: JobRow | None, now: float) -> Look:
    """A job that trains: whether its steps take longer than those before."""
    if job is None or job.state.is_terminal or job.state is not JobState.RUNNING:
        return Look(None)
    on = replace(watch, due_at=now + LOOK_S)
    state = watch.state
    if job.max_step is None:
        return Look(on)
    # Seconds of a step at another size say nothing about these; nor do those around a loss.
    here = {"world_size": job.world_size, "repeated": job.repeated_steps, "attempt": job.attempt}
    if any(state.get(name) != value for name, value in here.items()) or job.lost_since is not None:
        return Look(
            replace(on, state={**state, **here, "at": now, "step": job.max_step, "usual": [], "slow": 0})
        )
    steps = job.max_step - int(state["step"])
    step_s = (now - float(state["at"])) / max(1, steps)
    usual: list[float] = state["usual"]
    is_known = len(usual) >= FEWEST_LOOKS
    is_slow = is_known and step_s > alert.slow_factor * median(usual)
    if steps <= 0 and not is_slow:
        return Look(on)
    return _with_pace(on, job, now, step_s, is_slow=is_slow)


def _with_pace(watch: Watch, job: JobRow, now: float, step_s: float, *, is_slow: bool) -> Look:
    state, usual = watch.state, list(watch.state["usual"])
    slow = int(state["slow"]) + 1 if is_slow else 0
    after = {**state, "slow": slow}
    if job.max_step != state["step"]:
        after |= {"at": now, "step": job.max_step}
    if not is_slow:
        # What is slow does not become usual.
        after["usual"] = [*usual, step_s][-MOST_LOOKS:]
    if slow != SLOW_LOOKS:
        return Look(replace(watch, state=after))
    after["reports"] = int(state.get("reports", 0)) + 1
    before_s = median(usual)
    message = (
        f"job {job.name} ({job.id}) is slower than usual: a step takes {step_s:.3g} s,"
        f" and took {before_s:.3g} s before"
    )
    data = {"step_s": step_s, "usual_s": before_s, "step": job.max_step}
    key = f"job_slow:{job.id}:{state['seq']}:{after['reports']}"
    report = _about_job(key, now, AlertKind.JOB_SLOW, message, job, data)
    return Look(replace(watch, state=after), (report,))


def look_at_budgets(alert: AlertRow, watch: Watch, budgets: Mapping[str, Spent], now: float) -> Look:
    """Budgets by `day` and `month`: each part is reported once in each period, the largest one that is reached."""
    messages, state = [], {**watch.state, "at": now}
    for name, spent in sorted(budgets.items()):
        before = state.get(name, {})
        reached = before.get("percent", 0) if before.get("period") == spent.period else 0
        now_reached = max((one for one in alert.budget_percents if spent.percent >= one), default=0)
        if now_reached <= reached:
            continue
        state[name] = {"period": spent.period, "percent": now_reached}
        whose = "the cluster" if alert.project == "*" else f"the project {alert.project}"
        part = f"{spent.usd:.2f} of {spent.limit:.2f} USD of the {spent.period}, {now_reached} % or more"
        message = f"{whose} has spent {part}"
        messages.append(
            Message(
                key=f"budget:{spent.period}:{now_reached}",
                at=now,
                kind=AlertKind.BUDGET,
                message=message,
                data={"project": alert.project, "period": spent.period, "percent": now_reached},
            )
        )
    return Look(replace(watch, state=state, due_at=now + LOOK_S), tuple(messages))


def _about_job(
    key: str, now: float, kind: AlertKind, message: str, job: JobRow, details: Mapping[str, Any]
) -> Message:
    data = {
        "project": job.project,
        "job_id": job.id,
        "job_name": job.name,
        "attempt": job.attempt or None,
        "details": dict(details),
    }
    return Message(key=key, at=now, kind=kind, message=" ".join(message.split())[:2000], data=data)


def _duration(seconds: float) -> str:
    minutes = int(seconds // 60)
    if minutes < 1:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"
