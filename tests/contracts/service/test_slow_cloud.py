"""A cloud that does not answer holds up nothing but what needs it: neither jobs, nor the lease, nor the end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cluster.provider import ProvidedNode
from remora.states import JobState, NodeState
from service.controller.connecting import ClusterConnection
from service.controller.controller import Process
from service.loops import scale
from service.settings import Settings
from service.store import leases
from service.store.database import Database
from service.store.leases import LeaseRow
from tests.service_fakes import FakeCluster, World

pytestmark = pytest.mark.postgresql_in_soak

#: The lease of these tests: short, so that it would be lost many times over while the cloud is waited for.
LEASE_S = 0.5


class SlowCloud(FakeCluster):
    """A cloud whose list takes as long as the test wants."""

    def __init__(self) -> None:
        super().__init__()
        self.answers = threading.Event()
        self.answers.set()
        self.is_asked = threading.Event()
        self.joins = True

    def list(self) -> list[ProvidedNode]:
        found = super().list()
        if not self.answers.is_set():
            self.is_asked.set()
            assert self.answers.wait(60)
        return found

    def hang(self) -> None:
        """The cloud is asked for its list, and does not answer from now on."""
        self.is_asked.clear()
        self.answers.clear()
        assert self.is_asked.wait(20)


class Service:
    """A controller process of this test, in threads; its cluster is the world's."""

    def __init__(self, world: World, cloud: SlowCloud) -> None:
        self.world, self.cloud = world, cloud
        #: Addresses of the heads that it was connected to, of those that it left, and those that it closed.
        self.connected: list[str] = []
        self.left: list[str] = []
        self.closed: list[str] = []
        self.process = Process(world.settings, world.database, self._connect)
        self._thread = threading.Thread(target=self.process.run)
        self._thread.start()

    def _connect(self, settings: Settings, address: str) -> ClusterConnection:
        self.connected.append(address)
        return replace(
            self.world.connect(),
            leave_ray=lambda: self.left.append(address),
            close=lambda: self.closed.append(address),
        )

    def end(self) -> None:
        """As a signal does."""
        self.process.stopping.set()
        self._thread.join(20)
        assert not self._thread.is_alive()


@pytest.fixture
def cloud() -> Iterator[SlowCloud]:
    slow = SlowCloud()
    yield slow
    slow.answers.set()


@pytest.fixture
def world(database: Database, tmp_path: Path, cloud: SlowCloud) -> World:
    (tmp_path / "ray.address").write_text("head:1\n")
    settings = Settings(home=tmp_path, nodes=2, node_cpus=1, lease_s=LEASE_S, tick_s=0.01)
    made = World(database, settings)
    made.cluster = cloud
    return made


@pytest.fixture
def service(world: World, cloud: SlowCloud) -> Iterator[Service]:
    made = Service(world, cloud)
    wait_for("two ready nodes", lambda: [one.state for one in world.nodes()] == [NodeState.READY] * 2)
    yield made
    cloud.answers.set()
    made.end()


def wait_for(what: str, happened: Callable[[], bool]) -> None:
    until = time.monotonic() + 30.0
    while not happened():
        assert time.monotonic() < until, f"not within 30 s: {what}"
        time.sleep(0.01)


def lease_of(world: World) -> LeaseRow:
    row = world.database.query(lambda connection: leases.get(connection, "controller"))
    assert row is not None
    return row


def test_jobs_start_are_followed_cancelled_and_ended_while_the_cloud_does_not_answer(
    world: World, service: Service
) -> None:
    world.now = time.time()
    one = world.submit()
    wait_for("the first job runs", lambda: world.job(one).state is JobState.ADMITTED)
    wait_for("its driver is there", lambda: bool(world.launcher.drivers))
    service.cloud.hang()
    token = lease_of(world).token
    # A job that fits on the nodes that there are is started.
    two = world.submit()
    wait_for("the second job starts", lambda: len(world.launcher.drivers) == 2)
    # What a driver reports is stored.
    world.launcher.driver_of(two).report("progress", at=world.now, state="running", world_size=1)
    wait_for("it is stored", lambda: world.job(two).state is JobState.RUNNING)
    # A job that its owner cancels ends.
    world.cancel(one)
    wait_for("the cancelled one ends", lambda: world.job(one).state is JobState.CANCELLED)
    # A job that is done ends, and its driver is let go.
    world.launcher.driver_of(two).report("ended", end_reason="completed", message="done", exit_code=0)
    wait_for("the other one ends", lambda: world.job(two).state is JobState.SUCCEEDED)
    wait_for("nothing runs any more", lambda: not world.launcher.drivers)
    assert not service.cloud.answers.is_set()
    assert lease_of(world).token == token, "it is still the first controller's"


def test_the_lease_is_renewed_while_the_cloud_does_not_answer_so_that_no_other_controller_takes_over(
    world: World, service: Service
) -> None:
    service.cloud.hang()
    before = lease_of(world)
    rival = Service(world, SlowCloud())
    try:
        wait_for("many renewals", lambda: lease_of(world).renewals >= before.renewals + 15)
        after = lease_of(world)
        assert (after.owner, after.token) == (before.owner, before.token)
    finally:
        service.cloud.answers.set()
        rival.end()


def test_a_controller_that_lost_its_lease_meanwhile_writes_nothing_when_the_cloud_answers(
    world: World, service: Service
) -> None:
    """Its list is an old one, in which a machine that the other controller has ended is still there."""
    service.cloud.hang()
    asked, created = len(service.cloud.requests), len(service.cloud.created)

    def take_over() -> bool:
        """False when it was renewed in between."""
        row = lease_of(world)
        return (
            world.database.transact(lambda c: leases.take(c, row, "controller", "another", 0.0)) is not None
        )

    wait_for("another one acts", take_over)
    assert lease_of(world).owner == "another"
    wait_for("the former one knows", lambda: service.process.lease is None)
    # Every node is lost, which would have to be written down and made good.
    for node in world.nodes():
        service.cloud.lose(node.id)
    looks = service.cloud.looks
    before = world.nodes()
    service.cloud.answers.set()
    service.process.stopping.set()
    service.end()
    assert service.cloud.looks == looks
    assert world.nodes() == before
    assert (len(service.cloud.requests), len(service.cloud.created)) == (asked, created)


def test_a_cloud_that_never_answers_does_not_keep_the_process_from_its_end(
    world: World, service: Service
) -> None:
    service.cloud.hang()
    service.end()
    assert service.process.is_stuck
    assert not lease_of(world).is_free, "who may still act in the cloud does not let the next one in"


def test_an_orderly_end_lets_the_next_one_in_at_once(world: World, service: Service) -> None:
    service.end()
    assert not service.process.is_stuck
    assert lease_of(world).is_free


def test_another_head_is_followed_at_once_and_the_connection_to_the_cloud_is_closed_when_it_has_answered(
    world: World, service: Service
) -> None:
    service.cloud.hang()
    (world.settings.home / "ray.address").write_text("head:2\n")
    wait_for("the new connection", lambda: service.connected == ["head:1", "head:2"])
    world.now = time.time()
    job_id = world.submit()
    wait_for("a job starts there", lambda: world.job(job_id).state is JobState.ADMITTED)
    assert (service.left, service.closed) == (["head:1"], []), "Ray is not asked, and the cloud still is"
    service.cloud.answers.set()
    wait_for("the old connection is closed", lambda: service.closed == ["head:1"])


def test_who_gets_which_node_is_decided_by_one_loop_at_a_time(
    world: World, cloud: SlowCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in world.ticks_until("two ready nodes"):
        if [one.state for one in world.nodes()] == [NodeState.READY] * 2:
            break
    job_id = world.submit()
    plan, decides, may_decide = scale.plan, threading.Event(), threading.Event()

    def plan_slowly(*arguments: Any) -> Any:
        decides.set()
        assert may_decide.wait(30)
        return plan(*arguments)

    monkeypatch.setattr(scale, "plan", plan_slowly)
    world.controller.holder.step(world.now)
    loops = [threading.Thread(target=loop) for loop in (world.controller.ask_cloud, world.controller.work)]
    loops[0].start()
    assert decides.wait(30)
    loops[1].start()
    loops[1].join(0.2)
    assert world.job(job_id).state is JobState.QUEUED, "the nodes are being decided about"
    may_decide.set()
    for loop in loops:
        loop.join(30)
    assert world.job(job_id).state is JobState.ADMITTED
