"""What the operators' own rules say to launches; a rule that fails is passed over, and an event says so."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Protocol, TypeVar

import sqlalchemy as sa

from cluster import actions
from cluster.installed_rules import SiteRule, load_rules
from cluster.policies import Policies
from cluster.view import ClusterView, NodeView
from service.fixed_pool import local_offerings
from service.loops.turn import Turn
from service.queue.rows import NewEvent, NodeRow
from service.store import policies as store

log = logging.getLogger(__name__)

#: Seconds after which the same sentence is told again.
AGAIN_S = 3600.0


class Wished(Protocol):
    """A launch as some planner wishes for it."""

    @property
    def pool(self) -> str:
        """Name of the pool."""
        ...

    @property
    def resources(self) -> Mapping[str, float]:
        """Ray resources of the node."""
        ...

    @property
    def reason(self) -> str:
        """One sentence for people."""
        ...

    @property
    def labels(self) -> Mapping[str, str]:
        """Labels of the Ray node."""
        ...


WishedT = TypeVar("WishedT", bound=Wished)


def let_through(
    turn: Turn, policies: Policies, rows: Sequence[NodeRow], launches: Sequence[WishedT]
) -> list[WishedT]:
    """The launches that no rule vetoes.  Raises Fenced."""
    if not policies.rules or not launches:
        return list(launches)
    (offering,) = local_offerings(turn.settings)
    view = ClusterView(nodes=tuple(_node(row, offering.id) for row in rows), offerings=(offering,))
    rules = load_rules(policies.rules, partial(_tell_failure, turn))
    return [launch for launch in launches if not _is_vetoed(turn, rules, view, _asked(launch, offering.id))]


def _asked(launch: Wished, offering: str) -> actions.Launch:
    return actions.Launch(
        pool=launch.pool,
        offering=offering,
        resources=launch.resources,
        reason=launch.reason,
        labels=launch.labels,
    )


def _node(row: NodeRow, offering: str) -> NodeView:
    return NodeView(
        id=row.id,
        pool=row.pool,
        state=row.state,
        created_at=row.created_at,
        offering=offering,
        resources=row.resources,
    )


def _is_vetoed(
    turn: Turn, rules: Sequence[tuple[str, SiteRule]], view: ClusterView, launch: actions.Launch
) -> bool:
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
            return True
    return False


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
