"""A controller that buys on the emulated Azure, jobs whose drivers are played, and whatever may go wrong with them.

Everything goes by one clock that only `Storm.turn` moves.  What is checked stands in the emulator's own books, which
are read where they lie: a request for each look would take a third of the time.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import sqlalchemy as sa

from cluster.agent.beats import Beat, Hearing
from cluster.azure import prices
from cluster.azure.body import NODE_TAG
from cluster.azure.emulator.faults import Fault, Place
from cluster.azure.emulator.server import REGION
from cluster.azure.emulator.state import DELETING, SUCCEEDED, Machine, Refused
from cluster.azure.market import Market, Sources
from cluster.azure.provider import AzureProvider
from cluster.azure.rehearsal import AzureRehearsal
from cluster.azure.supply import AzureSupply
from cluster.members import MemberNode, chosen, doubtful
from cluster.policy_documents import digest_of
from cluster.provider import NodeRequest, ProvidedNode, ProviderError, Throttled
from cluster.view import ENDED
from remora.spec import JobSpec
from remora.states import NodeState
from remora.views import Event, NodeEvent
from service.controller import Cluster, Controller
from service.fixed_pool import fixed_pool
from service.queue import lifecycle
from service.queue.policy_versions import PolicyWish, follow
from service.queue.rows import JobRow, NodeRow
from service.settings import Settings
from service.store import jobs, ledger, nodes, policies, telemetry
from service.store.database import Database
from tests.contracts.cluster.azure_rig import CPU_SIZE, AzureRig
from tests.service_fakes import FakeDriver, FakeLauncher, job_row
from trainers.plan import AttemptPlan, DriverGone, Record

T = TypeVar("T")

DAY_S = 86_400.0
#: What a worker needs, so that two of them have room on a node.
WORKER = {"CPU": 2.0}
WORKERS_PER_NODE = 2
LEASE_S = 5.0
#: Seconds for which Ray believes in a machine that is gone.
BELIEF_S = 6.0
#: Rows that count against the maximum of their pool: what drains or goes may be replaced already, see decision 0055.
COUNTED = (NodeState.REQUESTED, NodeState.LAUNCHED, NodeState.JOINED, NodeState.READY)

DOCUMENT = f"""\
pools:
  cpu:
    sizes: [{CPU_SIZE}]
    zones: [1, 2]
    capacity: prefer-spot
    patience_s: 20
    return_to_spot_s: 60
    max_nodes: {{max_nodes}}
    idle_s: 30
    drain_s: 20
    join_timeout_s: 40
    grow_per_minute: {{pace}}
    shrink_per_minute: {{pace}}
budget:
  usd_per_day: {{usd:f}}
  steps: {{{{stop-growing: 0.7, spot-only: 0.8, shrink: 0.9, pause: 1.0}}}}
"""


class Death(BaseException):
    """The process of a controller is gone in the middle of what it did; nothing catches this."""


class Life:
    """Counts what one process asks of others, and ends it at one of these calls."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: It dies at the so-manyth call from now: before it, or after it without having heard the answer.
        self.left: int | None = None
        self.dies_after = False
        self.is_over = False
        #: What happens at that call instead, while this process stands still; it goes on afterwards.
        self.meanwhile: Callable[[], None] | None = None

    def call(self, work: Callable[[], T]) -> T:
        """One call; raises Death at the end of this life, and ever after."""
        with self._lock:
            if self.is_over:
                raise Death
            if self.left is not None:
                self.left -= 1
            is_last = self.left == 0
            meanwhile = self.meanwhile if is_last else None
            if meanwhile is not None:
                self.left, is_last = None, False
            self.is_over = is_last
        if meanwhile is not None:
            meanwhile()
        if is_last and not self.dies_after:
            raise Death
        answer = work()
        if is_last:
            raise Death
        return answer


class MortalDatabase:
    """The database as one process has it."""

    def __init__(self, database: Database, life: Life) -> None:
        self._database = database
        self._life = life

    def transact(self, work: Callable[[sa.Connection], T]) -> T:
        return self._life.call(lambda: self._database.transact(work))

    def query(self, work: Callable[[sa.Connection], T]) -> T:
        return self._database.query(work)


class MortalLauncher:
    """The drivers as one process has them."""

    def __init__(self, launcher: FakeLauncher, life: Life) -> None:
        self._launcher = launcher
        self._life = life

    def start(self, plan: AttemptPlan) -> None:
        self._life.call(lambda: self._launcher.start(plan))

    def prepare(self) -> None:
        self._launcher.prepare()

    def poll(self, attempt_ids: list[str], after: dict[str, int]) -> dict[str, list[Record] | DriverGone]:
        return self._life.call(lambda: self._launcher.poll(attempt_ids, after))

    def stop(self, attempt_id: str, reason: Any) -> None:
        self._life.call(lambda: self._launcher.stop(attempt_id, reason))

    def kill(self, attempt_id: str) -> None:
        self._life.call(lambda: self._launcher.kill(attempt_id))


class Hands:
    """Provider, membership and drains as one process has them."""

    def __init__(self, azure: AzureProvider, ray: Ray, life: Life, refused: dict[str, str]) -> None:
        self._azure = azure
        self._ray = ray
        self._life = life
        #: What nodes were refused with, as `create` told it.
        self._refused = refused

    def create(self, request: NodeRequest) -> None:
        try:
            self._life.call(lambda: self._azure.create(request))
        except ProviderError as error:
            if not isinstance(error, Throttled):
                self._refused[request.node_id] = str(error)
            raise

    def list(self) -> list[ProvidedNode]:
        return self._life.call(self._azure.list)

    def delete(self, node_id: str) -> None:
        self._life.call(lambda: self._azure.delete(node_id))

    def observe(self) -> Mapping[str, MemberNode]:
        return self._life.call(self._ray.observe)

    def drain(self, node_id: str, reason: str, deadline_at: float) -> None:
        assert reason
        self._life.call(lambda: self._ray.drain(node_id, deadline_at))


class Ray:
    """Machines that run join by themselves, and are believed in for some seconds once they are gone."""

    def __init__(self, rig: AzureRig, choose: random.Random) -> None:
        self._rig = rig
        self._random = choose
        self._addresses: dict[str, str] = {}
        self._seen_at: dict[str, float] = {}
        #: When each draining node has to be gone, and why, where its agent says so.
        self.draining: dict[str, float] = {}
        self.leaves: dict[str, str] = {}
        self.never_join: set[str] = set()
        self.joined_twice: set[str] = set()
        #: Seconds by which the clocks of machines go wrong.
        self.skew_s = 0.0

    def running(self) -> dict[str, str]:
        """Addresses of the nodes whose machines run and have joined, by node id."""
        names = [node_of(one) for one in machines_of(self._rig) if one.state == SUCCEEDED]
        return {name: self._address(name) for name in names if name not in self.never_join}

    def _address(self, node_id: str) -> str:
        number = len(self._addresses)
        return self._addresses.setdefault(node_id, f"10.0.{number // 200}.{number % 200 + 1}")

    def drain(self, node_id: str, deadline_at: float) -> None:
        """Give a node no more work."""
        if node_id not in self.running():
            raise ConnectionError(f"{node_id} is no member")
        self.draining[node_id] = deadline_at

    def observe(self) -> Mapping[str, MemberNode]:
        """What Ray says of all nodes that it has not forgotten, in no order."""
        now, running = self._rig.clock(), self.running()
        self._seen_at |= dict.fromkeys(running, now)
        told: list[MemberNode] = []
        for name, seen_at in self._seen_at.items():
            is_believed = now - seen_at < BELIEF_S
            told.append(self._member(name, f"{name}-new", is_alive=is_believed))
            if name in self.joined_twice:
                # What began first: it may be called alive for as long, and drains by its own account.
                is_ghost = is_believed and self._random.random() < 0.7
                told.append(self._member(name, f"{name}-old", is_alive=is_ghost))
        self._random.shuffle(told)
        began = {one.ray_node_id: float(one.ray_node_id.endswith("-new")) for one in told}
        return chosen(told, began if doubtful(told) else {})

    def _member(self, name: str, ray_node_id: str, *, is_alive: bool) -> MemberNode:
        drains = is_alive and name in self.draining and ray_node_id.endswith("-new")
        return MemberNode(
            node_id=name,
            ray_node_id=ray_node_id,
            address=self._address(name),
            is_alive=is_alive,
            is_draining=drains,
            resources={"CPU": 4.0} if is_alive else {},
            deadline_at=self.draining[name] if drains else None,
            agent=Hearing(beat=Beat(at=self._rig.clock() + self.skew_s, leaves=self.leaves.get(name))),
        )


@dataclass
class Group:
    """The workers of one attempt, as its driver has them."""

    step: int = 0
    saved: int = 0
    workers: dict[str, int] = field(default_factory=dict)
    saved_at: float = 0.0
    has_ended: bool = False


class Crew:
    """Plays the drivers of all jobs: they take free CPUs, train, save, and react to losses and drains."""

    def __init__(self, launcher: FakeLauncher, ray: Ray, choose: random.Random) -> None:
        self._launcher = launcher
        self._ray = ray
        self._random = choose
        self._groups: dict[str, Group] = {}
        #: The newest checkpoint of each job, and the steps that it has to do.
        self.saved: dict[str, int] = {}
        self.length: dict[str, int] = {}
        #: Attempts that lost workers.
        self.hit: set[str] = set()

    def play(self, now: float, passed_s: float) -> None:
        """What all drivers do within some seconds."""
        running = self._ray.running()
        leaving = {running[name] for name in self._ray.draining if name in running}
        for driver in list(self._launcher.drivers.values()):
            group = self._groups.setdefault(driver.plan.attempt_id, self._begin(driver))
            if driver.stop_reason is not None:
                group.has_ended, group.workers = True, {}
            if not group.has_ended:
                self._react(driver, group, set(running.values()), leaving, now)
            if not group.has_ended:
                self._gather(driver, group, set(running.values()) - leaving, now)
                self._train(driver, group, now, passed_s)

    def _begin(self, driver: FakeDriver) -> Group:
        saved = self.saved.get(driver.plan.job_id, 0)
        return Group(step=saved, saved=saved)

    def _react(
        self, driver: FakeDriver, group: Group, running: set[str], leaving: set[str], now: float
    ) -> None:
        """Workers on nodes that are gone are lost; those on nodes that go may leave in time, with a checkpoint."""
        lost = group.workers.keys() - running
        drained = group.workers.keys() & leaving if self._random.random() < 0.5 else set()
        if not lost and not drained:
            return
        self.hit.add(driver.plan.attempt_id)
        if lost:
            said = "workers are gone with their nodes"
            driver.tell("event", at=now, kind="node.lost", message=said, data={"ranks": []})
        elif group.workers:
            self._save(driver, group, now)
        group.workers = {at: n for at, n in group.workers.items() if at not in lost | drained}
        if sum(group.workers.values()) >= driver.plan.min_workers:
            self._tell_group(driver, group, now)
            return
        group.step, group.workers = group.saved, {}
        if self._random.random() < 0.5:
            group.has_ended = True
            driver.tell("ended", at=now, end_reason="node_lost", message="too few workers are left")
        else:
            driver.tell("progress", at=now, state="starting", world_size=0, workers={})

    def _gather(self, driver: FakeDriver, group: Group, open_at: set[str], now: float) -> None:
        """Take what is free, if that makes a group."""
        used: Counter[str] = Counter()
        for attempt_id in self._launcher.drivers:
            if (other := self._groups.get(attempt_id)) is not None:
                used.update(other.workers)
        wanted = driver.plan.max_workers - sum(group.workers.values())
        found = dict(group.workers)
        for address in sorted(open_at):
            more = min(wanted, WORKERS_PER_NODE - used[address])
            if more > 0:
                found[address] = found.get(address, 0) + more
                wanted -= more
        if found != group.workers and sum(found.values()) >= driver.plan.min_workers:
            begins = {} if group.workers else {"resumed_from_step": group.step}
            group.workers = found
            self._tell_group(driver, group, now, **begins)

    def _tell_group(self, driver: FakeDriver, group: Group, now: float, **more: Any) -> None:
        size = sum(group.workers.values())
        workers = dict(group.workers)
        driver.tell("progress", at=now, state="running", world_size=size, workers=workers, **more)

    def _train(self, driver: FakeDriver, group: Group, now: float, passed_s: float) -> None:
        if not group.workers:
            return
        group.step += max(1, int(min(passed_s, 30.0)))
        driver.tell("progress", at=now, step=group.step)
        if now - group.saved_at > 10.0:
            self._save(driver, group, now)
        if group.step >= self.length[driver.plan.job_id]:
            group.has_ended, group.workers = True, {}
            driver.tell("ended", at=now, end_reason="completed", message="every rank returned 0", exit_code=0)

    def _save(self, driver: FakeDriver, group: Group, now: float) -> None:
        group.saved, group.saved_at = group.step, now
        self.saved[driver.plan.job_id] = group.step
        driver.tell(
            "checkpoint",
            at=now,
            step=group.step,
            world_size=sum(group.workers.values()),
            size_bytes=1,
            location=f"memory/{group.step}",
            files={"a": 1},
            committed_at=now,
        )


def machines_of(rig: AzureRig) -> list[Machine]:
    """What exists now; nobody asks the emulator for anything meanwhile."""
    rig.cloud.advance(rig.server.clock())
    return list(rig.cloud.machines.values())


def node_of(machine: Machine) -> str:
    """Our node that a machine is."""
    return str(machine.body["tags"][NODE_TAG])


#: What may go wrong with a request, by what one would call it.
NO_CAPACITY = {"code": "ZonalAllocationFailed", "message": "We do not have sufficient capacity"}
THROTTLED = {"status": 429, "code": "TooManyRequests"}
FAULTS: dict[str, dict[str, Any]] = {
    "a size that is closed, as a conflict": {"at": "create", "status": 409, "code": "SkuNotAvailable"},
    "a used-up quota, as a conflict": {
        "at": "create",
        "status": 409,
        "code": "OperationNotAllowed",
        "message": "exceeding LowPriorityCores quota",
    },
    "throttling with the code of a quota": {
        "at": "create",
        "status": 429,
        "code": "OperationNotAllowed",
        "message": "too many requests",
        "retry_after": 5,
    },
    "a create throttled with a Retry-After": {"at": "create", **THROTTLED, "retry_after": 4},
    "a create throttled without one": {"at": "create", **THROTTLED},
    "a create that stumbles": {"at": "create", "status": 500},
    "a create that is done and stumbles": {"at": "create", "status": 500, "effect": "done-but-refuse"},
    "a create without an answer": {"at": "create", "effect": "lose-answer"},
    "no capacity after the yes, and a machine": {"at": "create-later", **NO_CAPACITY},
    "an eviction during the create": {"at": "create-later", "effect": "evict"},
    "a delete that stumbles": {"at": "delete", "status": 500},
    "a delete that is throttled": {"at": "delete", **THROTTLED, "retry_after": 2},
    "a delete without an answer": {"at": "delete", "effect": "lose-answer"},
    "a delete that leaves parts behind": {"at": "delete", "effect": "leak"},
    "a delete that fails after the yes": {"at": "delete-later", "code": "InternalOperationError"},
    "a list that stumbles": {"at": "list", "status": 500},
    "a list that is throttled": {"at": "list", **THROTTLED, "retry_after": 4},
    "a list that stumbles on page 2": {"at": "list", "status": 500, "page": 2},
    "a list without an answer": {"at": "list", "effect": "lose-answer"},
    "a poll that stumbles": {"at": "poll", "status": 500},
    "a look at a machine that stumbles": {"at": "get", "status": 503},
    "usages that stumble": {"at": "usages", "status": 500},
}


class Storm:
    """One cluster from its first job to its last machine, and what happens to it meanwhile; by seed."""

    def __init__(self, rig: AzureRig, database: Database, settings: Settings, seed: int) -> None:
        self.rig = rig
        self.database = database
        self.settings = settings.model_copy(update={"lease_s": LEASE_S})
        self.random = random.Random(seed)
        # In the morning: days of money end at midnight.
        rig.clock.passed_s += (8 * 3600.0 - rig.clock()) % DAY_S
        self.launcher = FakeLauncher()
        self.ray = Ray(rig, self.random)
        self.crew = Crew(self.launcher, self.ray, self.random)
        self.max_nodes, self.usd = 0, 0.0
        #: Nodes that there may be: more than `max_nodes` as long as those above it are not drained yet.
        self.most = 0
        #: USD that the cloud has asked for.
        self.cost = 0.0
        #: When a node that worked was told that it goes.
        self.noticed: dict[str, float] = {}
        #: What nodes were refused with at once, and nodes that the cloud took.
        self.refused: dict[str, str] = {}
        self.evicted: set[str] = set()
        #: How often each thing happened.
        self.struck: Counter[str] = Counter()
        self._set: dict[str, list[Fault]] = {}
        #: Seconds by which the clock of the controller's machine goes wrong.
        self.skew_s = 0.0
        self._begin()
        self._count_refusals()
        self._watch_pauses()

    def _watch_pauses(self) -> None:
        """Look for a process that was told to wait and asks for a machine, or for the list, before its time."""
        self.too_early: list[Place] = []
        take, told = self.rig.cloud.faults.take, dict[Place, tuple[Life, float, float]]()

        def watch(at: Place, **facts: Any) -> Fault | None:
            now = self.rig.clock()
            if at in told:
                life, since, until = told[at]
                # Requests of one moment are on their way together.
                if life is self.life and since < now < until:
                    self.too_early.append(at)
            fault = take(at, **facts)
            if fault is not None and fault.status == 429 and at in (Place.CREATE, Place.LIST):
                told[at] = (self.life, now, now + (fault.retry_after or 60.0))
            return fault

        self.rig.cloud.faults.take = watch  # type: ignore[method-assign]

    def _count_refusals(self) -> None:
        """How often the cloud itself had to refuse more than a quota."""
        self.over_quota = 0
        check_quota = self.rig.cloud.check_quota

        def check(machine: Machine, number: int = 1) -> None:
            try:
                check_quota(machine, number)
            except Refused:
                self.over_quota += 1
                raise

        self.rig.cloud.check_quota = check  # type: ignore[method-assign]

    def _begin(self) -> None:
        """A process of a controller that knows nothing yet."""
        skew_s, self.life = self.skew_s, Life()

        def clock() -> float:
            return self.rig.clock() + skew_s

        self.clock = clock
        azure = self.rig.another(clock)
        sources = Sources(
            skus=azure.skus,
            prices=lambda: prices.fetch_prices(REGION, self.rig.server.url),
            evictions=azure.evictions,
            scores=azure.scores,
        )
        self.supply = AzureSupply(azure, Market(REGION, sources, clock))
        self._looked_at = 0.0
        hands = Hands(azure, self.ray, self.life, self.refused)
        cluster = Cluster(
            MortalLauncher(self.launcher, self.life),
            hands,
            hands,
            self.supply,
            rehearsal=AzureRehearsal(azure),
            drains=hands,
            follows_policies=True,
        )
        database: Any = MortalDatabase(self.database, self.life)
        self.controller = Controller(database, self.settings, cluster)

    def follow(self, max_nodes: int, usd: float = 100.0, pace: float = 60.0) -> None:
        """What the operators want from now on."""
        counted = sum(row.state in COUNTED for row in self.rows())
        self.max_nodes, self.most, self.usd = max_nodes, max(max_nodes, counted), usd
        document = DOCUMENT.format(max_nodes=max_nodes, usd=usd, pace=pace)

        def work(connection: sa.Connection) -> None:
            newest = policies.newest_policies(connection) or fixed_pool(self.settings)
            wish = PolicyWish(document=document, digest=digest_of(document), based_on=newest.version)
            policies.insert_policies(connection, follow(newest, wish, self.rig.clock()))

        self.database.transact(work)

    def submit(self, least: int, most: int, steps: int) -> str:
        """Somebody's job, of so many steps of a second."""
        asked = {"command": "python train.py", "workers": {"min": least, "max": most}}
        spec = JobSpec.from_mapping(asked)
        row = job_row(
            self.rig.clock(),
            spec=spec.to_mapping(),
            min_workers=spec.min_workers,
            max_workers=spec.max_workers,
            worker_resources=WORKER,
        )
        self.crew.length[row.id] = steps
        self.database.transact(lambda connection: jobs.insert_job(connection, lifecycle.submit(row)))
        return row.id

    def turn(self, passes_s: float) -> None:
        """So many seconds pass: drivers work, then the controller has its turn, and all that must hold is looked at."""
        self.pass_by(passes_s)
        self.crew.play(self.rig.clock(), passes_s)
        if self.rig.clock() - self._looked_at >= 5.0:
            self._looked_at = self.rig.clock()
            self.supply.look()
        try:
            self.controller.tick(self.clock())
        except Death:
            self.struck["a death in the middle"] += 1
            self.skew_s = self.random.choice([0.0, 0.0, 60.0, -30.0])
            self._begin()
        self.check()

    def pass_by(self, passes_s: float) -> None:
        """Time goes by, and costs what the machines cost that are there."""
        self.cost += self.rate() * passes_s / 3600.0
        self.rig.clock.passed_s += passes_s

    def rate(self) -> float:
        """USD an hour of all machines that there are."""
        sold = self.supply.offerings()
        price = {one.capacity.value: one.price_per_hour for one in sold if one.size == CPU_SIZE}
        return sum(price[one.capacity] for one in machines_of(self.rig))

    def stand_still(self) -> None:
        """While the controller stands still in the middle of a turn another one takes over."""
        self.struck["a controller that stands still"] += 1
        self.pass_by(LEASE_S + 1.0)
        self._begin()
        for _ in range(2):
            self.controller.tick(self.clock())
            self.pass_by(1.0)

    # What goes wrong.

    def fault(self, name: str) -> None:
        """A request goes wrong, once or twice."""
        fault = Fault.model_validate({**FAULTS[name], "times": self.random.randint(1, 2)})
        self.rig.cloud.faults.all.append(fault)
        self._set.setdefault(name, []).append(fault)

    def take(self, machines: list[Machine]) -> None:
        """The cloud takes machines without a word."""
        rows = {row.id: row for row in self.rows()}
        for machine in machines:
            row = rows.get(node_of(machine))
            if (
                row is not None
                and row.state in (*COUNTED, NodeState.DRAINING)
                and row.state is not COUNTED[0]
            ):
                self.evicted.add(row.id)
            self.rig.cloud.evict(machine.name, self.rig.server.clock())

    def happen(self, name: str) -> None:
        """One of the things that go wrong happens, if it can."""
        machines = [one for one in machines_of(self.rig) if one.state != DELETING]
        running = [one for one in machines if one.state == SUCCEEDED]
        if name in FAULTS:
            self.fault(name)
            if name == "a poll that stumbles":
                # Only what became of a machine that failed is asked for.
                self.fault("no capacity after the yes, and a machine")
            return
        match name:
            case "an eviction" if running:
                self.take([self.random.choice(running)])
            case "an eviction of all" if len(running) > 1:
                self.take(running)
            case "a notice" if running:
                self.notice(self.random.choice(running))
            case "a machine that breaks" if running:
                one = self.random.choice(running)
                self.rig.cloud.fail(one.name, "VMStartTimedOut", "It does not run.", self.rig.server.clock())
            case "a machine that never joins" if starting := self.not_joined():
                self.ray.never_join.add(self.random.choice(starting))
            case "a machine that joins twice" if running:
                self.ray.joined_twice.add(node_of(self.random.choice(running)))
            case "clocks that go wrong":
                self.rig.server.clock.skew_s = self.random.uniform(-240.0, 240.0)
                self.ray.skew_s = self.random.uniform(-240.0, 240.0)
            case "slow operations":
                self.rig.cloud.create_s = self.random.choice([0.0, 6.0])
                self.rig.cloud.delete_s = self.random.choice([0.0, 6.0])
            case "a death in the middle":
                self.life.left = self.random.randint(1, 14)
                self.life.dies_after = self.random.random() < 0.5
                return  # it counts once it has happened
            case "a controller that stands still":
                self.life.left, self.life.meanwhile = self.random.randint(1, 14), self.stand_still
                return
            case "machines that join late" if self.ray.never_join:
                self.ray.never_join.clear()
            case _:
                return
        self.struck[name] += 1

    def calm(self) -> None:
        """The cloud behaves again, and the operators are generous: soon no machine is of a node that has ended."""
        self.rig.cloud.faults.all.clear()
        self.rig.cloud.create_s = self.rig.cloud.delete_s = 0.0
        self.life.left = None
        self.follow(max_nodes=6)
        for _ in range(7):
            self.turn(10.0)
        ended = {row.id for row in self.rows() if row.state in ENDED}
        assert not ended & {node_of(one) for one in machines_of(self.rig)}, (
            "machines of nodes that have ended"
        )

    def notice(self, machine: Machine) -> None:
        """The cloud says that it will take a machine, and the agent drains its node."""
        at = self.rig.cloud.notice(machine.name, self.rig.server.clock())
        name = node_of(machine)
        row = next(row for row in self.rows() if row.id == name)
        if row.state is NodeState.READY:
            self.noticed.setdefault(name, self.rig.clock())
        self.ray.draining.setdefault(name, at - self.rig.server.clock.skew_s + self.ray.skew_s)
        self.ray.leaves[name] = "the cloud takes the machine back (Preempt)"

    def not_joined(self) -> list[str]:
        """Nodes whose machines were asked for and are no members yet."""
        return [row.id for row in self.rows() if row.state in (NodeState.REQUESTED, NodeState.LAUNCHED)]

    def has_happened(self, name: str) -> bool:
        """It did, and not merely was meant to."""
        return any(fault.fired for fault in self._set.get(name, [])) or bool(self.struck[name])

    # What is in the books.

    def rows(self) -> list[NodeRow]:
        """All nodes that there ever were."""
        return self.database.query(lambda connection: nodes.current_nodes(connection, 0.0))

    def job(self, job_id: str) -> JobRow:
        row = self.database.query(lambda connection: jobs.get_job(connection, job_id))
        assert row is not None
        return row

    def events(self, job_id: str) -> list[Event]:
        return self.database.query(lambda c: telemetry.page_of_events(c, job_id, 0, 10_000))

    def node_events(self, node_id: str) -> list[NodeEvent]:
        return self.database.query(lambda c: nodes.page_of_node_events(c, node_id, 0, 10_000))

    def check(self) -> None:
        """What holds at every moment."""
        assert not self.too_early, "the cloud is asked during the pause that it wished for"
        machines = machines_of(self.rig)
        rows = {row.id: row for row in self.rows()}
        names = Counter(map(node_of, machines))
        assert names.keys() <= rows.keys(), "a machine without a row"
        assert max(names.values(), default=0) <= 1, "a node has two machines"
        counted = [row for row in rows.values() if row.state in COUNTED]
        assert len(counted) <= self.most, "more nodes than the pool may have"
        self.most = max(self.max_nodes, len(counted))
        for name, (used, limit) in self.rig.cloud.usages().items():
            assert used <= limit, f"more of the quota {name} than there is"
        parts: Counter[str] = Counter()
        for use in self.database.query(ledger.open_uses):
            parts[use.node_id] += use.part
        assert all(part <= 1.0 + 1e-9 for part in parts.values()), "a node is paid for twice"

        assert self.cost <= self.usd, "more is spent than there is"

    def check_words(self) -> None:
        """What happened stands in the events of nodes and jobs, in sentences."""
        # Only a process that does not know the quotas, or not what another one has just asked for, asks for too much.
        is_known = not (self.struck["a death in the middle"] or self.struck["a controller that stands still"])
        if is_known and not self.has_happened("usages that stumble"):
            known = [said for said in self.refused.values() if "are used and" in said]
            assert self.over_quota == len(known) == 0
        for name in self.evicted:
            said = [event.message for event in self.node_events(name) if event.kind == "node.terminating"]
            assert len(said) == 1
            assert "its machine is gone" in said[0], f"{name}: {said[0]}"
        for name, at in self.noticed.items():
            events = self.node_events(name)
            told = any("the cloud takes the machine back" in event.message for event in events)
            went = any(
                e.kind == "node.terminating" and e.at <= at + self.rig.cloud.notice_s + 15.0 for e in events
            )
            assert told or went
        for name, refusal in self.refused.items():
            assert refusal in {event.message for event in self.node_events(name)}
        for row in self.rows():
            assert "left the Ray cluster" not in str(row.message), "a living member was given up"
            events = self.node_events(row.id)
            assert [event.seq for event in events] == list(range(1, len(events) + 1))
            assert all(len(event.message.split()) > 2 for event in events)
            assert [e.kind for e in events if e.kind in ("node.gone", "node.failed")] == [events[-1].kind]
        for job_id in self.crew.length:
            self._check_words_of(job_id)

    def _check_words_of(self, job_id: str) -> None:
        events = self.events(job_id)
        assert all(len(event.message.split()) >= 2 for event in events)
        lost = [e for e in events if e.kind == "attempt.ended" and e.data["end_reason"] == "node_lost"]
        again = [e for e in events if e.kind == "job.queued" and e.data.get("reason") == "node_lost"]
        assert len(again) == len(lost) == self.job(job_id).losses
        assert all("another attempt follows" in event.message for event in again)
        attempts = self.database.query(lambda connection: jobs.job_attempts(connection, job_id))
        steps = [one.resumed_from_step for one in attempts if one.resumed_from_step is not None]
        assert steps == sorted(steps), "a job began before its checkpoint"

    def workers(self) -> int:
        """Workers of all jobs, by their drivers' account."""
        return sum(self.job(job_id).world_size for job_id in self.crew.length)

    def living(self) -> list[NodeRow]:
        return [row for row in self.rows() if row.state not in ENDED]

    def is_quiet(self) -> bool:
        """All jobs are over, all nodes are returned, and nothing is left of them."""
        cloud = self.rig.cloud
        over = all(self.job(job_id).state.is_terminal for job_id in self.crew.length)
        return over and not self.living() and not (cloud.machines or cloud.interfaces or cloud.disks)
