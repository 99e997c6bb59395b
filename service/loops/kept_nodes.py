"""Loads which nodes are kept for which job, and sends that to drivers, whose groups then do not grow onto them."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import sqlalchemy as sa

from cluster.scheduling.keeping import kept_nodes, owners_of
from cluster.scheduling.quotas import Counting
from cluster.scheduling.starts import blocked_owners
from cluster.scheduling.view import NodeView
from service.interfaces import Launcher
from service.loops.attempt_traces import about_attempt
from service.loops.live_attempts import LiveAttempts
from service.loops.tick import Tick
from service.loops.workload import Workload
from service.queue.demand import demand_of
from service.store import jobs as store
from trainers.driver.nominations import NO_JOB

log = logging.getLogger(__name__)


def load_kept_nodes(
    connection: sa.Connection,
    nodes: Sequence[NodeView],
    workload: Workload,
    counting: Counting | None,
) -> Mapping[str, str]:
    """The job that each node is kept for, by node id; `counting` has what the running jobs use, and is used up."""
    owners = owners_of(nodes)
    if not owners:
        return {}
    now = workload.now
    running = [one for one in workload.demands_of_running if one.id in owners]
    others = owners - {one.id for one in running}
    # Those that back off, or of which something may still run, may not start yet.
    rows = store.queued_among(connection, others) if others else []
    refused = blocked_owners(workload.waiting, owners, workload.pools, counting)
    waiting = [demand_of(row, None, None, now) for row in rows if row.id not in refused]
    jobs = {one.id: one for one in (*waiting, *running, *workload.programs)}
    return kept_nodes(nodes, jobs, now, workload.start_up_s)


def send_kept_nodes(tick: Tick, live: LiveAttempts, launcher: Launcher, kept: Mapping[str, str]) -> None:
    """Send drivers which nodes are kept for which jobs; drivers of groups that may grow get all of it.  Raises Fenced.

    A group of one possible size starts on its own nodes and does not grow, so its driver gets only those, and nodes
    that are kept for no job, on which no group may start.
    """
    tick.check()
    own: dict[str, dict[str, str]] = {}
    for node_id, job_id in kept.items():
        own.setdefault(job_id, {})[node_id] = job_id
    for job, attempt in live.pairs():
        if attempt.launched_at is None:
            continue
        concerns = kept
        if job.facts.sizes.min == job.facts.sizes.max:
            concerns = {**own.get(job.id, {}), **own.get(NO_JOB, {})}
        try:
            launcher.keep(attempt.id, concerns, tick.lease.token)
        except Exception as error:
            # Its fault alone: what has the name of its driver may be none.
            log.warning(
                "the driver of attempt %s did not get the list of kept nodes: %s",
                attempt.id,
                error,
                extra=about_attempt(job, attempt, tick.settings),
            )
