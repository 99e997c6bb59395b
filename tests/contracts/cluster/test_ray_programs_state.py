"""What Ray's head says of requests and of use, on a real cluster: the one reader of the state for Ray's autoscaler."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
import ray
from ray._raylet import InnerGcsClient  # type: ignore[attr-defined]
from ray.core.generated import autoscaler_pb2
from ray.util.placement_group import placement_group, remove_placement_group

from cluster.local.connection import connect
from cluster.local.environment import process_environment
from cluster.local.head import start_head, stop_head, wait_until_reachable
from cluster.local.provider import LocalProvider
from cluster.provider import NodeRequest
from cluster.ray.membership import MembershipUnknown, RayMembership
from cluster.ray.programs import RayPrograms
from cluster.scheduling.ray_programs import Bundle, LabelTerm, RayDemand, Strategy
from remora.ray_labels import FOR_JOBS_LABEL
from tests.e2e.processes import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

Program = Callable[[str], AbstractContextManager[None]]

#: What a program does after it has connected; it prints a line when all of it was asked for.
CONNECTED = """
import sys, threading
import ray
from ray.autoscaler.sdk import request_resources
from ray.util.placement_group import placement_group
ray.init(address=sys.argv[1], log_to_driver=False)
def wait():
    threading.Event().wait()
"""
UPGRADE = "Ray was upgraded: look at cluster/ray/programs.py"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def address(home: Path) -> Iterator[str]:
    """A head and one node of two CPUs, to which this process is connected as the controller is."""
    head = start_head(home)
    provider = LocalProvider(home, head.ray_address)
    try:
        wait_until_reachable(home, head)
        provider.create(NodeRequest(node_id="node_a", pool="cpu", resources={"CPU": 2.0}))
        connect(home, head.ray_address)
        until(lambda: "node_a" in RayMembership().observe(), "the node joins")
        yield head.ray_address
    finally:
        ray.shutdown()
        for machine in provider.list():
            provider.delete(machine.node_id)
        stop_head(home)


@pytest.fixture
def program(home: Path, address: str) -> Program:
    """Runs a program of its own beside this process until the end of the block."""

    @contextmanager
    def runs(script: str) -> Iterator[None]:
        process = subprocess.Popen(
            [sys.executable, "-c", f"{CONNECTED}{script}\nprint('asked', flush=True)\nwait()\n", address],
            env=process_environment(home),
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "asked\n"
            yield
        finally:
            process.kill()
            process.communicate()

    return runs


def observed(is_it: Callable[[RayDemand], bool], what: str) -> RayDemand:
    """What is asked for, once it looks like this."""
    programs = RayPrograms(RayMembership())

    def look() -> RayDemand | None:
        seen = programs.observe()
        return seen if is_it(seen) else None

    return until(look, what, 60.0)


def test_what_is_used_of_ray_is_there() -> None:
    assert hasattr(InnerGcsClient, "get_cluster_resource_state"), UPGRADE
    assert hasattr(InnerGcsClient, "get_all_job_info"), UPGRADE
    used = {"node_states", "pending_resource_requests", "pending_gang_resource_requests"}
    fields = {one.name for one in autoscaler_pb2.ClusterResourceState.DESCRIPTOR.fields}
    assert used | {"cluster_resource_constraints"} <= fields, UPGRADE


def test_tasks_groups_and_a_minimum_of_another_program_are_seen(program: Program) -> None:
    script = """
refs = [ray.remote(num_cpus=1)(wait).remote() for _ in range(2)]
refs += [ray.remote(num_cpus=4)(wait).remote() for _ in range(3)]
refs += [ray.remote(num_cpus=1, resources={"disk": 0.5}, label_selector={"kind": "in(a,b)"})(wait).remote()]
group = placement_group([{"CPU": 3}, {"CPU": 3}], strategy="STRICT_SPREAD")
request_resources(bundles=[{"CPU": 7}])
"""
    with program(script):
        seen = observed(
            lambda one: len(one.tasks) == 2 and bool(one.gangs and one.minimum and one.held), "all of it"
        )
    assert {bundle.text: count for bundle, count in seen.tasks} == {
        Bundle({"CPU": 4.0}).text: 3,
        Bundle({"CPU": 1.0, "disk": 0.5}, ((LabelTerm("kind", ("a", "b")),),)).text: 1,
    }
    (gang,) = seen.gangs
    assert (gang.strategy, gang.bundles) == (Strategy.STRICT_SPREAD, (Bundle({"CPU": 3.0}),) * 2)
    assert seen.minimum == ((Bundle({"CPU": 7.0}), 1),)
    assert seen.held == {"node_a": {"CPU": 2.0}}
    after = observed(lambda one: not (one.tasks or one.gangs or one.held), "the program has ended")
    assert after.minimum == seen.minimum, "Ray keeps a minimum beyond the end of the program"


def test_an_actor_without_resources_and_a_bundle_hold_their_node(program: Program) -> None:
    actor = """
actor = ray.remote(num_cpus=0, label_selector={"remora-pool": "cpu"})(type("A", (), {"x": lambda self: 1})).remote()
ray.get(actor.x.remote())
"""
    with program(actor):
        observed(lambda one: one.held == {"node_a": {}}, "the actor is seen")
    with program("group = placement_group([{'CPU': 1}])\nray.get(group.ready())"):
        seen = observed(lambda one: one.held == {"node_a": {"CPU": 1.0}}, "the bundle is seen")
        (groups,) = seen.gangs_on.values()
        assert len(groups) == 1
    observed(lambda one: not one.held, "both have ended")


def test_what_jobs_of_remora_ask_for_and_hold_is_left_out(address: str, program: Program) -> None:
    """This process is a controller: its placement groups are those of workers, in the namespace of all of ours."""
    there = placement_group([{"CPU": 1}])
    ray.get(there.ready(), timeout=30)
    node = {"ray.io/node-id": ray.nodes()[0]["NodeID"]}
    named = placement_group([{"CPU": 5}], bundle_label_selector=[node])
    from ray.autoscaler.sdk import request_resources

    request_resources(bundles=[{"CPU": 6}], bundle_label_selectors=[{FOR_JOBS_LABEL: "!in(job)"}])
    try:
        with program("ref = ray.remote(num_cpus=9)(wait).remote()"):
            seen = observed(lambda one: bool(one.tasks), "the task of the program")
        assert (seen.gangs, seen.minimum, seen.held) == ((), (), {})
        assert seen.tasks == ((Bundle({"CPU": 9.0}), 1),)
    finally:
        request_resources(num_cpus=0)
        remove_placement_group(there)
        remove_placement_group(named)


def test_a_connection_that_was_left_says_so(address: str) -> None:
    membership = RayMembership()
    programs = RayPrograms(membership)
    membership.leave()
    with pytest.raises(MembershipUnknown):
        programs.observe()


def test_ray_status_shows_the_same_as_what_is_read(home: Path, address: str, program: Program) -> None:
    script = """
refs = [ray.remote(num_cpus=4)(wait).remote() for _ in range(3)]
group = placement_group([{"CPU": 3}, {"CPU": 3}], strategy="STRICT_SPREAD")
"""
    with program(script):
        # What the program of another test asked for may still be there.
        asked = ((Bundle({"CPU": 4.0}), 3),)
        seen = observed(
            lambda one: tuple(one.tasks) == asked and len(one.gangs) == 1, "all of it, and no more"
        )
        shown = subprocess.run(
            [str(Path(sys.executable).with_name("ray")), "status", f"--address={address}"],
            env=process_environment(home),
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    ((bundle, count),) = seen.tasks
    assert f"{{'CPU': {bundle.resources['CPU']}}}: {count}+ pending tasks/actors" in shown
    (gang,) = seen.gangs
    bundles = f"{{'CPU': {gang.bundles[0].resources['CPU']}}} * {len(gang.bundles)} ({gang.strategy})"
    assert f"{bundles}: 1+ pending placement groups" in shown
    assert "1 cpu" in shown, "a node is called by its pool"


def test_an_actor_of_remora_without_resources_does_not_hold_its_node(address: str) -> None:

    class Idle:
        def is_there(self) -> bool:
            return True

    actor = ray.remote(num_cpus=0, label_selector={"remora-pool": "cpu"})(Idle).remote()
    ray.get(actor.is_there.remote())
    programs = RayPrograms(RayMembership())
    node = RayMembership().observe()["node_a"].ray_node_id

    def is_busy() -> bool:
        gcs = ray.experimental.internal_kv.internal_kv_get_gcs_client()
        answer = autoscaler_pb2.GetClusterResourceStateReply.FromString(gcs.get_cluster_resource_state())
        states = {one.node_id.hex(): one for one in answer.cluster_resource_state.node_states}
        return "Busy workers on node." in states[node].node_activity

    until(is_busy, "Ray says that something works there", 60.0)
    assert programs.observe().held == {}
    ray.kill(actor)
