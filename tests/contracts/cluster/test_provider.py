"""What every provider promises: the fake, the local one, Azure's own clients and KubeRay's before their emulators.

The local one runs without any head here: a `ray start` that finds none lives for some seconds, and that is all that
a provider has to know of it.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import pytest

from cluster.local.environment import ray_environment
from cluster.local.provider import Boot, LocalProvider
from cluster.local.records import MachineRecord
from cluster.provider import (
    InsufficientCapacity,
    InvalidRequest,
    NodeRequest,
    ProvidedNode,
    Provider,
    ProviderError,
    QuotaExceeded,
)
from cluster.ray.joining import NODE_VARIABLE
from remora.free_ports import free_port
from tests.contracts.cluster.azure_rig import CPU_SIZE, IB_SIZE, AzureRig
from tests.contracts.cluster.fake_provider import FakeProvider
from tests.contracts.cluster.kuberay_rig import OFFERING, KubeRayRig, rights


class Killable(Provider, Protocol):
    def kill(self, node_id: str) -> None: ...


class FabricRig(AzureRig):
    """Every node is one of a fabric domain: an instance of a scale set."""

    def create(self, request: NodeRequest) -> None:
        offering = f"{IB_SIZE}/any/on-demand"
        super().create(replace(request, fabric="domain", offering=offering))

    def kill(self, node_id: str) -> None:
        self.settle()
        super().kill(node_id)


class PodRig(KubeRayRig):
    """Every node is a worker pod, whatever it was to be bought as."""

    def create(self, request: NodeRequest) -> None:
        super().create(replace(request, offering=OFFERING))


@pytest.fixture(params=["fake", "local", "azure", "azure-fabric", "kuberay"])
def provider(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Killable]:
    if request.param == "fake":
        yield FakeProvider()
        return
    if request.param == "kuberay":
        # With the rights of the manifests, and no others.
        with PodRig(tmp_path, rights()) as kuberay:
            yield kuberay
        return
    if request.param.startswith("azure"):
        with FabricRig() if request.param == "azure-fabric" else AzureRig() as azure:
            yield azure
        return
    local = local_provider(tmp_path)
    yield local
    for node_id in local.node_ids():
        local.kill(node_id)
        local.delete(node_id)


def local_provider(home: Path) -> LocalProvider:
    return LocalProvider(home, f"127.0.0.9:{free_port()}")


def request(node_id: str = "node_a", **resources: float) -> NodeRequest:
    return NodeRequest(
        node_id=node_id,
        pool="local",
        resources=resources or {"CPU": 1.0},
        offering=f"{CPU_SIZE}/any/on-demand",
    )


def only(nodes: list[ProvidedNode]) -> ProvidedNode:
    (node,) = nodes
    return node


def test_nothing_is_listed_before_anything_is_created(provider: Killable) -> None:
    assert provider.list() == []


def test_a_created_node_is_listed_at_once_as_running(provider: Killable) -> None:
    before = time.time()
    provider.create(request())
    node = only(provider.list())
    assert (node.node_id, node.pool, node.is_running, node.message) == ("node_a", "local", True, None)
    assert before <= node.created_at <= time.time()


def test_create_does_not_wait_for_the_machine(provider: Killable) -> None:
    for number in range(3):
        provider.create(request(f"node_{number}"))
    # Starting one takes seconds: none of them can be a member of anything yet.
    assert {node.is_running for node in provider.list()} == {True}
    addresses = {node.address for node in provider.list()}
    assert addresses == {None} or len(addresses) == 3, "not known yet, or each its own"


def test_created_again_it_stays_the_same_node(provider: Killable) -> None:
    provider.create(request())
    first = only(provider.list())
    provider.create(request(CPU=2.0))
    assert only(provider.list()) == first


def test_a_dead_node_is_listed_as_dead_until_it_is_deleted(provider: Killable) -> None:
    provider.create(request())
    provider.kill("node_a")
    node = only(provider.list())
    assert not node.is_running
    assert node.message
    provider.delete("node_a")
    assert provider.list() == []


def test_delete_ends_one_node_and_is_fine_when_there_is_none(provider: Killable) -> None:
    provider.delete("node_never")
    provider.create(request("node_a"))
    provider.create(request("node_b"))
    provider.delete("node_a")
    provider.delete("node_a")
    assert only(provider.list()).node_id == "node_b"


@pytest.mark.parametrize(
    "impossible",
    [
        request("../escape"),
        request(""),
        request("x" * 65),
        request(CPU=-1.0),
        request(CPU=float("nan")),
        request(GPU=float("inf")),
    ],
    ids=["path", "empty", "long", "negative", "nan", "inf"],
)
def test_what_can_never_work_is_refused_and_makes_nothing(
    provider: Killable, impossible: NodeRequest
) -> None:
    with pytest.raises(InvalidRequest):
        provider.create(impossible)
    assert provider.list() == []


def lets_the_next_fail(provider: Killable, home: Path, fault: str) -> None:
    """Turn a knob: there is no capacity for the next machine, or it dies while it starts."""
    if isinstance(provider, FakeProvider):
        assert fault == "refuse"
        provider.fail_next_create(InsufficientCapacity("sold out", offering="local", until=5.0))
    elif isinstance(provider, KubeRayRig):
        provider.group()["maxReplicas"] = 0
    elif isinstance(provider, AzureRig) and fault == "refuse":
        provider.fault("create", status=409, code="SkuNotAvailable", message="Following SKUs have failed")
    elif isinstance(provider, AzureRig):
        provider.fault("create-later", code="OSProvisioningTimedOut", message="It did not start in time.")
    else:
        (home / "faults.json").write_text(json.dumps({fault: 1}))


@pytest.mark.parametrize("provider", ["fake", "local", "azure", "kuberay"], indirect=True)
def test_where_there_is_no_capacity_nothing_is_made(provider: Killable, tmp_path: Path) -> None:
    lets_the_next_fail(provider, tmp_path, "refuse")
    with pytest.raises((InsufficientCapacity, QuotaExceeded)):
        provider.create(request())
    assert provider.list() == []


@pytest.mark.parametrize("provider", ["local", "azure"], indirect=True)
def test_a_machine_that_dies_while_it_starts_says_why(provider: Killable, tmp_path: Path) -> None:
    lets_the_next_fail(provider, tmp_path, "die")
    provider.create(request())
    while (node := only(provider.list())).is_running:
        pass  # its first process needs a moment to end
    assert node.message
    provider.delete("node_a")
    assert provider.list() == []
    provider.create(request("node_b"))
    assert only(provider.list()).is_running, "it was one machine only"


def test_the_fake_fails_when_it_has_to() -> None:
    fake = FakeProvider()
    fake.fail_next_create(InsufficientCapacity("sold out", offering="local", until=5.0))
    fake.fail_next_list(ProviderError("the cloud did not answer"))
    with pytest.raises(InsufficientCapacity):
        fake.create(request())
    with pytest.raises(ProviderError):
        fake.list()
    assert fake.list() == []
    fake.create(request())
    fake.lose("node_a")
    assert fake.list() == []


def until_first_runs(provider: LocalProvider, argument: str) -> None:
    """Look until the first process of `node_a` has this argument; a process that is about to run another has none."""
    deadline = time.monotonic() + 60
    while not any(argument in one.cmdline()[:5] for one in provider.processes("node_a")):
        assert time.monotonic() < deadline, f"no process of the node runs {argument}"


class TestLocalOnly:
    """What only the local provider can get wrong."""

    @pytest.fixture
    def home(self, tmp_path: Path) -> Iterator[Path]:
        yield tmp_path
        local = local_provider(tmp_path)
        for node_id in local.node_ids():
            local.kill(node_id)
            local.delete(node_id)

    def test_a_new_provider_adopts_what_lives(self, home: Path) -> None:
        first = local_provider(home)
        first.create(request())
        second = LocalProvider(home, first._ray_address)
        assert second.list() == first.list()
        second.delete("node_a")
        assert first.list() == []

    def test_nodes_of_the_same_name_in_two_homes_are_two_nodes(self, home: Path) -> None:
        here, there = local_provider(home / "here"), local_provider(home / "there")
        here.create(request())
        there.create(request())
        here.delete("node_a")
        assert here.processes("node_a") == ()
        assert only(there.list()).is_running
        there.kill("node_a")
        there.delete("node_a")

    def test_nodes_of_another_head_do_not_run_for_this_one(self, home: Path) -> None:
        local_provider(home).create(request())
        node = only(local_provider(home).list())
        assert not node.is_running
        assert "head" in str(node.message)

    def test_a_machine_that_boots_something_else_is_listed_and_ended_like_a_node(self, home: Path) -> None:
        provider = local_provider(home)
        seen: list[MachineRecord] = []

        def prepare(place: MachineRecord) -> Boot:
            seen.append(place)
            (Path(place.temporary) / "root").mkdir(parents=True)
            return Boot(
                command=[sys.executable, "-c", "import signal; signal.pause()"], variables={"IT": "is"}
            )

        provider.boot("vm-1", prepare)
        provider.boot("vm-1", prepare)
        (place,) = seen
        (listed,) = provider.list()
        assert (listed.node_id, listed.is_running, listed.address) == ("vm-1", True, place.address)
        (process,) = provider.processes("vm-1")
        assert process.environ()["IT"] == "is"
        assert NODE_VARIABLE not in process.environ(), "it finds out by itself which node it is"
        # Another one, as after the death of who started it: the process is found by the machine it is.
        local_provider(home).delete("vm-1")
        assert provider.processes("vm-1") == ()
        assert not Path(place.temporary).exists()
        assert (home / "nodes" / "vm-1.log").exists()

    def test_a_machine_that_boots_something_else_does_not_learn_where_our_secret_is(
        self, home: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name, value in ray_environment(home).items():
            monkeypatch.setenv(name, value)
        provider = local_provider(home)
        pause = [sys.executable, "-c", "import signal; signal.pause()"]
        provider.boot("vm-1", lambda _: Boot(command=pause, variables={}))
        (process,) = provider.processes("vm-1")
        assert not [name for name in process.environ() if name.startswith("RAY_AUTH")]

    def test_a_machine_that_cannot_boot_leaves_no_record(self, home: Path) -> None:
        provider = local_provider(home)
        with pytest.raises(ProviderError, match="cannot be started"):
            provider.boot("vm-1", lambda _: Boot(command=["/no/such/program"], variables={}))
        assert provider.list() == []
        # There is nothing to end, and the folders go.
        provider.delete("vm-1")

    def test_an_intent_without_a_pid_finds_its_process(self, home: Path) -> None:
        provider = local_provider(home)
        provider.create(request())
        record = home / "nodes" / "node_a.json"
        text = record.read_text()
        record.write_text(text[: text.index('"pid"')] + '"pid": null, "identity": null}')
        assert only(provider.list()).is_running
        assert record.read_text() == text

    def test_an_intent_without_a_process_is_dead(self, home: Path) -> None:
        provider = local_provider(home)
        provider.create(request())
        provider.kill("node_a")
        record = home / "nodes" / "node_a.json"
        text = record.read_text()
        record.write_text(text[: text.index('"pid"')] + '"pid": null, "identity": null}')
        node = only(provider.list())
        assert (node.is_running, node.message) == (False, "its process was never started")

    def test_a_recycled_pid_is_not_taken_for_a_node_and_not_harmed(self, home: Path) -> None:
        provider = local_provider(home)
        provider.create(request())
        provider.kill("node_a")
        record = home / "nodes" / "node_a.json"
        text = record.read_text()
        pid = text[text.index('"pid": ') + 7 : text.index(', "identity"')]
        # This very process now has the pid of the record: deleting the node would end the test.
        record.write_text(text.replace(f'"pid": {pid}', f'"pid": {os.getpid()}'))
        assert not only(provider.list()).is_running
        provider.delete("node_a")

    def test_a_broken_record_is_an_error_and_can_still_be_deleted(self, home: Path) -> None:
        provider = local_provider(home)
        provider.create(request())
        (home / "nodes" / "node_a.json").write_text("{")
        with pytest.raises(ProviderError, match="cannot be read"):
            provider.list()
        provider.delete("node_a")
        assert provider.list() == []
        assert provider.processes("node_a") == ()

    def test_a_home_that_cannot_be_written_is_an_error(self, tmp_path: Path) -> None:
        file = tmp_path / "file"
        file.touch()
        with pytest.raises(ProviderError):
            local_provider(file / "home").create(request())

    def test_a_machine_that_never_joins_runs_and_can_be_ended(self, home: Path) -> None:
        provider = local_provider(home)
        (home / "faults.json").write_text('{"never_join": 1}')
        provider.create(request("node_a"))
        provider.create(request("node_b"))
        assert [node.is_running for node in provider.list()] == [True, True]
        (idle,) = provider.processes("node_a")
        assert "cluster.ray.start" not in idle.cmdline()
        assert any("cluster.ray.start" in one.cmdline() for one in provider.processes("node_b"))
        provider.delete("node_a")
        assert not idle.is_running()

    def test_a_machine_that_joins_late_is_a_plain_one_from_then_on(self, home: Path) -> None:
        provider = local_provider(home)
        (home / "faults.json").write_text('{"join_late": 1, "late_s": 2.0}')
        provider.create(request())
        first = only(provider.list())
        # It enters its cgroup, waits, and becomes the program that it would have been at once.
        until_first_runs(provider, "-c")
        until_first_runs(provider, "cluster.ray.start")
        assert only(provider.list()) == first, "it is the same process"

    def test_faults_are_used_up_one_after_the_other_and_outlive_the_controller(self, home: Path) -> None:
        faults = home / "faults.json"
        faults.write_text('{"refuse": 2, "never_join": 1}')
        for left in (1, 0):
            with pytest.raises(InsufficientCapacity, match="as a rehearsal wants it"):
                local_provider(home).create(request())
            assert json.loads(faults.read_text())["refuse"] == left
        local_provider(home).create(request())
        assert json.loads(faults.read_text())["never_join"] == 0

    @pytest.mark.parametrize("text", ["{", "[]", '{"refuse": -1}', '{"refuses": 1}', '{"late_s": NaN}'])
    def test_faults_that_are_unknown_are_named_and_make_nothing(self, home: Path, text: str) -> None:
        (home / "faults.json").write_text(text)
        with pytest.raises(ProviderError, match=r"faults\.json: [^\n]+; remove it"):
            local_provider(home).create(request())
        assert local_provider(home).list() == []

    @pytest.mark.parametrize("key", ["", "a,b", "a=b", "x y"])
    def test_labels_that_ray_would_refuse_are_refused(self, home: Path, key: str) -> None:
        node_request = NodeRequest(node_id="node_a", pool="local", resources={}, labels={key: "v"})
        with pytest.raises(InvalidRequest):
            local_provider(home).create(node_request)
        pool = NodeRequest(node_id="node_a", pool=key, resources={})
        with pytest.raises(InvalidRequest):
            local_provider(home).create(pool)
