"""Gang scheduling: places every job's workers, whole groups at once, on existing nodes, then on bought ones (pure)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from operator import attrgetter

from cluster.lazy_property import lazy
from cluster.policies.offerings import CapacityType, Offering
from cluster.policies.policies import BudgetStep, CapacityRule
from cluster.scheduling.actions import Launch
from cluster.scheduling.context import PlanningContext
from cluster.scheduling.domains import POOL_CHARACTERS, Domains
from cluster.scheduling.fitting import FABRIC_NODES, slots
from cluster.scheduling.formatting import count
from cluster.scheduling.free_capacity import Bin, Shape, Space, suits
from cluster.scheduling.purchases import Ask, Lot, Purchases, Quote, launch_of
from cluster.scheduling.quotas import Counting
from cluster.scheduling.view import JobDemand

#: Where workers of a job fit: bins with how many on each; lots that are bought, with their pool and their domain; and
#: what was bought for the rest, with how many workers are short.
Found = tuple[list[tuple[Bin, int]], list[tuple[str, Lot, str | None]], Quote]


@dataclass
class Packed:
    """The result of a packing."""

    space: Space
    launches: list[Launch] = field(default_factory=list)
    #: Why a job did not get all that it can use, by job id; without those in `behind`.
    reasons: dict[str, str] = field(default_factory=dict)
    #: Jobs that were not considered, and why: there may be many, so the reason is stored once.
    behind: list[JobDemand] = field(default_factory=list)
    why_behind: str = ""
    #: Jobs that wait behind those of the view could be given nodes as well.
    is_open: bool = False
    #: Jobs that have their smallest group on nodes of which some still start or are to be bought.
    starting: dict[str, int] = field(default_factory=dict)


class Packing:
    """One pass over all jobs: first the smallest groups, then what they can use beyond."""

    def __init__(
        self, context: PlanningContext, space: Space, purchases: Purchases, domains: Domains
    ) -> None:
        self._context = context
        self._space = space
        self._purchases = purchases
        self._domains = domains
        self._packed = Packed(space)
        view = context.view
        self._counting = Counting(context.policies, view.jobs, space.held, view.spent_by_project, context.now)
        #: Jobs that may not have their smallest group, however much capacity there is.
        self._refused: set[str] = set()
        #: By shape and domain: number of bins checked, those of them with capacity for a worker, and whether any suits.
        self._bins_with_space: dict[object, dict[str, tuple[int, list[Bin], bool]]] = {}

    def pack(self) -> Packed:
        """Place all jobs in the order of the queue."""
        jobs = self._wanting()
        jobs.sort(key=self._order_key if self._context.urgent else attrgetter("order_key"))
        packed, served = self._packed, list[JobDemand]()
        there, held = self._space.held, self._context.held
        # For those whose nodes this plan drains, nodes have been bought already: they are placed like all others.
        movers = {one: n for one, n in self._context.movers.items() if there.get(one, 0) == held.get(one, 0)}
        for at, job in enumerate(jobs):
            if packed.why_behind and not job.is_running:
                packed.behind = jobs[at:]  # what runs comes before what waits
                break
            if not job.is_running and (first := self._counting.ahead_of(job)) is not None:
                packed.reasons[job.id] = f"it waits in the queue behind {first} of its project"
            elif self._smallest_group(job):
                self._space.open(job, unused=False)
                served.append(job)
            elif self._blocks(job):
                packed.why_behind = f"it waits in the queue behind {job.id}, which waits for nodes"
            elif self._context.view.strict_order:
                self._space.open(
                    job, unused=True
                )  # it waits for something else than nodes, and others may have its own
        known = self._context.jobs
        last = [known[job_id] for job_id in self._context.view.cut_at if job_id in known]
        packed.is_open = not packed.why_behind and any(self._counting.ahead_of(one) is None for one in last)
        for job in served:
            self._beyond(job)
            self._space.open(job, unused=True)
        for job_id, workers in movers.items():
            self._off_spot(self._context.jobs[job_id], workers)
        return packed

    def _order_key(self, job: JobDemand) -> tuple[object, ...]:
        """Sort key: of equal priority, and where no queue has put them in order, urgent jobs come first."""
        *before, created_at, job_id = job.order_key
        return (*before, job.id not in self._context.urgent, created_at, job_id)

    def _wanting(self) -> list[JobDemand]:
        """All jobs but those that run with all the workers that they can use."""
        held, owners = self._space.held, self._space.owners
        return [
            job
            for job in self._context.view.jobs
            if not job.is_running or held.get(job.id, 0) < job.max_workers or job.id in owners
        ]

    def _limit(self, job: JobDemand, refusal: str) -> None:
        """Record that it may not have its smallest group; no job of its project overtakes it, other jobs may."""
        never = self._counting.never(job)
        self._packed.reasons[job.id] = refusal if never is None else never
        self._refused.add(job.id)
        is_of_project = never is None and not self._has_spent(job)
        waits_in_order = is_of_project and not job.is_running and self._context.view.strict_order
        if waits_in_order and self._purchases.could_ever(job):
            self._counting.wait(job)

    def _blocks(self, job: JobDemand) -> bool:
        """No job overtakes it: it waits for nodes, and not for its own project's quota or budget."""
        is_next = self._context.view.strict_order and job.id not in self._refused
        return is_next and self._purchases.could_ever(job)

    def _smallest_group(self, job: JobDemand) -> bool:
        """Place the job's smallest group, all of it or nothing."""
        wanted = job.min_workers - self._space.held.get(job.id, 0)
        if wanted <= 0:
            return True
        if self._has_spent(job):
            self._limit(job, "the job has spent its budget")
            return False
        if not job.is_running:  # what runs counts with its smallest group already
            allowed, refusal = self._counting.allowed(job, wanted)
            if allowed < wanted:
                self._limit(job, refusal)
                return False
            if (bar := self._counting.bar(job)) is not None and not self._space.own_of(job):
                self._limit(job, bar)  # it would use nodes that others pay for
                return False
        why = self._obtain_whole(job, wanted)
        if why is None:
            self._counting.count(job, job.min_workers)
        elif self._counting.bar(job) is not None:
            self._limit(job, why)
        else:
            self._packed.reasons[job.id] = why
        return why is None

    def _beyond(self, job: JobDemand) -> None:
        """Place the workers that the job can use beyond its smallest group, as many as fit."""
        wanted = job.max_workers - self._space.held.get(job.id, 0)
        if wanted <= 0:
            return
        money = self._context.money
        if money.reached(BudgetStep.SHRINK):
            self._packed.reasons[job.id] = f"the budget has reached {money.step}: {money.words}"
            return
        allowed, refusal = self._counting.allowed(job, wanted)
        if self._has_spent(job):
            allowed, refusal = 0, "the job has spent its budget"
        if allowed < wanted:
            self._packed.reasons[job.id] = refusal
        wanted = allowed
        mark, held = self._purchases.mark(), self._space.held.get(job.id, 0)
        shape = self._space.shape_of(job)
        found, lots, quote = self._look(job, shape, wanted)
        got = wanted - quote.workers_short
        short = _short(quote, wanted) if quote.workers_short else None
        # What is over cannot be used: no worker group of the job has such a size.
        while over := min(got, held + got - job.sizes.fit(held + got)):
            self._purchases.back(mark)
            wanted = got - over
            found, lots, quote = self._look(job, shape, wanted)
            got = wanted - quote.workers_short
        self._settle(job, found, lots, got)
        self._counting.count(job, self._space.held.get(job.id, 0))
        if short is not None:
            self._packed.reasons[job.id] = short

    def _off_spot(self, job: JobDemand, workers: int) -> None:
        """On-demand nodes for all workers that have to leave spot, or none; they move once the nodes are ready."""
        looked = None if self._has_spent(job) else self._look_on_demand(job, workers)
        if looked is not None:
            # It has no more workers for it at any time: they leave one place for the other.
            self._settle(job, looked[0], looked[1], workers, are_more=False)

    def _has_spent(self, job: JobDemand) -> bool:
        return job.budget_left is not None and job.budget_left <= 0

    def _buy(self, ask: Ask) -> Quote:
        bar = None if ask.job is None else self._counting.bar(ask.job)
        if bar is None:
            return self._purchases.buy(ask)
        quote = Quote(workers_short=ask.workers)
        quote.refuse(bar)
        return quote

    def _obtain_whole(self, job: JobDemand, wanted: int) -> str | None:
        """Place all these workers; returns why that is not possible, or None."""
        shape = self._space.shape_of(job)
        # Workers that it has, and nodes that were bought for it, may let it fit where others do not; a domain that it
        # is bound to may do the opposite.
        has_more = self._space.own_of(job) or self._space.held.get(job.id, 0)
        is_like_others = not has_more and job.placement.fabric is None
        if is_like_others and shape.failed:
            failed = shape.failed.get(self._failure_key(job, shape))
            if failed is not None and wanted >= failed[0]:
                return failed[1]
        mark = self._purchases.mark()
        found, lots, quote = self._look(job, shape, wanted)
        if quote.workers_short:
            self._purchases.back(mark)
            why = _short(quote, wanted)
            if is_like_others:
                shape.failed[self._failure_key(job, shape)] = (wanted, why)
            return why
        self._settle(job, found, lots, wanted)
        return None

    def _failure_key(self, job: JobDemand, shape: Shape) -> object:
        """What, beside its shape, decides what can be bought for a job."""
        waited_s = self._context.waited_s(job)
        policies = self._context.policies.pools
        patient = tuple(waited_s < policies[pool].patience_s for pool in shape.pools if pool in policies)
        hurry = (self._context.is_urgent(job), self._context.keeps_off_free_spot(job))
        return (patient, hurry, self._core(job), self._counting.bar(job))

    def _core(self, job: JobDemand) -> int:
        """On-demand nodes that the job is on, where that counts."""
        return self._space.on_demand_of(job) if job.placement.capacity is CapacityRule.MIXED else 0

    def _look(self, job: JobDemand, shape: Shape, wanted: int) -> Found:
        """Capacity on existing nodes, and what is bought for the rest: (bin, workers), (pool, lot, domain)."""
        if job.placement.needs_fabric:
            return self._look_in_domains(job, shape, wanted)
        is_urgent = self._context.is_urgent(job) and self._context.is_sold_on_demand(job, shape.pools)
        # It may still rely on spot that is ready when spot that is to be bought would come too late for that.
        if is_urgent and self._context.keeps_off_free_spot(job):
            safe = self._look_on_demand(job, wanted)
            if safe is not None:
                return safe
        found, short = self._space.find(job, shape, wanted)
        if short <= 0 and not (is_urgent and _is_any_starting(found)):
            return found, [], Quote()
        if is_urgent and (safe := self._look_on_demand(job, wanted)) is not None:
            return safe
        if short <= 0:
            return found, [], Quote()
        lots, quote = self._shop(job, shape.pools, short)
        if quote.workers_short and self._space.held.get(job.id, 0) < job.min_workers:
            # The job that is earlier in the queue is served first, also from nodes that were bought for those behind
            # it.
            kept = self._space.find_kept(job, shape, quote.workers_short)
            found = [*found, *kept]
            quote.workers_short -= sum(workers for _, workers in kept)
        return found, lots, quote

    def _look_on_demand(self, job: JobDemand, wanted: int) -> Found | None:
        """Capacity for all of it on on-demand nodes, as if the job had asked for them; or None."""
        safe = replace(job, placement=job.placement.on_demand)
        shape, mark = self._space.shape_of(safe), self._purchases.mark()
        found, short = self._space.find(safe, shape, wanted)
        if short <= 0:
            return found, [], Quote()
        lots, quote = self._shop(safe, shape.pools, short)
        if not quote.workers_short:
            return found, lots, quote
        self._purchases.back(mark)
        return None

    def _shop(
        self, job: JobDemand, pools: Iterable[str], short: int
    ) -> tuple[list[tuple[str, Lot, str | None]], Quote]:
        """Buy nodes in the first pool that can have all of them, else in several."""
        known = [pool for pool in pools if pool in self._context.policies.pools]
        for pool in known:
            mark = self._purchases.mark()
            quote = self._buy(self._ask(job, pool, short))
            if not quote.workers_short or len(known) == 1:
                return [(pool, lot, None) for lot in quote.lots], quote
            self._purchases.back(mark)
        lots: list[tuple[str, Lot, str | None]] = []
        total = Quote(workers_short=short)
        for pool in known:
            quote = self._buy(self._ask(job, pool, total.workers_short))
            lots.extend((pool, lot, None) for lot in quote.lots)
            total.workers_short = quote.workers_short
            total.reasons.update(quote.reasons)
            if not total.workers_short:
                break
        if not known:
            total.refuse(f"there is no pool {' or '.join(map(repr, pools))}" if pools else "there is no pool")
        return lots, total

    def _ask(self, job: JobDemand, pool: str, workers: int) -> Ask:
        return Ask(
            pool=pool, worker=job.worker_resources, workers=workers, job=job, on_demand=self._core(job)
        )

    def _look_in_domains(self, job: JobDemand, shape: Shape, wanted: int) -> Found:
        """As `_look`, within one fabric domain: the one it is in, else one that can hold it, else a new one."""
        held_in = self._space.held_in.get(job.id, set())
        if job.placement.fabric in self._space.domains:
            held_in = {job.placement.fabric}  # its workers are nowhere else, and start nowhere else
        short = Quote(workers_short=wanted)
        if len(held_in) > 1:
            short.refuse("its workers are in several fabric domains")
            return [], [], short
        best: Found = ([], [], short)
        for name in held_in or self._domains_for(job, shape, wanted):
            mark = self._purchases.mark()
            looked = self._look_in(name, job, shape, wanted)
            if not looked[2].workers_short or held_in:
                return looked
            self._purchases.back(mark)
            best[2].reasons.update(looked[2].reasons)
        if self._space.held.get(job.id, 0):
            short.refuse("its workers are on nodes without InfiniBand")
            return best
        return self._new_domain(job, shape, wanted, short)

    def _domains_for(self, job: JobDemand, shape: Shape, wanted: int) -> list[str]:
        """Domains that it may use, in the order in which admission takes them: its own, then the best fit."""
        own = [bin_.fabric for bin_ in self._space.own_of(job) if bin_.fabric is not None]
        free: dict[str, int] = {}
        known = self._bins_with_space.setdefault(job.shape, {})
        for name, bins in self._space.domains.items():
            # A bin that has no capacity for one worker never has it again within a plan.
            seen, with_space, is_suited = known.get(name, (0, [], False))
            new = [bin_ for bin_ in bins[seen:] if suits(job, shape.pools, bin_)]
            counts = [
                (bin_, number) for bin_ in (*with_space, *new) if (number := slots(bin_.free, shape.worker))
            ]
            is_suited = is_suited or bool(new)
            known[name] = (len(bins), [bin_ for bin_, _ in counts], is_suited)
            if is_suited:
                free[name] = sum(number for bin_, number in counts if not bin_.is_kept)
        rest = sorted(
            free, key=lambda name: (free[name] < wanted, -min(free[name], job.max_workers), free[name])
        )
        return list(dict.fromkeys([*own, *rest]))

    def _look_in(self, name: str, job: JobDemand, shape: Shape, wanted: int) -> Found:
        bins = self._space.domains[name]
        found: list[tuple[Bin, int]] = []
        left = wanted
        own = self._space.own_of(job)
        for bin_ in sorted(bins, key=lambda one: one not in own):
            is_open = not bin_.is_kept or bin_ in own
            workers = slots(bin_.free, shape.worker) if is_open and suits(job, shape.pools, bin_) else 0
            if left > 0 and workers > 0:
                found.append((bin_, min(workers, left)))
                left -= found[-1][1]
        if left <= 0:
            return found, [], Quote()
        offering = bins[0].offering
        quote = Quote(workers_short=left)
        if offering is not None and bins[0].pool in self._context.policies.pools:
            nodes = self._domains.nodes_left(name)
            ask = self._ask(job, bins[0].pool, left)._replace(offering=offering.id, nodes=nodes)
            quote = self._buy(ask)
        return found, [(bins[0].pool, lot, name) for lot in quote.lots], quote

    def _new_domain(self, job: JobDemand, shape: Shape, wanted: int, short: Quote) -> Found:
        """All of one offering, as a domain cannot be mixed."""
        for pool in shape.pools:
            for offering in self._with_fabric(pool, job):
                mark = self._purchases.mark()
                ask = self._ask(job, pool, wanted)._replace(offering=offering.id, nodes=FABRIC_NODES)
                quote = self._buy(ask)
                if not quote.workers_short:
                    name = self._new_name(pool, job, offering)
                    return [], [(pool, lot, name) for lot in quote.lots], quote
                self._purchases.back(mark)
                short.reasons.update(quote.reasons)
        if not short.reasons:
            short.refuse("no pool that it may use is sold nodes with InfiniBand")
        return [], [], short

    def _with_fabric(self, pool: str, job: JobDemand) -> list[Offering]:
        """The pool's offerings with InfiniBand, in the order in which other nodes are bought."""
        if pool not in self._context.policies.pools:
            return []
        order = (CapacityType.SPOT, CapacityType.ON_DEMAND)
        if self._context.is_urgent(job):
            order = (CapacityType.ON_DEMAND, CapacityType.SPOT)
        return [one for capacity in order for one in self._context.sold(pool, capacity) if one.has_fabric]

    def _new_name(self, pool: str, job: JobDemand, offering: Offering) -> str:
        """A name for a domain; it becomes a label of Ray nodes, which has 63 characters at most.

        Where the last nodes of a domain go, those that replace them are of it, unless they are of another offering.
        """
        name = f"{pool[:POOL_CHARACTERS]}-{job.id}"
        at, candidate = 1, name
        while candidate in self._space.domains or self._offerings_in[candidate] - {offering.id}:
            at += 1
            candidate = f"{name}-{at}"
        return candidate

    @lazy
    def _offerings_in(self) -> Mapping[str, set[str]]:
        """The offerings of the nodes of each domain, including nodes that leave or left lately."""
        found: defaultdict[str, set[str]] = defaultdict(set)
        for node in self._context.view.nodes:
            if node.fabric is not None:
                found[node.fabric].add(node.offering)
        return found

    def _settle(
        self,
        job: JobDemand,
        found: list[tuple[Bin, int]],
        lots: list[tuple[str, Lot, str | None]],
        workers: int,
        *,
        are_more: bool = True,
    ) -> None:
        """Place the workers on what was found and bought; with `are_more` they are added, else they move there."""

        def put(bin_: Bin, number: int) -> None:
            if are_more:
                self._space.put(job, bin_, number)
            else:
                bin_.put(job.worker_resources, number)

        for bin_, number in found:
            put(bin_, number)
            workers -= number
            if bin_.node is None or not bin_.node.is_member:
                self._packed.starting[job.id] = self._packed.starting.get(job.id, 0) + 1
        for pool, lot, fabric in lots:
            reason = f"job {job.id} has no capacity for all its workers"
            if job.is_program:
                reason = f"Ray programs lack capacity for {job.id}"
            launch = launch_of(pool, lot, reason, fabric, job.id)
            for _ in range(lot.nodes):
                bin_ = self._space.buy(pool, lot.offering, fabric)
                number = min(workers, slots(bin_.free, job.worker_resources))
                put(bin_, number)
                workers -= number
                if not lot.is_held:
                    self._packed.launches.append(launch)
                if fabric is not None:
                    self._domains.add(fabric)


def _is_any_starting(found: list[tuple[Bin, int]]) -> bool:
    return any(bin_.node is None or not bin_.node.is_member for bin_, _ in found)


def _short(quote: Quote, short: int) -> str:
    missing = quote.workers_short
    have = f"capacity for {short - missing} of " if short > missing else "no capacity for "
    return f"there is {have}{count(short, 'worker')}: {quote.words}"
