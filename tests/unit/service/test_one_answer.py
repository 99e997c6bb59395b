"""Queue, planner and trainers have one answer to what fits: whatever the jobs, the machines and their sizes are.

Jobs go the whole way from their specifications: the queue admits, the planner buys and returns, and a driver takes what
there is.  Everything that decides is the real thing; only Ray's part is played, which counts what is free on nodes with
the labels that a plan asks for.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.policies.offerings import CapacityType, Offering, zone_and_capacity
from cluster.policies.placement import FABRIC_LABEL, POOL_LABEL, labels_of
from cluster.policies.policies import Policies
from cluster.scheduling.actions import Drain, Launch, Plan, Terminate, Wait
from cluster.scheduling.fitting import as_shown, slots
from cluster.scheduling.keeping import kept_nodes
from cluster.scheduling.planner import plan
from cluster.scheduling.pool_sizes import PoolSize, complete_pools
from cluster.scheduling.starts import blocked_owners, starts
from cluster.scheduling.view import START_UP_S, ClusterView, JobDemand, NodeView
from remora import JobSpec, SpecError
from remora.states import AttemptState, NodeState
from service.loops.attempt_plans import attempt_plan
from service.queue.demand import demand_of, node_view, workers_by_node
from service.queue.rows import AttemptRow, JobRow, NodeRow
from service.settings import Settings
from tests.service_fakes import job_row
from tests.unit.service.queue_worlds import Decided
from trainers.plan import AttemptPlan

NOW = 1_000_000.0
GIB = 2.0**30
SETTINGS = Settings()
#: Rounds after which nothing may be left to do, and seconds between two of them.
ROUNDS, ROUND_S = 14, 100.0
#: What the planner says of a job that can start.
HAS_CAPACITY = "there is capacity for it on nodes that are ready"


@dataclass(frozen=True)
class Kind:
    """A size of machine, with the memory that its nodes show, which the catalogue may not know."""

    name: str
    resources: dict[str, float]
    memory_gib: float
    is_known: bool = True
    has_fabric: bool = False

    @property
    def sold(self) -> list[Offering]:
        promised = self.resources | ({"memory": self.memory_gib * GIB} if self.is_known else {})
        return [
            Offering(
                size=self.name,
                zone=zone,
                capacity=capacity,
                resources=promised,
                price_per_hour=1.0,
                has_fabric=self.has_fabric,
            )
            for zone in ("1", "2")
            for capacity in CapacityType
        ]


@dataclass
class World:
    """A small cloud, the nodes bought of it, and the jobs that came."""

    kinds: list[Kind]
    policies: Policies
    jobs: list[JobRow]
    now: float = NOW
    nodes: list[NodeRow] = field(default_factory=list)
    #: Those that were returned: the service remembers for some time what they have shown.
    ended: list[NodeRow] = field(default_factory=list)
    attempts: dict[str, AttemptRow] = field(default_factory=dict)
    plans: dict[str, AttemptPlan] = field(default_factory=dict)
    launched: int = 0

    @property
    def offerings(self) -> tuple[Offering, ...]:
        return as_shown([one for kind in self.kinds for one in kind.sold], [*self.nodes, *self.ended])

    def planned(self) -> Plan:
        view = ClusterView(
            now=self.now,
            jobs=tuple(self.demands()),
            nodes=tuple(self.views()),
            offerings=self.offerings,
            strict_order=True,
        )
        return plan(view, self.policies, self.now)

    def demands(self) -> list[JobDemand]:
        return [
            replace(demand_of(job, self.attempts.get(job.id), None, self.now), place=place)
            for place, job in enumerate(self.jobs)
        ]

    def views(self) -> list[NodeView]:
        on = workers_by_node(self.nodes, self.attempts.values())
        return [node_view(node, on.get(node.id, {})) for node in self.nodes]

    def pools(self) -> list[PoolSize]:
        return complete_pools(self.policies, self.offerings, lambda pool: pool.max_nodes)

    def decided(self) -> Decided:
        """What starts and what waits."""
        jobs = self.demands()
        waiting = [job for job in jobs if not job.is_running]
        running = [job for job in jobs if job.is_running]
        return Decided(starts(waiting, running, self.views(), self.pools(), kept=self.kept()))

    def kept(self) -> dict[str, str]:
        """For which job each node is kept, as drivers get it."""
        jobs = self.demands()
        waiting = [job for job in jobs if not job.is_running]
        refused = blocked_owners(waiting, {job.id for job in waiting}, self.pools(), None)
        left = {job.id: job for job in jobs if job.id not in refused}
        return kept_nodes(self.views(), left, self.now, START_UP_S)

    def do(self, actions: Plan) -> bool:
        """Buy and return at once; True when something was."""
        gone = {one.node_id for one in actions if isinstance(one, Drain | Terminate)}
        self.ended += [one for one in self.nodes if one.id in gone]
        self.nodes = [one for one in self.nodes if one.id not in gone]
        launches = [one for one in actions if isinstance(one, Launch)]
        self.nodes += [self._made(launch) for launch in launches]
        return bool(gone or launches)

    def _made(self, launch: Launch) -> NodeRow:
        """What was bought joins, with the memory that such machines have."""
        self.launched += 1
        kind = next(one for one in self.kinds if one.name == launch.offering.partition("/")[0])
        promised = dict(launch.resources)
        return NodeRow(
            id=f"node_{self.launched:03}",
            pool=launch.pool,
            created_at=self.now,
            state=NodeState.READY,
            address=f"10.0.0.{self.launched}",
            resources={"memory": kind.memory_gib * GIB, **promised},
            offering=launch.offering,
            fabric=launch.fabric,
            bought_for=launch.job_id,
            launched_at=self.now,
            ready_at=self.now,
        )

    def start(self, job_id: str, fabric: str | None) -> None:
        """Its driver starts, and finds capacity for a worker group that it accepts."""
        job = next(one for one in self.jobs if one.id == job_id)
        attempt = AttemptRow(
            id=f"att_{job_id}",
            job_id=job_id,
            attempt=1,
            created_at=self.now,
            started_at=self.now,
            state=AttemptState.RUNNING,
            fabric=fabric,
        )
        self.attempts[job_id] = attempt
        self.plans[job_id] = attempt_plan(job, attempt, SETTINGS)
        assert self.grow(job), f"the driver has no possible worker group where {job_id} was admitted"

    def grow(self, job: JobRow) -> bool:
        """Its driver takes what it finds free on nodes with its labels, in a size that is possible."""
        attempt, launched, kept = self.attempts[job.id], self.plans[job.id], self.kept()
        held = sum(attempt.workers.values())
        borne = [one for one in self.nodes if _bears(one, launched)]
        others = [one for one in borne if kept.get(one.id, job.id) == job.id]
        # A group that starts takes what is kept for others where it has to.
        for nodes in (others,) if held else (others, borne):
            free = {one.address: self._capacity_on(one, launched) for one in nodes}
            more = launched.sizes.fit(held + sum(free.values())) - held
            if more > 0:
                break
        else:
            return False
        workers = dict(attempt.workers)
        for address, capacity in free.items():
            taken = min(capacity, more)
            if address is not None and taken > 0:
                workers[address] = workers.get(address, 0) + taken
                more -= taken
        short = sum(workers.values()) < launched.sizes.max
        self.attempts[job.id] = replace(attempt, workers=workers, short_since=self.now if short else None)
        return True

    def _owns_enough(self, job: JobRow) -> bool:
        """Its smallest group has capacity on what was bought for it and is still unused."""
        busy = workers_by_node(self.nodes, self.attempts.values())
        own = [one for one in self.nodes if one.bought_for == job.id and one.id not in busy]
        return sum(slots(one.resources, job.worker_resources) for one in own) >= job.facts.sizes.min

    def _capacity_on(self, node: NodeRow, launched: AttemptPlan) -> int:
        """As Ray counts: a resource that a node does not have is none that it gives."""
        free = dict(node.resources)
        for job in self.jobs:
            if (attempt := self.attempts.get(job.id)) is not None:
                for name, amount in job.worker_resources.items():
                    free[name] = free.get(name, 0.0) - amount * attempt.workers.get(node.address or "", 0)
        return min(int(free.get(name, 0.0) / amount + 1e-9) for name, amount in launched.resources.items())

    def look(self) -> bool:
        """One round of everybody; True when something was done."""
        before = self.decided()
        actions = self.planned()
        hopeless = {wait.job_id for wait in before.waits if wait.is_hopeless}
        assert hopeless.isdisjoint(one.job_id for one in actions if isinstance(one, Launch))
        has_moved = self.do(actions)
        decided = self.decided()
        for job_id in decided.starts:
            self.start(job_id, decided.fabrics.get(job_id))
        grown = [self.grow(job) for job in self.jobs if job.id in self.attempts]
        busy = workers_by_node(self.nodes, self.attempts.values())
        self.nodes = [
            replace(one, idle_since=None if one.id in busy else one.idle_since or self.now)
            for one in self.nodes
        ]
        self.now += ROUND_S
        return has_moved or bool(decided.starts) or any(grown)

    def allow_one_node_more(self) -> None:
        """Every pool may have one more from now on."""
        pools = {
            name: pool.model_copy(update={"max_nodes": pool.max_nodes + 1})
            for name, pool in self.policies.pools.items()
        }
        self.policies = self.policies.model_copy(update={"pools": pools})

    def look_after_growing(self) -> bool:
        """The same where the groups that run grow first: what has capacity on its own nodes starts all the same."""
        has_moved = self.do(self.planned())
        fitting = {
            one.job_id for one in self.planned() if isinstance(one, Wait) and one.reason == HAS_CAPACITY
        }
        promised = {job.id for job in self.jobs if job.id in fitting and self._owns_enough(job)}
        grown = [self.grow(job) for job in self.jobs if job.id in self.attempts]
        decided = self.decided()
        assert promised <= set(decided.starts)
        for job_id in decided.starts:
            self.start(job_id, decided.fabrics.get(job_id))
        self.now += ROUND_S
        return has_moved or bool(decided.starts) or any(grown)


def _bears(node: NodeRow, launched: AttemptPlan) -> bool:
    """The node has the labels that the plan asks for."""
    labels = {POOL_LABEL: node.pool, **labels_of(*zone_and_capacity(node.offering))}
    if node.fabric is not None:
        labels[FABRIC_LABEL] = node.fabric
    return all(labels.get(name) in values for name, values in launched.labels.items())


def row_of(number: int, fields: dict[str, Any]) -> JobRow | None:
    """The job as the API accepts it, or None where it refuses it."""
    try:
        spec = JobSpec(command="train", **fields)
    except SpecError:
        return None
    return job_row(
        NOW,
        id=f"job_{number}",
        spec=spec.to_mapping(),
        min_workers=spec.min_workers,
        max_workers=spec.max_workers,
        worker_resources=spec.ray_resources(),
    )


KINDS = st.tuples(
    st.builds(Kind, st.just("small"), st.just({"CPU": 8.0}), st.sampled_from([8.0, 16.0]), st.booleans()),
    st.builds(
        Kind,
        st.just("large"),
        st.sampled_from([{"CPU": 16.0}, {"CPU": 4.0, "GPU": 2.0}]),
        st.sampled_from([16.0, 64.0]),
        st.booleans(),
        st.booleans(),
    ),
).map(list)
POOLS = st.fixed_dictionaries(
    {
        "sizes": st.sampled_from([["small"], ["large"], ["small", "large"], ["large", "small"]]),
        "zones": st.sampled_from([["1"], ["2", "1"]]),
        "capacity": st.sampled_from(["spot", "on-demand", "prefer-spot"]),
        "max_nodes": st.integers(1, 6),
        "idle_s": st.just(0.0),
        "grow_per_minute": st.just(1000.0),
        "shrink_per_minute": st.just(1000.0),
    }
)
POLICIES = st.fixed_dictionaries({"p": POOLS}, optional={"q": POOLS}).map(
    lambda pools: Policies.model_validate({"pools": pools})
)
WORKERS = st.tuples(st.integers(1, 4), st.integers(0, 5), st.sampled_from([1, 1, 2])).map(
    lambda one: {"min": one[0] * one[2], "max": (one[0] + one[1]) * one[2], "multiple_of": one[2]}
)
RESOURCES = st.sampled_from(
    [
        *({"cpus": cpus} for cpus in (4, 6, 8)),
        *({"cpus": cpus, "gpus": 1} for cpus in (1, 4, 6)),
        *({"cpus": 4, "memory": memory} for memory in ("2GiB", "12GiB", "32GiB")),
    ]
)
BATCHES = st.sampled_from(
    [{}, *({"backend": "deepspeed", "elastic": {"global_batch": batch}} for batch in (4, 8, 12, 20))]
)
PLACES = st.sampled_from(
    [
        *({} for _ in range(6)),
        *({"pools": pools} for pools in (["p"], ["q", "p"], ["none"])),
        *({"capacity": capacity} for capacity in ("spot", "on-demand")),
        *({"fabric": "infiniband", **more} for more in ({}, {"zones": ["1"]})),
    ]
)
JOBS = st.builds(
    lambda workers, resources, batch, place: {
        "workers": workers,
        "resources": resources,
        "placement": place,
        **batch,
    },
    WORKERS,
    RESOURCES,
    BATCHES,
    PLACES,
)


@settings(max_examples=80, deadline=None, derandomize=True)
@given(KINDS, POLICIES, st.lists(JOBS, min_size=1, max_size=4))
def test_what_is_hopeless_buys_nothing_and_what_has_capacity_starts(
    kinds: list[Kind], policies: Policies, wanted: list[dict[str, Any]]
) -> None:
    rows = [row for number, fields in enumerate(wanted) if (row := row_of(number, fields)) is not None]
    world = World(kinds, policies, rows)
    rounds = 0
    while world.look():
        rounds += 1
        assert rounds < ROUNDS, "nodes are bought and returned for ever"
    # What runs has a size that is possible, and what waits is given no capacity in which no start follows.
    for job in rows:
        if (attempt := world.attempts.get(job.id)) is not None:
            assert job.facts.sizes.allows(sum(attempt.workers.values()))
    fitting = {one.job_id for one in world.planned() if isinstance(one, Wait) and one.reason == HAS_CAPACITY}
    assert fitting == set()
    # Every node that is left has work.
    assert {one.id for one in world.nodes} == workers_by_node(world.nodes, world.attempts.values()).keys()


#: Jobs that fill whole nodes of one kind, most of which could use more than there are.
WIDE = st.builds(
    lambda least, more, cpus: {"workers": {"min": least, "max": least + more}, "resources": {"cpus": cpus}},
    st.integers(1, 2),
    st.integers(0, 5),
    st.sampled_from([4, 8, 8]),
)


@settings(max_examples=80, deadline=None, derandomize=True)
@given(st.integers(0, 3), st.lists(WIDE, min_size=2, max_size=4))
def test_what_the_planner_counts_as_capacity_for_a_job_is_there_also_beside_groups_that_grow(
    most: int, wanted: list[dict[str, Any]]
) -> None:
    """Jobs come one after the other, and with each a node more, so that those before could grow into what it gets."""
    world = world_of(Kind("small", {"CPU": 8.0}, 16.0), most + 1, **wanted[0])
    for number, fields in enumerate(wanted):
        if number > 0 and (row := row_of(number, fields)) is not None:
            world.jobs.append(row)
            world.allow_one_node_more()
        for _ in range(ROUNDS):
            if not world.look_after_growing():
                break


def test_a_job_starts_on_the_only_node_more_beside_a_group_that_could_grow_there() -> None:
    kind = Kind("small", {"CPU": 4.0}, 16.0)
    world = world_of(kind, 2, workers={"min": 1, "max": 3}, resources={"cpus": 4})
    while world.look_after_growing():
        pass
    waits = row_of(1, {"workers": 1, "resources": {"cpus": 4}})
    assert waits is not None
    world.jobs.append(waits)
    world.allow_one_node_more()
    while world.look_after_growing():
        pass
    assert [sum(one.workers.values()) for one in world.attempts.values()] == [2, 1]


def world_of(kind: Kind, most: int, **job: Any) -> World:
    """One job and one pool of machines of one kind."""
    pool = {"sizes": [kind.name], "zones": ["1"], "capacity": "on-demand", "max_nodes": most, "idle_s": 0.0}
    row = row_of(0, job)
    assert row is not None
    return World([kind], Policies.model_validate({"pools": {"p": pool}}), [row])


@pytest.mark.parametrize(("is_known", "machines"), [(True, 0), (False, 1)])
def test_one_machine_at_most_shows_that_its_kind_has_too_little_memory(is_known: bool, machines: int) -> None:
    """A worker of 32 GiB on machines of 16 GiB: nothing is bought where that is known, and one where it is not."""
    kind = Kind("small", {"CPU": 4.0}, 16.0, is_known=is_known)
    world = world_of(kind, 30, workers=1, resources={"cpus": 1, "memory": "32GiB"})
    for _ in range(ROUNDS):
        world.look()
    assert (world.launched, world.attempts) == (machines, {})
    (wait,) = world.decided().waits
    assert wait.is_hopeless is True
    assert wait.reason.startswith("no node of the pools has 1 CPU, 32.0 GiB memory for a worker: ")


@pytest.mark.parametrize(
    ("workers", "batch", "most", "size"),
    [
        ({"min": 2, "max": 8}, 20, 8, 5),
        ({"min": 2, "max": 8}, 20, 3, 2),
        ({"min": 3, "max": 8}, 8, 6, 4),
        ({"min": 3, "max": 8}, 8, 3, 0),
    ],
)
def test_as_many_machines_are_bought_as_a_possible_worker_group_uses(
    workers: dict[str, int], batch: int, most: int, size: int
) -> None:
    """With a batch of 20 there can be 2, 4 or 5 workers, with one of 8 there can be 4 or 8."""
    world = world_of(
        Kind("small", {"CPU": 4.0}, 16.0),
        most,
        workers=workers,
        resources={"cpus": 4},
        backend="deepspeed",
        elastic={"global_batch": batch},
    )
    for _ in range(ROUNDS):
        world.look()
    assert world.launched == size
    assert [sum(one.workers.values()) for one in world.attempts.values()] == ([size] if size else [])


def test_a_node_that_no_possible_group_uses_is_for_the_next_job() -> None:
    """Of three nodes a job that can have two or four workers leaves one to the job behind it."""
    kind = Kind("small", {"CPU": 4.0}, 16.0)
    pair = {"workers": {"min": 2, "max": 4}, "backend": "deepspeed", "elastic": {"global_batch": 4}}
    world = world_of(kind, 3, resources={"cpus": 4}, **pair)
    while world.look():
        pass
    behind = row_of(1, {"workers": 1, "resources": {"cpus": 4}})
    assert behind is not None
    world.jobs.append(behind)
    while world.look():
        pass
    assert [sum(one.workers.values()) for one in world.attempts.values()] == [2, 1]
