"""Decides which waiting jobs start now, and why the others wait (pure).

A job starts when its smallest worker group fits on free resources.  What an attempt may grow to is kept for it, because
elastic groups grow into free nodes and are not shrunk for others.  The queue order is strict: no job overtakes one that
could start once nodes come or others end, so that large jobs are not starved.  A job that can never fit, or whose
project's quota keeps it from starting, does not block the jobs behind it.

A job that asks for InfiniBand is bound to one fabric domain when it starts, and grows nowhere else.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from cluster.policies.offerings import CapacityType
from cluster.policies.placement import Placement
from cluster.policies.policies import CapacityRule
from cluster.scheduling.actions import StartJob, Wait, WaitsFor
from cluster.scheduling.allocating import allocate, allocate_beside_kept, allowed_nodes, free_beside
from cluster.scheduling.fitting import NODE_SHARE, Resources, shares_in
from cluster.scheduling.free_later import NO_ENDS, Ends, enough_at, in_words
from cluster.scheduling.placing import Allocation, beside
from cluster.scheduling.pool_sizes import PoolSize, most_in_all
from cluster.scheduling.queue_order import WAITS_FOR_NODES, WAITS_IN_QUEUE
from cluster.scheduling.quotas import Counting
from cluster.scheduling.slack import keeps_off_spot
from cluster.scheduling.view import COMING, JobDemand, NodeView
from remora.spec.worker_sizes import WorkerSizes

#: Of a job for which no placement is looked for.
_NO_ALLOCATION = Allocation()


def starts(
    queue: Sequence[JobDemand],
    running: Iterable[JobDemand],
    nodes: Sequence[NodeView],
    pools: Sequence[PoolSize],
    *,
    counting: Counting | None = None,
    off_spot: Container[str] = (),
    kept: Mapping[str, str] = MappingProxyType({}),
    ends: Ends = NO_ENDS,
    explains_waits: bool = True,
) -> tuple[StartJob | Wait, ...]:
    """Decide about `queue`, which is in queue order and holds only jobs that may start now, on nodes that are ready.

    `running` are the jobs that may still grow there, and those with workers on nodes that do not say what is free.
    `pools` are the complete ones.  `counting` has counted what running jobs use of the quotas of their projects; None:
    there are none.  Those in `off_spot` (ids) start on nodes that the cloud does not take back: a deadline is near.
    `kept` says by node id for which job a node is kept (`cluster.scheduling.keeping`): no other group grows onto it.
    `ends` says when running jobs are expected to end: the reason of the job that is next says when enough may be
    free.
    With `explains_waits` false the reasons why jobs wait behind others are left out, as no one reads them.
    """
    running = tuple(running)
    free = free_beside(running, nodes, kept)
    own = {node.bought_for for node in nodes}
    decided: list[StartJob | Wait] = []
    is_any_waiting = False
    for job in queue:
        is_off_spot = job.id in off_spot
        safe = job.placement.on_demand if is_off_spot else job.placement
        allowed = allowed_nodes(nodes, safe)
        # Behind a job that waits nothing starts, so that whether it fits now matters only where no pool can hold it.
        never = why_never(job, pools) if is_any_waiting else None
        allocation, fits = _NO_ALLOCATION, False
        if not is_any_waiting or never is not None:
            allocation = allocate_beside_kept(kept, job, nodes, free, allowed)
            fits = allocation.workers >= job.min_workers
        # Nodes that are there may be larger than what is bought now.
        if not is_any_waiting and not fits:
            never = why_never(job, pools)
        if not fits and never is not None:
            decided.append(_wait(job, WaitsFor.NODES, never, is_hopeless=True))
            continue
        if counting is not None and (wait := _quota_wait(counting, job, is_own=job.id in own)) is not None:
            decided.append(wait)
            continue
        if not is_any_waiting and fits:
            decided.append(
                StartJob(
                    job_id=job.id,
                    fabric=allocation.fabric,
                    on_demand=is_off_spot,
                    workers=tuple((nodes[at].id, count) for at, count in allocation.places),
                )
            )
            if counting is not None:
                # It counts with all that it may use until its driver has reported its workers.
                counting.count(job, job.max_workers)
            free = beside(free, allocation.places, job.worker_resources)
            continue
        if counting is not None and (why := _without_money(counting, job)) is not None:
            decided.append(_wait(job, WaitsFor.QUOTA, why))
            continue
        if not explains_waits:
            break  # no job starts behind one that waits
        if is_any_waiting:
            # How many are ahead changes with every start: it is counted when the message is read.
            decided.append(_wait(job, WaitsFor.TURN, WAITS_IN_QUEUE))
        else:
            wait = _first_wait(job, safe, nodes, allowed, allocation.workers)
            # What starts now is on no node yet: the next decision counts it.
            if wait.waits_for is WaitsFor.TURN and not any(isinstance(one, StartJob) for one in decided):
                when = enough_at(job, running, nodes, kept, allowed, ends)
                wait = replace(wait, reason=wait.reason + in_words(when, ends.now))
            decided.append(wait)
        is_any_waiting = True
    return tuple(decided)


def blocked_owners(
    queue: Iterable[JobDemand], owners: Collection[str], pools: Sequence[PoolSize], counting: Counting | None
) -> frozenset[str]:
    """Those of the owners, by id, that could not start now on any node; `queue` is in queue order.

    No pool could ever hold them, or their project's quota keeps them from starting, if no other job starts before.
    Owners are jobs that nodes were bought for; `counting` is used up.
    """
    found: set[str] = set()
    for job in queue:
        # All are asked about, as a job that waits for a quota holds up those of its project that are behind it.
        is_refused = counting is not None and _quota_wait(counting, job, is_own=job.id in owners) is not None
        if job.id in owners and (is_refused or why_never(job, pools) is not None):
            found.add(job.id)
    return frozenset(found)


def jobs_off_spot(
    waiting: Iterable[JobDemand],
    nodes: Iterable[NodeView],
    pools: Sequence[PoolSize],
    now: float,
    start_up_s: float,
) -> frozenset[str]:
    """The waiting jobs that do not start on spot nodes now, by id: their deadline is near.

    `nodes` are at least those that are coming.
    """
    with_deadline = [job for job in waiting if job.deadline_at is not None]
    if not with_deadline:
        return frozenset()
    coming = {
        node.bought_for for node in nodes if node.state in COMING and node.capacity is CapacityType.ON_DEMAND
    }
    return frozenset(
        job.id
        for job in with_deadline
        if keeps_off_spot(job, now, start_up_s, is_coming=job.id in coming)
        and _has_on_demand(job.placement, pools)
    )


def _has_on_demand(placement: Placement, pools: Sequence[PoolSize]) -> bool:
    """The job and its pools do not exclude on-demand nodes."""
    return placement.capacity is not CapacityRule.SPOT and any(
        CapacityType.ON_DEMAND in pool.capacities and pool.may_hold(placement.on_demand) for pool in pools
    )


def _wait(job: JobDemand, waits_for: WaitsFor, reason: str, *, is_hopeless: bool = False) -> Wait:
    return Wait(job_id=job.id, reason=reason, waits_for=waits_for, is_hopeless=is_hopeless)


def _quota_wait(counting: Counting, job: JobDemand, *, is_own: bool) -> Wait | None:
    """Why the quota of its project keeps the job's smallest group from starting, whatever is free; or None.

    Nodes that were bought for it (`is_own`) are paid for by its project; other free nodes are paid for by others.
    """
    if (never := counting.never(job)) is not None:
        return _wait(job, WaitsFor.QUOTA, never, is_hopeless=True)
    if counting.ahead_of(job) is not None:
        # Without the name of that job: it would change the message of all of them whenever one starts.
        return _wait(job, WaitsFor.QUOTA, "waits in the queue behind another job of its project")
    allowed, why = counting.allowed(job, job.min_workers)
    if allowed < job.min_workers:
        counting.wait(job)
        return _wait(job, WaitsFor.QUOTA, f"waits for the quota of its project: {why}")
    if is_own or (refusal := _without_money(counting, job)) is None:
        return None
    return _wait(job, WaitsFor.QUOTA, refusal)


def _without_money(counting: Counting, job: JobDemand) -> str | None:
    """Why nothing is bought for a job that does not fit, or None: then it waits for nodes like any other."""
    why = counting.bar(job)
    if why is None:
        return None
    counting.wait(job)
    return f"waits for the quota of its project: {why}"


def _first_wait(
    job: JobDemand,
    placement: Placement,
    nodes: Sequence[NodeView],
    allowed: Sequence[bool] | None,
    found: int,
) -> Wait:
    """Why the next job waits, where capacity for `found` of its workers is free."""
    everything = [node.resources for node in nodes]
    together = _together(placement)
    least = WorkerSizes(job.min_workers, job.min_workers)
    possible = allocate(job, least, nodes, everything, allowed).workers
    if possible < least.min:
        count = len(nodes) if allowed is None else sum(allowed)
        ready = " ".join(word for word in (f"the {count} ready nodes", placement.in_words()) if word)
        why = f"{WAITS_FOR_NODES} it needs {_group(job)}{together} and {ready} have capacity for {possible}"
        return _wait(job, WaitsFor.NODES, why)
    return _wait(
        job,
        WaitsFor.TURN,
        f"is next: it needs {_group(job)}{together} and other jobs leave capacity for {found}",
    )


def _together(placement: Placement) -> str:
    return " in one fabric domain" if placement.needs_fabric else ""


def why_never(job: JobDemand, pools: Sequence[PoolSize]) -> str | None:
    """Why the job could not start even if every pool were complete and empty, or None."""
    worker, placement = job.worker_resources, job.placement
    if refusal := _nowhere(placement, pools):
        return refusal
    most = most_in_all(pools, worker, placement)
    if most >= job.min_workers:
        return None
    if most == 0:
        joined = "that InfiniBand joins " if placement.needs_fabric else ""
        return (
            f"no node of the pools {joined}has {describe(worker)} for a worker: "
            "ask for less in `resources`, or add larger nodes"
        )
    return (
        f"it needs {_group(job)}{_together(placement)} and the complete pools have capacity for {most}: "
        "lower `workers.min` or `resources`, or add nodes"
    )


def _nowhere(placement: Placement, pools: Sequence[PoolSize]) -> str | None:
    """Why no pool has nodes that the job accepts, whatever their resources, or None."""
    if placement.is_anywhere or any(pool.may_hold(placement) for pool in pools):
        return None
    names = ", ".join(pool.name for pool in pools) or "none"
    unknown = [name for name in placement.pools if name not in {pool.name for pool in pools}]
    if placement.pools and len(unknown) == len(placement.pools):
        return f"there is no pool {' or '.join(unknown)}: change `placement.pools`; the pools are {names}"
    if placement.needs_fabric and not any(pool.with_fabric for pool in pools):
        return (
            "no pool buys machines that InfiniBand joins: leave `placement.fabric` out, or have a size with InfiniBand"
            f" added to a pool; the pools are {names}"
        )
    return f"no pool has nodes {placement.in_words()}: change `placement`; the pools are {names}"


def _group(job: JobDemand) -> str:
    least = job.min_workers
    workers = "1 worker" if least == 1 else f"{least} workers"
    return f"{workers} of {describe(job.worker_resources)}"


def describe(resources: Resources) -> str:
    """The resources for people: `2 CPU, 1 GPU, 4.0 GiB memory`."""
    parts = []
    for name, amount in sorted(resources.items()):
        if amount <= 0 or name.startswith(NODE_SHARE):
            continue
        parts.append(f"{amount / 2**30:.1f} GiB memory" if name == "memory" else f"{amount:g} {name}")
    shares = shares_in(resources).values()
    return ", ".join(parts or ["nothing"]) + "".join(
        f", at most {round(1 / one)} on a node" for one in shares
    )
