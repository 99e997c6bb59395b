"""Loads which nodes are kept for which job, and sends that to drivers, whose groups then do not grow onto them."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import sqlalchemy as sa

from service.loops.live_attempts import JobAttempt, LiveAttempts
from service.loops.ports import Launcher
from service.loops.tick import Tick
from service.queue.admission import PoolSize, blocked_owners
from service.queue.demand import workers_by_node
from service.queue.node_owners import kept_for, owners_of
from service.queue.quotas import Quotas
from service.queue.rows import JobRow, NodeRow
from service.store import jobs as store

log = logging.getLogger(__name__)


def load_kept_nodes(
    connection: sa.Connection,
    nodes: Sequence[NodeRow],
    queue: Sequence[JobRow],
    live: Sequence[JobAttempt],
    pools: Sequence[PoolSize],
    quotas: Quotas | None,
    now: float,
    start_up_s: float,
) -> Mapping[str, str]:
    """The job that each node is kept for, by node id; `queue` are the jobs to decide about, next one first."""
    busy = workers_by_node(nodes, [attempt for _, attempt in live])
    owners = owners_of(nodes, busy)
    if not owners:
        return {}
    running = [pair for pair in live if pair[0].id in owners]
    others = owners - {job.id for job, _ in running}
    # Those that back off, or of which something may still run, may not start yet.
    waiting = store.queued_among(connection, others) if others else []
    refused = blocked_owners(queue, owners, pools, quotas)
    waiting = [job for job in waiting if job.id not in refused]
    return kept_for(nodes, busy, waiting, running, now, start_up_s)


def send_kept_nodes(tick: Tick, live: LiveAttempts, launcher: Launcher, kept: Mapping[str, str]) -> None:
    """Send drivers which nodes are kept for which jobs; drivers of groups that may grow get all of it.  Raises Fenced.

    A group of one possible size starts on its own nodes and does not grow, so its driver gets only those.
    """
    tick.check()
    own: dict[str, dict[str, str]] = {}
    for node_id, job_id in kept.items():
        own.setdefault(job_id, {})[node_id] = job_id
    for job, attempt in live.pairs():
        if attempt.launched_at is None:
            continue
        concerns = kept if job.sizes.min < job.sizes.max else own.get(job.id, {})
        try:
            launcher.keep(attempt.id, concerns, tick.lease.token)
        except Exception as error:
            log.warning("drivers did not get the list of kept nodes: %s", error)
            return
