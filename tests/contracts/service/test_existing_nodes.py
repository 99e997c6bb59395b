"""The controller on a cluster that it did not start: it uses what is there, and never asks for more nor ends any."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from cluster.existing.provider import ClaimDrains, ExistingProvider
from cluster.provider import NodeRequest
from cluster.ray.node_claims import Claim, written
from remora.ray_labels import CLAIM, drains_in, with_claims
from remora.states import JobState, NodeState
from service.controller.connecting import ClusterConnection
from service.controller.controller import Controller
from service.settings import Settings
from service.store import sick_reports
from service.store.database import Database
from tests.contracts.service.buying import apply, train
from tests.existing_nodes import FewNodes, node
from tests.service_fakes import FakeMember, World

pytestmark = pytest.mark.postgresql_in_soak

ONE_NODE = """\
pools:
  existing:
    sizes: [node]
    capacity: on-demand
    min_nodes: 0
    max_nodes: 1
"""


class ClaimedMembers:
    """What Ray says of the nodes that are claimed."""

    def __init__(self, cluster: FewNodes) -> None:
        self._cluster = cluster

    def observe(self) -> Mapping[str, FakeMember]:
        by_id = {one.id: one for one in self._cluster.nodes()}
        found = {claim.node_id: by_id.get(claim.ray_node_id) for claim in self._cluster.claims()}
        until = {claim.node_id: claim.drains_until for claim in self._cluster.claims()}
        return {
            node_id: FakeMember(
                one.address,
                one.is_alive,
                one.is_draining or until[node_id] is not None,
                dict(one.resources),
                until[node_id],
            )
            for node_id, one in found.items()
            if one is not None
        }


class ExistingWorld(World):
    """A controller before an existing cluster of as many nodes as a test says."""

    def __init__(self, database: Database, settings: Settings) -> None:
        self.there = FewNodes([node(1), node(2)])
        super().__init__(database, settings)

    def connect(self) -> ClusterConnection:
        provider = ExistingProvider(self.there, lambda: self.now)
        return ClusterConnection(
            self.launcher,
            provider,
            ClaimedMembers(self.there),
            provider,
            drains=ClaimDrains(self.there),
            withhold=provider.withhold,
        )

    def ready(self) -> list[str | None]:
        return sorted(str(one.address) for one in self.nodes() if one.state is NodeState.READY)

    def entries(self) -> dict[bytes, bytes]:
        """What drivers read of the claims."""
        return {CLAIM + one.ray_node_id.encode(): written(one) for one in self.there.claims()}

    def until_ready(self, *addresses: str) -> None:
        for _ in self.ticks_until(f"ready: {addresses}"):
            if self.ready() == list(addresses):
                return


@pytest.fixture
def world(database: Database, tmp_path: Path) -> ExistingWorld:
    return ExistingWorld(database, Settings(home=tmp_path, cloud="existing", lease_s=5.0))


def test_each_node_that_is_there_is_used_and_no_row_is_made_for_more(world: ExistingWorld) -> None:
    world.until_ready("10.0.0.1", "10.0.0.2")
    world.tick(20)
    assert len(world.nodes()) == 2, "nothing was asked for that is not there"
    assert {one.resources["CPU"] for one in world.nodes()} == {4.0}
    world.there.seen.append(node(3, CPU=8.0))
    world.until_ready("10.0.0.1", "10.0.0.2", "10.0.0.3")


def test_a_node_that_is_lost_is_given_up_and_another_one_takes_its_place(world: ExistingWorld) -> None:
    world.until_ready("10.0.0.1", "10.0.0.2")
    world.there.seen[0] = replace(node(1), is_alive=False)
    world.until_ready("10.0.0.2")
    assert [claim.ray_node_id for claim in world.there.claims()] == [node(2).id]
    world.tick(20)
    world.there.seen.append(node(4))
    world.until_ready("10.0.0.2", "10.0.0.4")


def test_a_job_starts_on_what_is_there(world: ExistingWorld) -> None:
    world.until_ready("10.0.0.1", "10.0.0.2")
    job = world.submit(min_workers=2, max_workers=2, worker_resources={"CPU": 4.0})
    for _ in world.ticks_until("the job is started"):
        if world.job(job).state is not JobState.QUEUED:
            break
    assert len(world.attempts(job)) == 1


def test_the_next_controller_goes_on_with_the_same_claims(world: ExistingWorld) -> None:
    world.until_ready("10.0.0.1", "10.0.0.2")
    before = {one.id: one.address for one in world.nodes()}
    world.controller = Controller(world.database, world.settings, world.connect(), lambda: world.now)
    world.now += world.settings.lease_s + 1
    world.controller.tick(world.now)
    world.now += world.settings.lease_s + 1
    world.tick(10)
    assert {one.id: one.address for one in world.nodes()} == before


def test_a_claim_without_a_row_is_released_and_the_node_is_claimed_again(world: ExistingWorld) -> None:
    unknown = NodeRequest(node_id="node_unknown", pool="existing", resources={})
    ExistingProvider(world.there, lambda: world.now).create(unknown)
    world.until_ready("10.0.0.1", "10.0.0.2")
    assert "node_unknown" not in {claim.node_id for claim in world.there.claims()}


def test_while_the_head_does_not_answer_no_node_is_given_up(world: ExistingWorld) -> None:
    world.until_ready("10.0.0.1", "10.0.0.2")
    world.there.answers = False
    world.tick(10)
    assert world.ready() == ["10.0.0.1", "10.0.0.2"]
    world.there.answers = True
    world.tick(4)
    assert world.ready() == ["10.0.0.1", "10.0.0.2"]


def test_a_pool_with_fewer_nodes_than_there_are_drains_one_by_its_claim_and_drivers_leave_it(
    world: ExistingWorld,
) -> None:
    world.until_ready("10.0.0.1", "10.0.0.2")
    job = world.submit(min_workers=1, max_workers=2, worker_resources={"CPU": 4.0})
    for _ in world.ticks_until("the job is started"):
        if world.job(job).state is not JobState.QUEUED:
            break
    train(world, job)
    living = {one.id for one in world.there.nodes()}
    assert with_claims({}, living, world.entries()) == {}, "a driver may use both"
    apply(world, ONE_NODE)
    for _ in world.ticks_until("a claim drains"):
        if drains := drains_in(world.entries()):
            break
    (going,) = drains
    (row,) = [one for one in world.nodes() if one.state is NodeState.DRAINING]
    assert drains[going] == row.deadline_at
    assert with_claims({}, living, world.entries()) == drains
    for _ in world.ticks_until("it is released at its deadline"):
        world.now += 60.0
        if len(world.there.claims()) == 1:
            break
    # Its driver takes away what still works there, and takes no other node without a claim.
    assert with_claims({}, living, world.entries()) == {going: 0.0}


def test_a_node_that_computes_wrongly_is_not_claimed_again(world: ExistingWorld) -> None:
    world.until_ready("10.0.0.1", "10.0.0.2")
    report = sick_reports.SickReport(
        attempt_id="att_1", project="default", address="10.0.0.1", at=world.now, message="other bits"
    )
    world.database.transact(lambda connection: sick_reports.add_reports(connection, [report]))
    for _ in world.ticks_until("it is released"):
        if len(world.there.claims()) == 1:
            break
    world.now += 600.0
    world.tick(20)
    assert world.ready() == ["10.0.0.2"]
    assert [claim.ray_node_id for claim in world.there.claims()] == [node(2).id]


def test_a_sick_node_is_not_released_before_it_is_known_to_be_sick(world: ExistingWorld) -> None:
    world.until_ready("10.0.0.1", "10.0.0.2")
    world.there.takes_notes = False
    report = sick_reports.SickReport(
        attempt_id="att_1", project="default", address="10.0.0.1", at=world.now, message="other bits"
    )
    world.database.transact(lambda connection: sick_reports.add_reports(connection, [report]))
    world.tick(20)
    assert node(1).id in {claim.ray_node_id for claim in world.there.claims()}
    world.there.takes_notes = True
    world.tick(20)
    assert [claim.ray_node_id for claim in world.there.claims()] == [node(2).id]


def test_while_another_service_uses_the_cluster_nothing_is_claimed_or_released(world: ExistingWorld) -> None:
    world.until_ready("10.0.0.1", "10.0.0.2")
    theirs = Claim(node(3).id, "node_of_another", "existing", 1.0)
    world.there.seen.append(node(3))
    world.there.seen.append(node(4))
    world.there.entries = {node(3).id: theirs}
    world.there.other = "/srv/other on host-b"
    world.tick(10)
    assert world.there.claims() == [theirs]
    world.there.other, world.there.entries = "", {}
    world.tick(10)
    assert len(world.ready()) == 4
