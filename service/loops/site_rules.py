"""Applies the operators' own rules to planned launches; a rule that fails is skipped, and an event says so."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial

import sqlalchemy as sa

from cluster.policies.policies import Policies
from cluster.scheduling.actions import Launch, Wait
from cluster.scheduling.installed_rules import load_rules
from cluster.scheduling.launch_checks import Veto, veto
from cluster.scheduling.view import ClusterView
from service.loops.tick import Tick
from service.queue.rows import NewEvent
from service.store import policies as store

log = logging.getLogger(__name__)

#: Seconds after which the same event is written again.
REPEAT_S = 3600.0


def vetted_launches(
    tick: Tick, policies: Policies, view: ClusterView, launches: Sequence[Launch]
) -> tuple[list[Launch], list[Wait]]:
    """The launches that no rule vetoes, and why the others are not made, by pool and by job.  Raises Fenced."""
    if not policies.rules or not launches:
        return list(launches), []
    rules = load_rules(policies.rules, partial(_record_failure, tick))
    allowed: list[Launch] = []
    vetoed: list[Wait] = []
    for launch in launches:
        refusal = veto(view, launch, rules, _log_failure)
        if refusal is None:
            allowed.append(launch)
            continue
        _record_veto(tick, launch, refusal)
        vetoed.append(Wait(pool=launch.pool, reason=refusal.reason))
        if launch.job_id is not None:
            vetoed.append(Wait(job_id=launch.job_id, reason=refusal.reason))
    return allowed, vetoed


def _record_veto(tick: Tick, launch: Launch, refusal: Veto) -> None:
    event = NewEvent(
        at=tick.now,
        kind="policies.launch_vetoed",
        message=refusal.reason,
        data={"rule": refusal.rule, "pool": launch.pool},
    )
    _record(tick, event)


def _log_failure(name: str, error: Exception) -> None:
    """An event has reported it already."""
    log.debug("the rule %s is passed over", name, exc_info=error)


def _record_failure(tick: Tick, name: str, why: str) -> None:
    message = f"the rule {name} is passed over: {why}"
    _record(tick, NewEvent(at=tick.now, kind="policies.rule_failed", message=message, data={"rule": name}))


def _record(tick: Tick, event: NewEvent) -> None:
    """Write an event and a log line, unless the same event was written within `REPEAT_S`."""

    def work(connection: sa.Connection) -> bool:
        if store.has_cluster_event(connection, event.kind, event.message, since=tick.now - REPEAT_S):
            return False
        store.append_cluster_event(connection, event)
        return True

    if tick.apply(work):
        log.warning("%s", event.message)
