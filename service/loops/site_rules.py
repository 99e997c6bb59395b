"""What the operators' own rules say to launches; a rule that fails is passed over, and an event says so."""

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

#: Seconds after which the same sentence is told again.
AGAIN_S = 3600.0


def let_through(
    tick: Tick, policies: Policies, view: ClusterView, launches: Sequence[Launch]
) -> tuple[list[Launch], list[Wait]]:
    """The launches that no rule vetoes, and why others are not made, for their pools and jobs.  Raises Fenced."""
    if not policies.rules or not launches:
        return list(launches), []
    rules = load_rules(policies.rules, partial(_tell_failure, tick))
    through: list[Launch] = []
    vetoed: list[Wait] = []
    for launch in launches:
        refusal = veto(view, launch, rules, _log_failure)
        if refusal is None:
            through.append(launch)
            continue
        _tell_veto(tick, launch, refusal)
        vetoed.append(Wait(pool=launch.pool, reason=refusal.reason))
        if launch.job_id is not None:
            vetoed.append(Wait(job_id=launch.job_id, reason=refusal.reason))
    return through, vetoed


def _tell_veto(tick: Tick, launch: Launch, refusal: Veto) -> None:
    event = NewEvent(
        at=tick.now,
        kind="policies.launch_vetoed",
        message=refusal.reason,
        data={"rule": refusal.rule, "pool": launch.pool},
    )
    _tell(tick, event)


def _log_failure(name: str, error: Exception) -> None:
    """Operators have been told of it."""
    log.debug("the rule %s is passed over", name, exc_info=error)


def _tell_failure(tick: Tick, name: str, why: str) -> None:
    message = f"the rule {name} is passed over: {why}"
    _tell(tick, NewEvent(at=tick.now, kind="policies.rule_failed", message=message, data={"rule": name}))


def _tell(tick: Tick, event: NewEvent) -> None:
    """Write an event and a line of the log, unless the same was told within the hour."""

    def work(connection: sa.Connection) -> bool:
        if store.has_cluster_event(connection, event.kind, event.message, since=tick.now - AGAIN_S):
            return False
        store.append_cluster_event(connection, event)
        return True

    if tick.apply(work):
        log.warning("%s", event.message)
