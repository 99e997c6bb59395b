"""What the operators' own rules say to launches; a rule that fails is passed over, and an event says so."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial

import sqlalchemy as sa

from cluster.actions import Launch, Wait
from cluster.installed_rules import SiteRule, load_rules
from cluster.policies import Policies
from cluster.view import ClusterView
from service.loops.turn import Turn
from service.queue.rows import NewEvent
from service.store import policies as store

log = logging.getLogger(__name__)

#: Seconds after which the same sentence is told again.
AGAIN_S = 3600.0


def let_through(
    turn: Turn, policies: Policies, view: ClusterView, launches: Sequence[Launch]
) -> tuple[list[Launch], list[Wait]]:
    """The launches that no rule vetoes, and why others are not made, for their pools and jobs.  Raises Fenced."""
    if not policies.rules or not launches:
        return list(launches), []
    rules = load_rules(policies.rules, partial(_tell_failure, turn))
    through: list[Launch] = []
    vetoed: list[Wait] = []
    for launch in launches:
        why = _veto(turn, rules, view, launch)
        if why is None:
            through.append(launch)
            continue
        vetoed.append(Wait(pool=launch.pool, reason=why))
        if launch.job_id is not None:
            vetoed.append(Wait(job_id=launch.job_id, reason=why))
    return through, vetoed


def _veto(turn: Turn, rules: Sequence[tuple[str, SiteRule]], view: ClusterView, launch: Launch) -> str | None:
    for name, rule in rules:
        try:
            refusal = rule(view, launch)
        except Exception:  # it has been told of, and nodes are needed all the same
            log.debug("the rule %s is passed over", name, exc_info=True)
            continue
        if refusal is not None:
            why = refusal.strip() or "it gives no reason"
            message = f"the rule {name} lets no node of pool {launch.pool} be launched: {why}"
            event = NewEvent(
                at=turn.now,
                kind="policies.launch_vetoed",
                message=message,
                data={"rule": name, "pool": launch.pool},
            )
            _tell(turn, event)
            return message
    return None


def _tell_failure(turn: Turn, name: str, why: str) -> None:
    message = f"the rule {name} is passed over: {why}"
    _tell(turn, NewEvent(at=turn.now, kind="policies.rule_failed", message=message, data={"rule": name}))


def _tell(turn: Turn, event: NewEvent) -> None:
    """Write an event and a line of the log, unless the same was told within the hour."""

    def work(connection: sa.Connection) -> bool:
        if store.has_cluster_event(connection, event.kind, event.message, since=turn.now - AGAIN_S):
            return False
        store.append_cluster_event(connection, event)
        return True

    if turn.apply(work):
        log.warning("%s", event.message)
