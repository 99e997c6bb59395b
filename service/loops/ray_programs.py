"""What Ray programs ask for, from look to look: what has lasted counts, and is recorded with why it waits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import sqlalchemy as sa

from cluster.policies.offerings import Offering
from cluster.policies.policies import Policies
from cluster.scheduling.actions import Wait
from cluster.scheduling.fitting import shares_in
from cluster.scheduling.pool_sizes import PoolSize
from cluster.scheduling.ray_programs import (
    Programs,
    RayDemand,
    Sighting,
    programs_of,
    request_of,
    requests_of,
    settled,
    sighted,
)
from cluster.scheduling.starts import describe
from cluster.scheduling.view import NodeView
from service.loops.tick import Tick
from service.queue.plan_reasons import is_news, shortened
from service.queue.rows import HELD, NewEvent, RayRequestRow
from service.store import ray_requests as store
from service.store.policies import append_cluster_event

_WAITS = "it waits for capacity on nodes that are there"
#: Of a placement group with different bundles: what else its owner pays for meanwhile.
_BY_SHAPE = "; nodes for other bundles of its placement group may be there already, and stay while it waits"


class ProgramWatch:
    """Remembers since when each request has been seen; for the thread that observes the cluster."""

    def __init__(self) -> None:
        self._seen: Mapping[str, Sighting] = {}
        #: The policies serve Ray programs, so that Ray is asked what they ask for; before the first tick they may.
        self.is_wanted = True

    def serves(self, asked: RayDemand | None, policies: Policies) -> bool:
        """Ray was asked what programs ask for, and the policies serve them; otherwise all is forgotten."""
        self.is_wanted = policies.ray_programs is not None
        if asked is None or not self.is_wanted:
            self._seen = {}
            return False
        return True

    def look(
        self,
        asked: RayDemand,
        policies: Policies,
        nodes: Sequence[NodeView],
        pools: Sequence[PoolSize],
        offerings: Sequence[Offering],
        now: float,
    ) -> Programs:
        """The demands of the programs, from what Ray said just now."""
        requests = requests_of(asked)
        self._seen = sighted(self._seen, requests, now)
        persistent = settled(requests, self._seen, now)
        found = programs_of(policies, persistent, asked, nodes, pools, offerings)
        return replace(found, asked_for=frozenset(one.id for one in requests))


def waits_of(programs: Programs) -> list[Wait]:
    """Why nodes that programs use are kept."""
    return [
        Wait(node_id=node_id, reason=f"Ray programs use it: {describe(held.worker_resources)}")
        for node_id, held in programs.held.items()
    ]


def record_requests(
    tick: Tick, policies: Policies, programs: Programs, waits: Mapping[str, str], *, is_known: bool
) -> None:
    """Record what programs hold, and what they wait for and why, by the plan's reasons; one event for each refusal.

    Not `is_known`: Ray was not asked, and what was recorded stays unless programs are not served any more.
    Nothing is written while it stays the same.  Raises Fenced.
    """
    if not is_known and policies.ray_programs is not None:
        return
    known = tick.load(partial(store.rows_of, cluster=tick.cluster))
    before = {row.id: row for row in known}
    project = "" if policies.ray_programs is None else policies.ray_programs.project
    held = _held(tick, programs)
    # Of a request that has several parts, why the first of those that wait does.
    reasons = {request_of(one): why for one, why in [*waits.items()][::-1]}
    shapes = Counter(one.gang for one in programs.requests if one.gang)
    after = [
        RayRequestRow(
            id=one.id,
            project=project,
            cluster=tick.cluster,
            kind=one.kind.value,
            strategy=None if one.strategy is None else one.strategy.value,
            resources=dict(one.bundle.resources),
            count=one.count,
            since=min(one.since, before[one.id].since) if one.id in before else one.since,
            is_refused=one.id in programs.refused,
            reason=shortened(
                programs.refused.get(one.id)
                or f"{reasons.get(one.id) or _WAITS}{_BY_SHAPE if shapes[one.gang] > 1 else ''}"
            ),
        )
        for one in programs.requests
    ]
    changed = [row for row in after if _is_news(before.get(row.id), row)]
    changed += [row for row in held if before.get(row.id) != row]
    # What a new controller has not seen for long enough stays as the one before left it.
    gone = before.keys() - programs.asked_for - {row.id for row in held}
    if not changed and not gone:
        return
    refused = [
        NewEvent(
            at=tick.now,
            kind="ray_program.refused",
            message=f"nothing is bought for {_in_words(row)} of a Ray program: {row.reason}",
            data={"request": row.id, "project": row.project},
        )
        for row in changed
        if row.is_refused and not (row.id in before and before[row.id].is_refused)
    ]

    def work(connection: sa.Connection) -> None:
        store.replace_requests(connection, tick.cluster, changed, gone)
        for event in refused:
            append_cluster_event(connection, event, tick.cluster)

    tick.apply(work)


def _held(tick: Tick, programs: Programs) -> list[RayRequestRow]:
    """What programs hold, a row for each node, by which projects are shown as the planner counts them."""
    return [
        RayRequestRow(
            id=one.id,
            project=one.project,
            cluster=tick.cluster,
            kind=HELD,
            # Which placement groups are on the node is of no interest there.
            resources={
                name: amount
                for name, amount in one.worker_resources.items()
                if name not in shares_in(one.worker_resources)
            },
            count=1,
            since=one.created_at,
            reason="",
        )
        for one in programs.held.values()
    ]


def _is_news(before: RayRequestRow | None, after: RayRequestRow) -> bool:
    """More than amounts of money, and since when it is known to this controller, has changed."""
    if before is None:
        return True
    same = (before.count, before.is_refused, before.project) == (after.count, after.is_refused, after.project)
    return not same or is_news(before.reason, after.reason)


def _in_words(row: RayRequestRow) -> str:
    what = "a placement group" if row.strategy else "tasks and actors" if row.kind == "tasks" else row.kind
    return f"{what} ({row.count} of {describe(row.resources)})"
