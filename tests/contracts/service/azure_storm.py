"""A controller that buys on the emulated Azure, jobs whose drivers are played, and whatever may go wrong with them.

Everything goes by one clock that only `Storm.tick` moves.  Jobs are in `storm_jobs`, what goes wrong in
`storm_weather`, the limits in `storm_limits`, and what has to hold in `storm_books`.
"""

from __future__ import annotations

import random
from typing import Any

import sqlalchemy as sa

from cluster.azure import prices
from cluster.azure.emulator.emulated_cloud import EmulatedMachine
from cluster.azure.emulator.server import REGION
from cluster.azure.region_catalogue import RegionCatalogue, Sources
from cluster.azure.rehearsal import AzureRehearsal
from cluster.azure.supply import AzureSupply
from cluster.policies.documents import digest_of
from remora.spec.spec import JobSpec
from remora.states import NodeState
from service.clouds.fixed_pool import fixed_pool
from service.controller.connecting import ClusterConnection
from service.controller.controller import Controller
from service.queue import lifecycle
from service.queue.policy_versions import PolicyRequest, next_version
from service.settings import Settings
from service.store import jobs, policies
from service.store.database import Database
from tests.contracts.cluster.azure_rig import CPU_SIZE, AzureRig
from tests.contracts.service.storm_books import TAKEN, Books
from tests.contracts.service.storm_cloud import machines_of, node_of, settle_neighbour
from tests.contracts.service.storm_jobs import WORKER, JobDrivers
from tests.contracts.service.storm_limits import PLENTY
from tests.contracts.service.storm_lives import (
    Death,
    Life,
    MortalDatabase,
    MortalLauncher,
    ProcessAccess,
    Witness,
    watch_pauses,
)
from tests.contracts.service.storm_members import Ray
from tests.contracts.service.storm_weather import Weather
from tests.service_fakes import FakeLauncher, job_row

DAY_S = 86_400.0
LEASE_S = 5.0

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


class Storm:
    """One cluster from its first job to its last machine, and what happens to it meanwhile; by seed."""

    def __init__(self, rig: AzureRig, database: Database, settings: Settings, seed: int) -> None:
        self.rig = rig
        self.database = database
        self.settings = settings.model_copy(update={"lease_s": LEASE_S})
        self.random = random.Random(seed)
        # In the morning: days of money end at midnight.
        rig.clock.passed_s += (8 * 3600.0 - rig.clock()) % DAY_S
        settle_neighbour(rig)
        self.launcher = FakeLauncher()
        self.ray = Ray(rig, self.random)
        self.job_drivers = JobDrivers(self.launcher, self.ray, self.random)
        self.witness = Witness()
        self.books: Books = Books(self)
        self.weather: Weather = Weather(self)
        self.max_nodes, self.usd = 0, 0.0
        #: USD that the cloud has asked for today; and those of them for moments at which no controller could end a
        #: machine, as the controller had died, or the cloud did not do what it was asked.
        self.cost = self.excused = 0.0
        self._is_hindered = False
        #: Seconds by which the clock of the controller's machine goes wrong.
        self._skew_s = 0.0
        self._begin()
        watch_pauses(rig, lambda: self._acting, self.witness)

    def _begin(self) -> None:
        """A process of a controller that knows nothing yet."""
        skew_s, self.life = self._skew_s, Life()
        self._acting = self.life
        #: Seconds for which its machine was suspended, which no clock of the process counts.
        asleep = self._asleep = [0.0]

        def clock() -> float:
            return self.rig.clock() + skew_s

        self.clock = clock
        self._azure = azure = self.rig.another(clock)
        sources = Sources(
            skus=azure.skus,
            prices=lambda: prices.fetch_prices(REGION, self.rig.server.url),
            evictions=azure.evictions,
            scores=azure.scores,
        )
        self.supply = AzureSupply(azure, RegionCatalogue(REGION, sources, clock))
        self._looked_at = 0.0
        access = ProcessAccess(self.rig, self.database, azure, self.ray, self.life, self.witness)
        cluster = ClusterConnection(
            MortalLauncher(self.launcher, self.life),
            access,
            access,
            self.supply,
            rehearsal=AzureRehearsal(azure),
            drains=access,
            follows_policies=True,
        )
        database: Any = MortalDatabase(self.database, self.life)
        self.controller = Controller(database, self.settings, cluster, lambda: self.rig.clock() - sum(asleep))

    def follow(self, max_nodes: int, usd: float = PLENTY, pace: float = 60.0) -> None:
        """What the operators want from now on."""
        self.max_nodes, self.usd = max_nodes, usd
        self.books.allow(max_nodes)
        document = DOCUMENT.format(max_nodes=max_nodes, usd=usd, pace=pace)

        def work(connection: sa.Connection) -> None:
            newest = policies.newest_policies(connection) or fixed_pool(self.settings)
            request = PolicyRequest(document=document, digest=digest_of(document), based_on=newest.version)
            policies.insert_policies(connection, next_version(newest, request, self.rig.clock()))

        self.database.transact(work)

    def submit(self, least: int, most: int, steps: int) -> str:
        """A job of a user, of `steps` steps of a second."""
        asked = {"command": "python train.py", "workers": {"min": least, "max": most}}
        spec = JobSpec.from_mapping(asked)
        row = job_row(
            self.rig.clock(),
            spec=spec.to_mapping(),
            min_workers=spec.min_workers,
            max_workers=spec.max_workers,
            worker_resources=WORKER,
        )
        self.job_drivers.length[row.id] = steps
        self.database.transact(lambda connection: jobs.insert_job(connection, lifecycle.submit(row)))
        return row.id

    def tick(self, passes_s: float) -> None:
        """`passes_s` seconds pass: drivers work, then the controller ticks, and all that must hold is checked."""
        self.pass_by(passes_s)
        self.job_drivers.play(self.rig.clock(), passes_s)
        if self.rig.clock() - self._looked_at >= 5.0:
            self._looked_at = self.rig.clock()
            self.supply.look()
        self._knew = self.life.knows_quotas = bool(self._azure.quota_known())
        self.life.refused.clear()
        self.life.is_hindered = False
        self._acting = self.life
        try:
            self.controller.tick(self.clock())
            self.rig.cloud.unlisted.clear()
            self.witness.refused |= self.life.refused
            self._is_hindered = self.life.is_hindered
        except Death:
            self._is_hindered = True
            self.weather.died()
            self.succeed()
        if not self._knew:
            self.witness.blindly.update(self.books.requested())
        self.books.check()

    def pass_by(self, passes_s: float) -> None:
        """Time goes by, and costs what the machines cost that are there; every day begins with nothing spent."""
        rate, today_s = self.rate(), DAY_S - self.rig.clock() % DAY_S
        if passes_s > today_s:
            self.cost = self.excused = 0.0
        cost = rate * (passes_s - today_s if passes_s > today_s else passes_s) / 3600.0
        self.cost += cost
        self.excused += cost if self._is_hindered else 0.0
        self.rig.clock.passed_s += passes_s

    def next_day(self) -> None:
        """The time goes on to the next day: what was refused, or spent, is so no more."""
        self.tick((30.0 - self.rig.clock()) % DAY_S)

    def rate(self) -> float:
        """USD an hour of all machines that there are."""
        sold = self.supply.offerings()
        price = {one.capacity.value: one.price_per_hour for one in sold if one.size == CPU_SIZE}
        return sum(price[one.capacity] for one in machines_of(self.rig))

    def succeed(self) -> None:
        """Another process takes the place of the one that acted, on a machine whose clock may be another one."""
        self._skew_s = self.random.choice([0.0, 0.0, 60.0, -30.0])
        self._begin()

    def stand_still(self) -> None:
        """While the controller stands still in the middle of a tick another one takes over."""
        self.weather.struck["a controller that stands still"] += 1
        stands, asleep, began = self.life, self._asleep, self.rig.clock()
        self._knew = stands.knows_quotas = False
        self._begin()
        self.controller.tick(self.clock())
        self.pass_by(LEASE_S + 1.0)
        for _ in range(2):
            self.controller.tick(self.clock())
            self.pass_by(1.0)
        asleep.append(self.rig.clock() - began)
        self._acting = stands

    def take(self, machines: list[EmulatedMachine]) -> None:
        """The cloud takes machines without a word."""
        states = {row.id: row.state for row in self.books.rows()}
        for machine in machines:
            if states.get(node_of(machine)) in TAKEN:
                self.books.evicted.add(node_of(machine))
            self.rig.cloud.evict(machine.name, self.rig.server.clock())

    def notice(self, machine: EmulatedMachine) -> None:
        """The cloud says that it will take a machine, and the agent drains its node."""
        at = self.rig.cloud.notice(machine.name, self.rig.server.clock())
        name = node_of(machine)
        row = next(row for row in self.books.rows() if row.id == name)
        if row.state is NodeState.READY:
            self.books.noticed.setdefault(name, self.rig.clock())
        self.ray.draining.setdefault(name, at - self.rig.server.clock.skew_s + self.ray.skew_s)
        self.ray.leaves[name] = "the cloud takes the machine back (Preempt)"

    def calm(self) -> None:
        """The cloud behaves again, and the operators are generous: soon no machine is of a node that has ended."""
        self.weather.end()
        self.follow(max_nodes=6)
        for _ in range(7):
            self.tick(10.0)
        self.books.check_cleared()
