"""Working stand-ins for what the controller drives, with knobs for everything that can go wrong."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import sqlalchemy as sa

from cluster.policies.offerings import Offering
from cluster.policies.placement import ZONE_LABEL
from cluster.provider import NodeRequest, ProvidedNode, ProviderError
from cluster.ray.heartbeats import AgentStatus
from cluster.scheduling.ray_programs import RayDemand
from remora.spec.spec import JobSpec
from remora.spec.worker_sizes import WorkerSizes
from remora.states import EndReason
from service.clouds.fixed_pool import local_offerings
from service.controller.connecting import ClusterConnection
from service.controller.controller import Controller
from service.queue import lifecycle
from service.queue.rows import AttemptRow, JobRow, NodeRow
from service.settings import Settings
from service.store import jobs, leases, nodes
from service.store.database import Database
from service.store.ids import new_id
from trainers.plan import AttemptPlan, BuildAhead, DriverGone, ProfileRequest, Record
from trainers.preflight.answers import LinkAnswer, OwnAnswer
from trainers.preflight.product import DIGEST
from trainers.secret_values import values_of
from trainers.shells import STDOUT, OutputChunk, ShellAnswer, ShellTurn
from trainers.stored_ends import records_in


def job_row(now: float = 1000.0, **fields: Any) -> JobRow:
    """A small job that was not stored yet."""
    spec = JobSpec.from_mapping({"command": "python train.py", "name": "digits"})
    values: dict[str, Any] = {
        "id": new_id("job", now),
        "name": "digits",
        "project": "default",
        "priority": 50,
        "spec": spec.to_mapping(),
        "min_workers": 1,
        "max_workers": 1,
        "worker_resources": {"CPU": 1.0},
        "retry_limit": 3,
        "backoff_s": 1.0,
        "run_time_s": None,
        "wait_time_s": None,
        "created_at": now,
    }
    return JobRow(**{**values, **fields})


def hold_lease(connection: sa.Connection, owner: str = "test") -> leases.Lease:
    """The lease of the controllers for that owner, taken from any other; an owner that has it keeps its token."""
    row = leases.get(connection, "controller")
    if row is not None and row.owner == owner:
        lease = leases.Lease("controller", owner, row.token)
        assert leases.renew(connection, lease, 1000.0)
        return lease
    taken = leases.take(connection, row, "controller", owner, 1000.0)
    assert taken is not None
    return taken


def records(
    *kinds_and_bodies: tuple[str, dict[str, Any]], first: int = 1, at: float = 1001.0
) -> list[Record]:
    """Records numbered from `first` on."""
    return [
        Record(seq=seq, at=at, kind=kind, body=body)  # type: ignore[arg-type]
        for seq, (kind, body) in enumerate(kinds_and_bodies, start=first)
    ]


@dataclass
class FakeDriver:
    """What runs of one attempt."""

    plan: AttemptPlan
    #: False: it lives, and was never sent its plan.
    has_plan: bool = True
    reported: list[Record] = field(default_factory=list)
    acknowledged: int = 0
    gone: DriverGone | None = None
    stop_reason: EndReason | None = None
    #: False: it goes on after `stop`.
    obeys: bool = True
    #: The lists of kept nodes that it was sent, in order.
    heard: list[dict[str, str]] = field(default_factory=list)
    #: The orders by which its sizes changed.
    orders: list[float] = field(default_factory=list)
    #: The requests for stacks that it knows of.
    stacks_requested: list[float] = field(default_factory=list)
    #: The requests for profiles that it knows of.
    profiles_requested: list[ProfileRequest] = field(default_factory=list)
    #: The values of the secrets that it was sent.
    secrets: dict[str, str] = field(default_factory=dict)

    def report(self, kind: str, /, at: float = 1001.0, **body: Any) -> None:
        """Say one more thing."""
        self.reported.extend(records((kind, body), first=len(self.reported) + 1, at=at))


class FakeLauncher:
    """Drivers without processes; `drivers` holds what runs, `history` every driver that ever ran."""

    def __init__(self) -> None:
        self.drivers: dict[str, FakeDriver] = {}
        self.history: list[FakeDriver] = []
        self.killed: list[str] = []
        #: The environments that nodes were asked to build last.
        self.preparations: tuple[BuildAhead, ...] = ()
        #: Attempts that have had a driver, or shall have none.
        self.claimed: set[str] = set()
        #: Raised by the next calls of that name, or of that name for an attempt, until removed.
        self.failing: dict[str, Exception] = {}
        #: True: it is the time to list all attempts that have drivers.
        self.lists_attempts = False
        #: True: new drivers live, and nothing that they are sent reaches them.
        self.loses_plans = False
        #: True: drivers do not react when they are killed.
        self.loses_kills = False
        #: True: drivers do not react to requests to stop.
        self.loses_stops = False
        #: True: drivers do not take other sizes.
        self.loses_sizes = False
        self.loses_stacks = False
        #: The files with the ends of attempts, by their ids; `reads_ends_later`: it is not known yet what they say.
        self.stored_ends: dict[str, bytes] = {}
        self.reads_ends_later = False
        #: True: drivers that have their plan do not say so.
        self.is_mute = False

    def _maybe_fail(self, name: str) -> None:
        if name in self.failing:
            raise self.failing[name]

    def start(self, plan: AttemptPlan, secrets: Sequence[bytes] = ()) -> bool | DriverGone:
        self._maybe_fail("start")
        driver = self.drivers.setdefault(plan.attempt_id, FakeDriver(plan, has_plan=False))
        if not driver.has_plan and not self.loses_plans:
            if plan.attempt_id in self.claimed:
                del self.drivers[plan.attempt_id]
                return DriverGone(EndReason.DRIVER_LOST, "the attempt belongs to another driver already")
            others = [one for one in self.drivers.values() if one.has_plan and one.plan.job_id == plan.job_id]
            assert not others, f"job {plan.job_id} would run twice"
            self.claimed.add(plan.attempt_id)
            driver.has_plan = True
            driver.secrets = values_of(secrets)
            self.history.append(driver)
        return driver.has_plan and not self.is_mute

    def prepare(self, token: int) -> None:
        pass

    def attempts(self) -> list[str]:
        return list(self.drivers) if self.lists_attempts else []

    def build_ahead(self, wanted: Sequence[BuildAhead]) -> None:
        self.preparations = tuple(wanted)

    def poll(self, attempt_ids: list[str], after: dict[str, int]) -> dict[str, list[Record] | DriverGone]:
        self._maybe_fail("poll")
        answers: dict[str, list[Record] | DriverGone] = {}
        for attempt_id in attempt_ids:
            driver = self.drivers.get(attempt_id)
            if driver is None or not driver.has_plan:
                answers[attempt_id] = DriverGone(EndReason.DRIVER_LOST, "the driver died")
            elif driver.gone is not None:
                answers[attempt_id] = driver.gone
            else:
                driver.acknowledged = max(driver.acknowledged, after[attempt_id])
                answers[attempt_id] = [record for record in driver.reported if record.seq > after[attempt_id]]
        return answers

    def keep(self, attempt_id: str, nodes: Mapping[str, str], token: int) -> bool:
        del token
        self._maybe_fail("keep")
        self._maybe_fail(f"keep {attempt_id}")
        driver = self.drivers[attempt_id]
        if (driver.heard[-1] if driver.heard else {}) != nodes:
            driver.heard.append(dict(nodes))
        return True

    def resize(self, attempt_id: str, sizes: WorkerSizes, order: float) -> bool:
        self._maybe_fail("resize")
        driver = self.drivers[attempt_id]
        if self.loses_sizes:
            return False
        driver.plan = replace(driver.plan, sizes=sizes)
        driver.orders.append(order)
        return True

    def request_stacks(self, attempt_id: str, order: float) -> bool:
        self._maybe_fail("request_stacks")
        if self.loses_stacks:
            return False
        self.drivers[attempt_id].stacks_requested.append(order)
        return True

    def request_profile(self, attempt_id: str, request: ProfileRequest) -> bool:
        self._maybe_fail("request_profile")
        self.drivers[attempt_id].profiles_requested.append(request)
        return True

    def stop(self, attempt_id: str, reason: EndReason) -> None:
        self._maybe_fail("stop")
        driver = self.drivers[attempt_id]
        if self.loses_stops:
            return
        if driver.stop_reason is None and driver.obeys:
            driver.report("ended", end_reason=reason.value, message="asked to stop", exit_code=None)
        driver.stop_reason = reason

    def kill(self, attempt_id: str) -> bool:
        self._maybe_fail("kill")
        self.killed.append(attempt_id)
        if self.loses_kills:
            return attempt_id not in self.drivers
        self.drivers.pop(attempt_id, None)
        return True

    def stored_end(
        self, attempt_id: str, *, job_id: str, storage_url: str, after: int
    ) -> Sequence[Record] | None:
        self._maybe_fail("stored_end")
        if self.reads_ends_later:
            return None
        return records_in(self.stored_ends.get(attempt_id, b""), after)

    def close(self, attempt_id: str, *, job_id: str, storage_url: str) -> bool:
        self._maybe_fail("close")
        self.claimed.add(attempt_id)
        return True

    def driver_of(self, job_id: str) -> FakeDriver:
        """The one driver that runs for a job."""
        (driver,) = [one for one in self.drivers.values() if one.plan.job_id == job_id]
        return driver


@dataclass
class FakeShell:
    """A shell in a driver: what it got, and what it says."""

    state: ShellTurn
    typed: list[bytes] = field(default_factory=list)
    printed: list[OutputChunk] = field(default_factory=list)
    is_open: bool = True
    taken: int = 0
    #: Why it has ended, and with which exit code.
    end: tuple[str, int | None] | None = None

    def print(self, *contents: bytes, stream: int = STDOUT) -> None:
        """Print these, a chunk each."""
        for content in contents:
            self.printed.append((len(self.printed) + 1, stream, content))

    def answer(self) -> ShellAnswer:
        """As a driver answers it."""
        for number, content in self.state.inputs:
            if self.is_open and number == self.taken + 1:
                self.taken = number
                self.typed.append(content)
        chunks, left = [], self.state.room
        for chunk in self.printed[self.state.after :]:
            if len(chunk[2]) > left:
                break
            left -= len(chunk[2])
            chunks.append(chunk)
        is_whole = self.state.after + len(chunks) == len(self.printed)
        message, code = self.end if self.end is not None and is_whole else (None, None)
        return ShellAnswer(
            number=self.state.number,
            is_open=self.is_open,
            taken=self.taken,
            chunks=tuple(chunks),
            message=message,
            exit_code=code,
        )


class FakeShellTransport:
    """Shells without processes, by attempt and number; `over` holds those that drivers have ended."""

    def __init__(self) -> None:
        self.open: dict[tuple[str, int], FakeShell] = {}
        self.over: list[FakeShell] = []
        #: True: calls arrive, and no answer comes back.
        self.is_mute = False
        #: False: drivers have not opened what they are asked for.
        self.opens = True
        self.orders: list[tuple[int, int]] = []

    def exchange(
        self, order: tuple[int, int], states: Mapping[str, Sequence[ShellTurn]]
    ) -> dict[str, list[ShellAnswer]]:
        self.orders.append(order)
        for attempt_id, those in states.items():
            named = {(attempt_id, one.number) for one in those}
            for place in [one for one in self.open if one[0] == attempt_id and one not in named]:
                self.over.append(self.open.pop(place))
            for one in those:
                made = FakeShell(one, is_open=self.opens)
                self.open.setdefault((attempt_id, one.number), made).state = one
        answers = {
            attempt_id: [self.open[attempt_id, one.number].answer() for one in those]
            for attempt_id, those in states.items()
        }
        return {} if self.is_mute else answers


@dataclass(frozen=True)
class FakeMember:
    """A node as Ray would see it."""

    address: str
    is_alive: bool
    is_draining: bool
    resources: dict[str, float]
    deadline_at: float | None = None
    is_in_use: bool = False
    leaves: str | None = None
    agent: AgentStatus | None = None


class FakeCluster:
    """A provider and the membership of what it made; both see the same machines."""

    def __init__(self) -> None:
        self.machines: dict[str, ProvidedNode] = {}
        self.resources: dict[str, dict[str, float]] = {}
        #: False: machines run and never join.
        self.joins = True
        #: The head cannot be reached from these zones, by the label of their nodes.
        self.cut_off: set[str] = set()
        #: Machines that are deleted run on, and are not listed any more.
        self.ends_slowly = False
        self._ending: dict[str, ProvidedNode] = {}
        self._zones: dict[str, str | None] = {}
        self.draining: set[str] = set()
        #: Nodes of which Ray has given something away.
        self.in_use: set[str] = set()
        #: Ray gives them away right before it gets the next drain.
        self.taken_before_drain: set[str] = set()
        #: Heartbeats of agents; nodes that are missing have none.
        self.agents: dict[str, AgentStatus] = {}
        #: Raised by the next `create`, one each.
        self.refusals: list[ProviderError] = []
        self.list_error: ProviderError | None = None
        #: Raised by `observe` until removed: Ray does not say which members there are.
        self.ray_error: Exception | None = None
        self.looks = 0
        #: Deadlines of the nodes that got a notice.
        self.notices: dict[str, float] = {}
        #: Deadlines of the nodes that the controller had drained.
        self.drains: dict[str, float] = {}
        #: Raised by `drain` until removed.
        self.drain_error: Exception | None = None
        #: Not None: a cloud that gives this notice when it likes, and takes its nodes itself.
        self.gives_notice_s: float | None = None
        #: Raised by `notify` for these nodes.
        self.notice_errors: dict[str, Exception] = {}
        #: Every id that `create` made a machine for.
        self.created: list[str] = []
        #: What it was asked for, refused or not.
        self.requests: list[NodeRequest] = []

    def create(self, request: NodeRequest) -> None:
        self.requests.append(request)
        if self.refusals:
            raise self.refusals.pop(0)
        if request.node_id not in self.machines:
            self.created.append(request.node_id)
            self.resources[request.node_id] = dict(request.resources)
            self._zones[request.node_id] = request.labels.get(ZONE_LABEL)
            self.machines[request.node_id] = ProvidedNode(
                node_id=request.node_id, pool=request.pool, is_running=True, address=None, created_at=0.0
            )

    def list(self) -> list[ProvidedNode]:
        self.looks += 1
        if self.list_error is not None:
            raise self.list_error
        return list(self.machines.values())

    def delete(self, node_id: str) -> None:
        machine = self.machines.pop(node_id, None)
        if machine is not None and self.ends_slowly:
            self._ending[node_id] = machine

    def lose(self, node_id: str) -> None:
        """The machine dies."""
        self.machines[node_id] = replace(
            self.machines[node_id], is_running=False, message="killed by signal 9"
        )

    def refuse_later(self, node_id: str, error: ProviderError) -> None:
        """The cloud had accepted the machine and cannot make it after all."""
        self.machines[node_id] = replace(
            self.machines[node_id], is_running=False, message=str(error), refusal=error
        )

    def drain(self, node_id: str, reason: str, deadline_at: float) -> None:
        assert reason
        if self.drain_error is not None:
            raise self.drain_error
        self.in_use |= self.taken_before_drain
        self.taken_before_drain = set()
        self.drains[node_id] = deadline_at
        self.draining.add(node_id)

    @property
    def own_notice_s(self) -> float | None:
        """That of the cloud that takes its nodes itself."""
        return self.gives_notice_s

    def notify(self, node_id: str, deadline_at: float) -> None:
        if node_id in self.notice_errors:
            raise self.notice_errors[node_id]
        self.notices[node_id] = deadline_at
        if self.gives_notice_s is None:
            self.draining.add(node_id)

    def address_of(self, node_id: str) -> str:
        """Every node has its own."""
        return f"127.0.1.{self.created.index(node_id) + 1}"

    def take(self, node_id: str) -> None:
        if node_id in self.machines:
            self.lose(node_id)

    def observe(self) -> dict[str, FakeMember]:
        if self.ray_error is not None:
            raise self.ray_error
        return {
            machine.node_id: FakeMember(
                address=self.address_of(machine.node_id),
                is_alive=machine.is_running,
                is_draining=machine.node_id in self.draining,
                deadline_at=self.notices.get(machine.node_id) if machine.node_id in self.draining else None,
                is_in_use=machine.node_id in self.in_use,
                resources=self.resources[machine.node_id],
                agent=self.agents.get(machine.node_id),
            )
            for machine in (*self.machines.values(), *self._ending.values())
            if self.joins and self._zones[machine.node_id] not in self.cut_off
        }


SOUND = {
    "device": "cpu",
    "gpus": 0,
    "memory_bytes": 16 * 10**9,
    "digests": [[DIGEST]],
    "product_s": 0.001,
    "bad_memory": [],
    "hip": None,
    "problem": None,
}


class FakePreflights:
    """Nodes that measure themselves and each other as the test says."""

    def __init__(self) -> None:
        #: What nodes find out about themselves, beyond `SOUND`, by node id; None: they do not answer.
        self.findings: dict[str, dict[str, Any] | None] = {}
        #: Why the next measurements of nodes end without an answer, by node id.
        self.errors: dict[str, list[str]] = {}
        #: Nodes whose Remora is of a release that has no preflight.
        self.old: set[str] = set()
        #: MB per second of nodes; a link has that of its slower end, None where it cannot be measured.
        self.speeds: dict[str, float | None] = {}
        #: Nodes that Ray does not know, so that no link of theirs is begun.
        self.unknown: set[str] = set()
        #: Pairs do not answer yet.
        self.holds_links = False
        #: Nodes that were asked, and pairs, in order.
        self.asked: list[str] = []
        self.linked: list[tuple[str, str]] = []
        self._own: list[str] = []
        self._links: list[tuple[str, str]] = []

    def measure(self, node_ids: Collection[str], limit_s: float) -> None:
        assert limit_s > 0
        new = [one for one in node_ids if one not in self._own]
        self.asked += new
        self._own += new

    def link(self, backends: Mapping[tuple[str, str], str], limit_s: float) -> list[tuple[str, str]]:
        assert set(backends.values()) <= {"gloo", "nccl"}
        assert limit_s > 0
        new = [one for one in backends if one not in self._links and self.unknown.isdisjoint(one)]
        self.linked += new
        self._links += new
        return [one for one in backends if one in self._links]

    def answers(self) -> list[OwnAnswer | LinkAnswer]:
        found: list[OwnAnswer | LinkAnswer] = []
        for node_id in [one for one in self._own if self.findings.get(one, {}) is not None]:
            self._own.remove(node_id)
            if node_id in self.old:
                found.append(OwnAnswer(node_id, None, "its Remora is old", lacks_preflight=True))
            elif self.errors.get(node_id):
                found.append(OwnAnswer(node_id, None, self.errors[node_id].pop(0)))
            else:
                said = SOUND | (self.findings.get(node_id) or {})
                found.append(OwnAnswer(node_id, json.dumps(said), None))
        if self.holds_links:
            return found
        for pair in self._links:
            speeds = [self.speeds.get(node_id, 1000.0) for node_id in pair]
            known = [speed for speed in speeds if speed is not None]
            is_known = len(known) == 2
            found.append(LinkAnswer(pair, min(known) if is_known else None, None if is_known else "no route"))
        self._links.clear()
        return found

    def keep_only(self, node_ids: Collection[str]) -> None:
        self._own = [one for one in self._own if one in node_ids]
        self._links = [one for one in self._links if set(one) & set(node_ids)]


class FakeRayPrograms:
    """What Ray programs ask for and hold, as the test says."""

    def __init__(self) -> None:
        self.demand = RayDemand()

    def observe(self) -> RayDemand:
        return self.demand


class FakeSupply:
    """What can be bought here, as the test says."""

    def __init__(self, offerings: tuple[Offering, ...]) -> None:
        self.sold = offerings
        self.left: dict[str, int] = {}
        self.limits: dict[str, int] = {}

    def offerings(self) -> tuple[Offering, ...]:
        return self.sold

    def quota_left(self) -> dict[str, int]:
        return self.left

    def quota_limits(self) -> dict[str, int]:
        return self.limits


class World:
    """A database, fakes, a clock that only tests move, and any number of controllers."""

    def __init__(self, database: Database, settings: Settings) -> None:
        self.database = database
        self.settings = settings
        self.launcher = FakeLauncher()
        self.cluster = FakeCluster()
        self.supply = FakeSupply(local_offerings(settings))
        self.ray_programs = FakeRayPrograms()
        self.preflights = FakePreflights()
        self.shells = FakeShellTransport()
        #: True: nodes are bought as jobs need them and drained when they are not wanted any more.
        self.buys = False
        #: Seconds between two observations of the cloud.
        self.observation_interval_s = 0.0
        self.now = 1000.0
        #: Seconds by which the clock was set, of which `now` is the time; monotonic clocks go on as they do.
        self.set_by_s = 0.0
        self.controller = self.new_controller()

    def new_controller(self) -> Controller:
        """One more controller on the same database and the same cluster."""
        return Controller(self.database, self.settings, self.connect(), lambda: self.now - self.set_by_s)

    def set_clock(self, by_s: float) -> None:
        """The clock of this machine is set."""
        self.set_by_s += by_s
        self.now += by_s

    def succeed(self) -> Controller:
        """Another controller, which takes over because the one before is silent from now on."""
        self.controller = self.new_controller()
        assert not self.controller.tick(self.now), "it has to be sure that no other controller acts"
        self.now += self.settings.lease_s
        return self.controller

    def connect(self) -> ClusterConnection:
        """A new connection to the same cluster."""
        return ClusterConnection(
            self.launcher,
            self.cluster,
            self.cluster,
            self.supply,
            rehearsal=self.cluster,
            drains=self.cluster,
            follows_policies=self.buys,
            ray_programs=self.ray_programs,
            preflights=self.preflights,
            shells=self.shells,
            observation_interval_s=lambda: self.observation_interval_s,
        )

    def tick(self, count: int = 1) -> None:
        """Let the first controller run `count` ticks, a quarter of a second apart."""
        for _ in range(count):
            self.now += 0.25
            assert self.controller.tick(self.now)
            self.controller.deletion.wait(10.0)

    def ticks_until(self, what: str) -> Iterator[int]:
        """Ticks until the test breaks out of the loop."""
        for number in range(200):
            self.tick()
            yield number
        raise AssertionError(f"200 ticks passed without: {what}")

    def submit(self, **fields: Any) -> str:
        """Store a new job; its id."""
        row = job_row(self.now, **fields)
        self.database.transact(lambda connection: jobs.insert_job(connection, lifecycle.submit(row)))
        return row.id

    def cancel(self, job_id: str) -> None:
        """What the API does on cancel."""

        def work(connection: sa.Connection) -> None:
            row = jobs.lock_job(connection, job_id)
            assert row is not None
            jobs.save(connection, row, lifecycle.request_cancel(row, self.now))

        self.database.transact(work)

    def job(self, job_id: str) -> JobRow:
        row = self.database.query(lambda connection: jobs.get_job(connection, job_id))
        assert row is not None
        return row

    def attempts(self, job_id: str) -> list[AttemptRow]:
        return self.database.query(lambda connection: jobs.job_attempts(connection, job_id))

    def nodes(self) -> list[NodeRow]:
        return self.database.query(
            lambda connection: nodes.current_nodes(connection, self.settings.cluster, 0.0)
        )
