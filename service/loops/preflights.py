"""Has nodes measured that have joined, and gives them work or drains them by what is found.

The row says that a node is measured before the node is asked.  What is under way ends with the controller that asked
for it: the next one finds nodes that have joined and were not judged, and has them measured again.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import sqlalchemy as sa

from remora.process_log import about
from remora.states import NodeState
from service.interfaces import Member, Preflights
from service.loops.tick import Tick
from service.queue import lifecycle
from service.queue.preflight_neighbours import Candidate, pairs
from service.queue.preflights import (
    NEIGHBOUR_S,
    Link,
    Preflight,
    PreflightLimits,
    Verdict,
    clean,
    may_ask,
    read_link,
    read_measured,
    result_of,
    to_measure,
    verdict,
)
from service.queue.rows import NodeRow
from service.store import nodes as store
from trainers.preflight.answers import LinkAnswer, OwnAnswer

log = logging.getLogger(__name__)

#: Seconds that the measurement with a neighbour may take, at most.
LINK_S = 60.0


class PreflightWatch:
    """The measurements that this controller has begun; one thread calls it."""

    def __init__(self) -> None:
        self._under_way: dict[str, Preflight] = {}
        #: Pairs that are being measured, by each of their nodes.
        self._links: dict[str, tuple[str, str]] = {}
        #: Since when each of these nodes was idle as that began; None: it was new.
        self._idle_since: dict[str, float | None] = {}
        #: What the nodes are asked through; what was asked through another one is lost.
        self._asked: Preflights | None = None

    def look(self, tick: Tick, preflights: Preflights | None, members: Mapping[str, Member]) -> None:
        """Take answers, judge the nodes that are known well enough, and have others measured.  Raises Fenced."""
        if not tick.settings.measures_nodes or preflights is None:
            return
        if preflights is not self._asked:
            self._under_way, self._links, self._asked = {}, {}, preflights
        rows = tick.load(partial(store.current_nodes, cluster=tick.cluster, ended_since=tick.now))
        alive = {name: one.is_alive and not one.is_draining for name, one in members.items()}
        # 1. Which nodes have to be measured, and what is known of them by now.
        new = {row.id: row for row in to_measure(rows, alive)}
        ready = [row for row in rows if row.state is NodeState.READY and alive.get(row.id, False)]
        self._forget_others(preflights, new)
        idle_since: dict[str, float | None] = {
            row.id: row.idle_since for row in ready if row.idle_since is not None
        }
        idle_since |= dict.fromkeys(new)
        for answer in preflights.answers():
            if isinstance(answer, LinkAnswer):
                self._take_link(answer, idle_since, tick.now)
            else:
                self._take(answer, tick.now)
        # 2. Rows first: a node is asked only once it is written down that it is measured.
        for row in [row for row in new.values() if row.id not in self._under_way]:
            new[row.id] = _save(tick, row, lifecycle.begin_preflight(row, tick.now))
            self._under_way[row.id] = Preflight(begun_at=tick.now)
        # 3. Ask.
        tick.check()
        # A measurement disturbs nothing there.
        self._ask(tick, preflights, new, [row for row in ready if row.idle_since is not None])
        # 4. Judge.
        self._judge(tick, new, ready)

    def _forget_others(self, preflights: Preflights, new: Mapping[str, NodeRow]) -> None:
        preflights.keep_only(new.keys())
        self._under_way = {name: one for name, one in self._under_way.items() if name in new}
        ended = {pair for pair in self._links.values() if not set(pair) & new.keys()}
        self._links = {name: pair for name, pair in self._links.items() if pair not in ended}
        self._idle_since = {name: since for name, since in self._idle_since.items() if name in self._links}

    def _take_link(self, answer: LinkAnswer, idle_since: Mapping[str, float | None], now: float) -> None:
        """`idle_since`: of nodes that are idle, and None of new ones."""
        worked = [one for one in answer.pair if idle_since.get(one, now) != self._idle_since.pop(one, None)]
        for node_id, other in (answer.pair, answer.pair[::-1]):
            self._links.pop(node_id, None)
            if (one := self._under_way.get(node_id)) is not None:
                link = read_link(other, answer.mb_per_s, answer.why)
                if worked:
                    # What a job exchanges at the same time makes a good link slow.
                    link = Link(other, None, f"{worked[0]} was given work, or left, meanwhile")
                self._under_way[node_id] = replace(one, links=(*one.links, link), known_at=now)

    def _take(self, answer: OwnAnswer, now: float) -> None:
        one = self._under_way.get(answer.node_id)
        if one is None:
            return
        why = clean(answer.why or "it answered nothing")
        if answer.lacks_preflight:
            self._under_way[answer.node_id] = replace(one, lacks_preflight=True, why=why)
            return
        if answer.text is not None:
            try:
                measured = read_measured(answer.text)
            except ValueError as error:
                why = str(error)
            else:
                self._under_way[answer.node_id] = replace(one, measured=measured, known_at=now)
                return
        log.warning(
            "the preflight of node %s is repeated: %s", answer.node_id, why, extra=about(node=answer.node_id)
        )
        self._under_way[answer.node_id] = replace(one, tries=one.tries + 1, why=why, ended_at=now)

    def _ask(
        self, tick: Tick, preflights: Preflights, new: Mapping[str, NodeRow], idle: Sequence[NodeRow]
    ) -> None:
        limit_s = tick.settings.preflight_s
        own = [node_id for node_id, one in self._under_way.items() if may_ask(one, tick.now)]
        preflights.measure([one for one in own if self._verdict(tick, new[one]) is None], limit_s)
        waiting = [
            self._candidate(row)
            for row in new.values()
            if self._under_way[row.id].measured is not None
            and row.id not in self._links
            and self._verdict(tick, row) is None
        ]
        free = [Candidate(row.id, row.pool) for row in idle if row.id not in self._links]
        by_id = {row.id: row for row in (*idle, *new.values())}
        backends = {}
        for pair in pairs(waiting, free):
            has_gpus = all(by_id[node_id].resources.get("GPU", 0.0) > 0 for node_id in pair)
            backends[pair] = "nccl" if has_gpus else "gloo"
        for pair in preflights.link(backends, min(LINK_S, limit_s)):
            self._links |= dict.fromkeys(pair, pair)
            self._idle_since |= {node_id: by_id[node_id].idle_since for node_id in pair}

    def _candidate(self, row: NodeRow) -> Candidate:
        one = self._under_way[row.id]
        return Candidate(
            row.id, row.pool, one.tried, is_slow=any(link.mb_per_s is not None for link in one.links)
        )

    def _verdict(self, tick: Tick, row: NodeRow, *, may_link: bool = True) -> Verdict | None:
        limits = PreflightLimits(limit_s=tick.settings.preflight_s, mb_per_s=tick.settings.preflight_mb_per_s)
        return verdict(
            self._under_way[row.id],
            row.resources,
            limits,
            tick.now,
            is_linking=row.id in self._links,
            may_link=may_link,
        )

    def _judge(self, tick: Tick, new: Mapping[str, NodeRow], ready: Sequence[NodeRow]) -> None:
        lately = tick.now - NEIGHBOUR_S
        # What has just become ready is not known to be idle yet.
        others = [one for one in ready if one.idle_since is not None or (one.ready_at or 0.0) > lately]
        of_pool: dict[str, list[str]] = {}
        for other in (*new.values(), *others):
            of_pool.setdefault(other.pool, []).append(other.id)
        for row in new.values():
            tried = {row.id} | self._under_way[row.id].tried
            # Of one more than were tried at least one was not.
            may_link = any(other not in tried for other in of_pool[row.pool][: len(tried) + 1])
            found = self._verdict(tick, row, may_link=may_link)
            if found is not None:
                self._write_down(tick, row, found)

    def _write_down(self, tick: Tick, row: NodeRow, found: Verdict) -> None:
        result = result_of(self._under_way[row.id])
        if found.has_passed:
            _save(tick, row, lifecycle.pass_preflight(row, result, found.message, tick.now))
            log.info("node %s has passed its preflight: %s", row.id, found.message, extra=about(node=row.id))
        elif (decision := lifecycle.fail_preflight(row, result, found.message, tick.now)) is not None:
            _save(tick, row, decision)
            log.warning(
                "node %s has failed its preflight: %s", row.id, found.message, extra=about(node=row.id)
            )


def _save(tick: Tick, before: NodeRow, decision: lifecycle.NodeDecision) -> NodeRow:
    def work(connection: sa.Connection) -> NodeRow:
        return store.save_node(connection, before, decision)

    return tick.apply(work)
