"""What Ray programs that are no jobs ask for and hold, as the demands that every decision is made from (pure).

Ray says which tasks, actors and placement groups have no place, what programs asked to have at least, and what they
hold on each node (`cluster.ray.programs`).  All of it becomes `JobDemand`s of one project: what waits is bought for
like a job that waits, and what programs hold of a node is a job with one worker on it.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from cluster.policies.offerings import Offering
from cluster.policies.placement import CAPACITY_LABEL, POOL_LABEL, ZONE_LABEL, Placement, bought_by
from cluster.policies.policies import CapacityRule, Policies, RayProgramsPolicy
from cluster.scheduling.fitting import NODE_SHARE, Resources, at_most, slots, take
from cluster.scheduling.pool_sizes import PoolSize, most_in_all
from cluster.scheduling.quotas import never_allowed
from cluster.scheduling.shares import has_shares
from cluster.scheduling.starts import describe
from cluster.scheduling.view import JOINED, JobDemand, NodeView
from remora.spec.worker_sizes import WorkerSizes

#: Seconds for which a request is seen before it counts, with the fewest that were seen meanwhile: what Ray says of
#: requests and of nodes comes from different machines, and just after a task began both may name it.
SETTLED_S = 2.0


#: Requests that are decided about at a time, the oldest first; others wait until these have what they ask for.
MOST = 200
#: Demands that one request is at most where projects have shares; all requests together are at most `MOST`.
_PARTS = 32
#: Bundles of all placement groups that are looked at together.
MOST_BUNDLES = 10_000
#: Different shapes of tasks, and of placement groups, that are looked at together.
_MOST_SHAPES = 1000
#: Things that programs hold and wait for against which a minimum is counted.
_MOST_COVERED = 2000


class Kind(StrEnum):
    """What asks."""

    #: Tasks and actors without a place, each for itself.
    TASKS = "tasks"
    #: Bundles of a placement group, all or none.
    PLACEMENT_GROUP = "placement_group"
    #: What `ray.autoscaler.sdk.request_resources` wants the cluster to have, in use or not.
    MINIMUM = "minimum"


class Strategy(StrEnum):
    """How the bundles of a placement group are spread over nodes."""

    PACK = "PACK"
    SPREAD = "SPREAD"
    STRICT_PACK = "STRICT_PACK"
    STRICT_SPREAD = "STRICT_SPREAD"


@dataclass(frozen=True)
class LabelTerm:
    """A label of a node has one of the values, or none of them."""

    key: str
    values: tuple[str, ...]
    is_in: bool = True

    def accepts(self, value: str | None) -> bool:
        """A node with this value of the label, None for none, will do."""
        return (value in self.values) is self.is_in

    def __str__(self) -> str:
        """`label accelerator in (A100)`."""
        return f"label {self.key} {'in' if self.is_in else 'not in'} ({', '.join(self.values)})"


@dataclass(frozen=True)
class Bundle:
    """Resources that have to be on one node."""

    resources: Resources
    #: Labels that the node has to have: one of these alternatives, the first is preferred; empty: any node.
    selectors: tuple[tuple[LabelTerm, ...], ...] = ()

    @property
    def shape(self) -> tuple[object, ...]:
        """Equal for equal bundles."""
        return (*sorted(self.resources.items()), self.selectors)

    @property
    def text(self) -> str:
        """The same as text."""
        labels = [[str(term) for term in terms] for terms in self.selectors]
        return json.dumps([sorted(self.resources.items()), labels])


@dataclass(frozen=True)
class Gang:
    """A placement group that waits: those of its bundles that have no node."""

    id: str
    strategy: Strategy
    bundles: tuple[Bundle, ...]


@dataclass(frozen=True, kw_only=True)
class RayDemand:
    """What the programs of a Ray cluster ask for and hold, at one moment."""

    tasks: tuple[tuple[Bundle, int], ...] = ()
    gangs: tuple[Gang, ...] = ()
    minimum: tuple[tuple[Bundle, int], ...] = ()
    #: What programs hold, by our node ids; a node on which they hold nothing that is counted, but run, has {}.
    held: Mapping[str, Resources] = field(default_factory=dict)
    #: Placement groups, by id, of which a node has a bundle.
    gangs_on: Mapping[str, frozenset[str]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ProgramRequest:
    """One shape that programs ask for, and how many of it."""

    id: str
    kind: Kind
    count: int
    bundle: Bundle
    #: Of a placement group.
    strategy: Strategy | None = None
    gang: str = ""
    #: Since when it has been asked for, seconds since 1970.
    since: float = 0.0

    @property
    def resources(self) -> Resources:
        """Of one of them, with the share of a node that it needs for itself."""
        if self.strategy is Strategy.STRICT_SPREAD:
            return at_most(self.bundle.resources, self.gang, 1)
        return self.bundle.resources

    @property
    def sizes(self) -> WorkerSizes:
        """How many of them are of use at once."""
        is_whole = self.kind is Kind.PLACEMENT_GROUP
        return WorkerSizes(self.count if is_whole else 1, self.count)

    @property
    def in_words(self) -> str:
        """`a placement group (STRICT_SPREAD): 2 bundles of 1 CPU`, for people."""
        number = f"{self.count} of {describe(self.bundle.resources)}"
        match self.kind:
            case Kind.TASKS:
                return f"tasks and actors: {number}"
            case Kind.MINIMUM:
                return f"request_resources: {number}"
        return f"a placement group ({self.strategy}): {number}"


@dataclass(frozen=True, kw_only=True)
class Programs:
    """What Ray programs ask for and hold, for planner and queue."""

    #: What waits, in no order.
    waiting: tuple[JobDemand, ...] = ()
    #: What programs hold of each node that stays, by node id.
    held: Mapping[str, JobDemand] = field(default_factory=dict)
    #: Ids of nodes that are drained and on which programs still hold something, or run: no other node replaces it
    #: before Ray asks for that, and the node stays until its deadline.
    leaving: frozenset[str] = frozenset()
    requests: tuple[ProgramRequest, ...] = ()
    #: Ids of all that is asked for now, whether or not it has lasted and counts.
    asked_for: frozenset[str] = frozenset()
    #: Why some requests are never served, by their ids.
    refused: Mapping[str, str] = field(default_factory=dict)

    def on(self, nodes: Iterable[NodeView]) -> list[NodeView]:
        """The nodes with what programs hold of them, as workers of theirs."""
        return [
            replace(node, jobs={**node.jobs, mine.id: 1})
            if (mine := self.held.get(node.id)) is not None and node.state in JOINED
            else node
            for node in self.kept_in_use(nodes)
        ]

    def of_parts(self, nodes: Iterable[NodeView]) -> list[NodeView]:
        """The nodes, of which those that wait for a part that is no more wait for another part of the same request.

        Parts are counted from the first one, so that the last one vanishes whichever task has got its place.
        """
        parts: dict[str, list[str]] = {}
        for one in self.waiting:
            parts.setdefault(request_of(one.id), []).append(one.id)
        known = {one.id for one in self.waiting}
        found = list(nodes)
        owning = {node.bought_for for node in found if self._is_unused(node)}
        for at, node in enumerate(found):
            owner = node.bought_for
            if owner is None or owner in known or not self._is_unused(node):
                continue
            of_request = parts.get(request_of(owner))
            if of_request:
                # The last part is for several tasks.
                part = next((one for one in of_request if one not in owning), of_request[-1])
                owning.add(part)
                found[at] = replace(node, bought_for=part)
        return found

    def _is_unused(self, node: NodeView) -> bool:
        return not node.jobs and node.id not in self.held

    def kept_in_use(self, nodes: Iterable[NodeView]) -> list[NodeView]:
        """The nodes, of which those are in use that are drained with something of a program on them.

        Those that were bought for a part that is no more are for another one of its request.
        """
        return [
            replace(node, is_in_use=True) if node.id in self.leaving else node
            for node in self.of_parts(nodes)
        ]


NO_PROGRAMS = Programs()


def requests_of(seen: RayDemand) -> list[ProgramRequest]:
    """What programs ask for, equal things together; of very many things the first ones, and of groups all or none."""
    found: dict[str, ProgramRequest] = {}

    def add(one: ProgramRequest) -> None:
        before = found.get(one.id)
        found[one.id] = one if before is None else replace(one, count=before.count + one.count)

    for bundle, count in seen.tasks[:_MOST_SHAPES]:
        add(_request(Kind.TASKS, bundle, count))
    for gang, shapes in _read(seen.gangs):
        for bundle, count in shapes:
            add(_request(Kind.PLACEMENT_GROUP, bundle, count, gang))
    for bundle, count in _beyond(seen):
        add(_request(Kind.MINIMUM, bundle, count))
    return list(found.values())


def _read(gangs: Iterable[Gang]) -> Iterator[tuple[Gang, list[tuple[Bundle, int]]]]:
    """The smallest placement groups with their shapes, as long as there are not too many of all together."""
    bundles, shapes = MOST_BUNDLES, _MOST_SHAPES
    for gang in sorted(gangs, key=lambda one: len(one.bundles)):
        if len(gang.bundles) > bundles:
            continue
        bundles -= len(gang.bundles)
        found = list(_shapes(gang))
        if len(found) <= shapes:
            shapes -= len(found)
            yield gang, found


def _request(kind: Kind, bundle: Bundle, count: int, gang: Gang | None = None) -> ProgramRequest:
    named = "" if gang is None else gang.id
    strategy = None if gang is None else gang.strategy
    one = _digest(kind, named, bundle.text)
    return ProgramRequest(id=one, kind=kind, count=count, bundle=bundle, strategy=strategy, gang=named)


def _digest(*parts: str) -> str:
    """An id of at most 40 characters that no job has."""
    return f"ray_{hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:24]}"


def _shapes(gang: Gang) -> Iterator[tuple[Bundle, int]]:
    """The different bundles of a placement group; those of one node are one bundle."""
    if gang.strategy is Strategy.STRICT_PACK:
        whole = Counter[str]()
        for bundle in gang.bundles:
            whole.update(bundle.resources)
        terms = tuple(dict.fromkeys(term for one in gang.bundles for term in _first(one)))
        yield Bundle(dict(whole), (terms,) if terms else ()), 1
        return
    equal: dict[tuple[object, ...], list[Bundle]] = {}
    for bundle in gang.bundles:
        equal.setdefault(bundle.shape, []).append(bundle)
    for same in equal.values():
        yield same[0], len(same)


def _first(bundle: Bundle) -> tuple[LabelTerm, ...]:
    return bundle.selectors[0] if bundle.selectors else ()


def _beyond(seen: RayDemand) -> Iterator[tuple[Bundle, int]]:
    """What of the minimum neither what programs hold nor what they wait for covers: it counts whether used or not."""
    if not seen.minimum:
        return
    gangs = (bundle.resources for gang in seen.gangs for bundle in gang.bundles)
    tasks = (bundle.resources for bundle, count in seen.tasks for _ in range(count))
    all_covered = itertools.chain(seen.held.values(), gangs, tasks)
    covered = [dict(one) for one in itertools.islice(all_covered, _MOST_COVERED)]
    for bundle, count in seen.minimum[:MOST]:
        left = count
        for free in covered:
            fitting = min(left, slots({"memory": 0.0, **free}, bundle.resources))
            take(free, bundle.resources, fitting)
            left -= fitting
        if left > 0:
            yield bundle, left


@dataclass(frozen=True)
class Sighting:
    """Since when a request has been seen, and how many of it at which of the last seconds."""

    since: float
    counts: tuple[tuple[float, int], ...]


def sighted(
    before: Mapping[str, Sighting], requests: Iterable[ProgramRequest], now: float
) -> dict[str, Sighting]:
    """What is remembered after a look at this time; what is not asked for any more is forgotten."""
    found: dict[str, Sighting] = {}
    for one in requests:
        known = before.get(one.id, Sighting(now, ()))
        recent = [at for at, _ in known.counts if at > now - SETTLED_S]
        oldest = max((at for at, _ in known.counts if at <= now - SETTLED_S), default=now)
        kept = tuple((at, count) for at, count in known.counts if at in recent or at == oldest)
        found[one.id] = Sighting(known.since, (*kept, (now, one.count)))
    return found


def settled(
    requests: Iterable[ProgramRequest], seen: Mapping[str, Sighting], now: float
) -> list[ProgramRequest]:
    """The requests that have lasted, with the fewest of the last seconds, the oldest first; of groups all or none."""
    persistent = [
        replace(one, since=sighting.since, count=one.count if is_gang else min(n for _, n in sighting.counts))
        for one in requests
        if (sighting := seen.get(one.id)) is not None and now - sighting.since >= SETTLED_S
        for is_gang in (one.kind is Kind.PLACEMENT_GROUP,)
    ]
    return _first_of(sorted(persistent, key=lambda one: (one.since, one.id)))


def _first_of(requests: Sequence[ProgramRequest]) -> list[ProgramRequest]:
    """The first of them, at most `MOST`; one is left out with the others of its placement group."""
    together = Counter(one.gang for one in requests if one.gang)
    left, fits = MOST, dict[str, bool]()
    found: list[ProgramRequest] = []
    for one in requests:
        group = one.gang or one.id
        if group not in fits:
            size = together.get(one.gang, 1)
            fits[group] = size <= left
            left -= size if fits[group] else 0
        if fits[group]:
            found.append(one)
    return found


def programs_of(
    policies: Policies,
    requests: Sequence[ProgramRequest],
    seen: RayDemand,
    nodes: Iterable[NodeView],
    pools: Sequence[PoolSize],
    offerings: Sequence[Offering],
) -> Programs:
    """The demands of the project of Ray programs; none where the policies have no `ray_programs`.

    `pools` are the complete ones, `offerings` all that is sold.
    """
    policy = policies.ray_programs
    if policy is None:
        return NO_PROGRAMS
    waiting: dict[str, JobDemand] = {}
    refused: dict[str, str] = {}
    parts = max(1, min(_PARTS, MOST // max(1, len(requests)))) if has_shares(policies) else 1
    for one in requests:
        demand = _placed(policy, policies, one, offerings)
        why = demand if isinstance(demand, str) else _never(policies, demand, one, pools)
        if isinstance(demand, str) or why is not None:
            refused[one.id] = why or ""
        else:
            waiting[one.id] = demand
    # Of a placement group nothing is bought unless all of it can be.
    lost = {one.gang: refused[one.id] for one in requests if one.gang and one.id in refused}
    for one in requests:
        if one.gang in lost and one.id not in refused:
            refused[one.id] = f"another bundle of its placement group is refused: {lost[one.gang]}"
            del waiting[one.id]
    with_something = [node for node in nodes if node.id in seen.held and node.state in JOINED]
    return Programs(
        waiting=tuple(part for demand in waiting.values() for part in _parts_of(demand, parts)),
        held={node.id: _held_demand(policy, node, seen) for node in with_something if node.is_usable},
        leaving=frozenset(node.id for node in with_something if not node.is_usable),
        requests=tuple(requests),
        refused=refused,
    )


def _parts_of(demand: JobDemand, parts: int) -> Iterator[JobDemand]:
    """The demand as at most that many, all but the last for one task: each has its own place by the shares.

    As one demand it would count as its smallest group, a single task, however large the share of its project is.
    """
    least, most = demand.min_workers, demand.max_workers
    number = min(parts, most) if least == 1 else 1
    for part in range(number):
        last = part == number - 1
        yield replace(
            demand,
            id=f"{demand.id}_{part}" if part else demand.id,
            sizes=WorkerSizes(least, most - number + 1 if last else 1),
        )


def request_of(demand_id: str) -> str:
    """The id of the request that one of the waiting demands stands for."""
    return "_".join(demand_id.split("_")[:2])


def _held_demand(policy: RayProgramsPolicy, node: NodeView, seen: RayDemand) -> JobDemand:
    """What programs hold of a node, as a job with one worker there.

    What they have not saved is not known, so that all since the node was ready counts as lost when it is drained.
    """
    shares = {f"{NODE_SHARE}{gang}": 1.0 for gang in seen.gangs_on.get(node.id, ())}
    return JobDemand(
        id=_digest("held", node.id),
        project=policy.project,
        sizes=WorkerSizes(1, 1),
        worker_resources={**seen.held[node.id], **shares},
        priority=policy.priority,
        created_at=node.created_at,
        is_running=True,
        is_program=True,
        saved_at=node.created_at if node.ready_at is None else node.ready_at,
    )


def _placed(
    policy: RayProgramsPolicy, policies: Policies, one: ProgramRequest, offerings: Sequence[Offering]
) -> JobDemand | str:
    """The demand, on nodes with the labels that it asks for; or why no pool has such nodes."""
    allowed = policy.pools or tuple(policies.pools)
    alternatives = one.bundle.selectors or ((),)
    placements = (_placement(policies, allowed, terms, offerings) for terms in alternatives)
    placement = next((found for found in placements if found is not None), None)
    if placement is None:
        asked = " or ".join(" and ".join(map(str, terms)) for terms in alternatives)
        return f"no pool of {', '.join(allowed) or 'the policies'} has only nodes with {asked}"
    return JobDemand(
        id=one.id,
        project=policy.project,
        sizes=one.sizes,
        worker_resources=one.resources,
        placement=placement,
        priority=policy.priority,
        created_at=one.since,
        is_program=True,
    )


def _placement(
    policies: Policies, allowed: Sequence[str], terms: Sequence[LabelTerm], offerings: Sequence[Offering]
) -> Placement | None:
    """Where such nodes are; None when no pool has them."""
    zones = sorted({one.zone for one in offerings if one.zone is not None})
    capacities = [CapacityRule.SPOT, CapacityRule.ON_DEMAND]
    pools = list(allowed)
    are_zones_asked = False
    for term in terms:
        if term.key == POOL_LABEL:
            pools = [pool for pool in pools if term.accepts(pool)]
        elif term.key == ZONE_LABEL:
            zones, are_zones_asked = [zone for zone in zones if term.accepts(zone)], True
        elif term.key == CAPACITY_LABEL:
            capacities = [one for one in capacities if term.accepts(one)]
        else:
            pools = [pool for pool in pools if _all_have(policies, pool, term, offerings)]
    if not pools or not capacities or (are_zones_asked and not zones):
        return None
    return Placement(
        pools=tuple(pools),
        zones=tuple(zones) if are_zones_asked else (),
        capacity=capacities[0] if len(capacities) == 1 else None,
    )


def _all_have(policies: Policies, pool: str, term: LabelTerm, offerings: Sequence[Offering]) -> bool:
    """Whatever the pool buys, the node suits the label: else nodes would be bought that Ray does not use."""
    policy = policies.pools.get(pool)
    if policy is None:
        return False
    capacities = bought_by(policy.capacity)
    mine = [one for one in offerings if one.size in policy.sizes and one.capacity in capacities]
    return bool(mine) and all(term.accepts(one.labels.get(term.key)) for one in mine)


def _never(
    policies: Policies, demand: JobDemand, one: ProgramRequest, pools: Sequence[PoolSize]
) -> str | None:
    """Why the request could not be served even if every pool were complete and empty, or None."""
    project = policies.projects.get(demand.project)
    if (
        why := never_allowed(demand.project, project, demand.worker_resources, demand.min_workers)
    ) is not None:
        return why
    names = ", ".join(demand.placement.pools) or "there are none"
    most = most_in_all(pools, demand.worker_resources, demand.placement)
    if most == 0:
        return f"no node of the pools ({names}) has {describe(one.bundle.resources)}"
    if most < demand.min_workers:
        what = describe(demand.worker_resources)
        return f"it needs {demand.min_workers} times {what}, and the complete pools ({names}) have capacity for {most}"
    return None
