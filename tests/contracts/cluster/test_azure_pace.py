"""How often Azure is asked: seldom while nothing is under way, at every look while something is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from cluster.azure.provider import AzureProvider
from cluster.azure.wire import FEW, GOOD_FOR_S
from cluster.provider import InvalidRequest, NodeRequest
from tests.contracts.cluster.azure_rig import A100, IB_SIZE, AzureRig

QUIET_S = 10.0


@pytest.fixture
def rig() -> Iterator[AzureRig]:
    with AzureRig(manual_clock=True) as rig:
        yield rig


@pytest.fixture
def azure(rig: AzureRig) -> AzureProvider:
    return rig.another(quiet_s=QUIET_S)


def node_request(node_id: str, fabric: str | None = None) -> NodeRequest:
    offering = f"{IB_SIZE if fabric else A100}/1/spot"
    return NodeRequest(node_id=node_id, pool="gpu", resources={"GPU": 1.0}, offering=offering, fabric=fabric)


def nodes(azure: AzureProvider) -> set[str]:
    return {node.node_id for node in azure.list()}


@pytest.fixture
def asks(rig: AzureRig, azure: AzureProvider) -> Callable[[], bool]:
    """True when a look at the cloud asks it for its machines."""
    asked: list[object] = []
    take = rig.cloud.faults.take

    def watched(at: object, **facts: object) -> object:
        asked.extend([at] if at == "list" else [])
        return take(at, **facts)  # type: ignore[arg-type]

    rig.cloud.faults.take = watched  # type: ignore[method-assign, assignment]

    def look() -> bool:
        asked.clear()
        azure.list()
        return bool(asked)

    return look


def test_a_list_in_which_nothing_is_under_way_is_good_for_some_seconds(
    rig: AzureRig, azure: AzureProvider, asks: Callable[[], bool]
) -> None:
    azure.create(node_request("node_a"))
    assert asks(), "it was just asked for"
    assert not asks()
    rig.evict("node_a")
    assert nodes(azure) == {"node_a"}, "what Azure does by itself is seen later"
    rig.clock.passed_s = QUIET_S
    assert asks()
    assert nodes(azure) == set()


def test_a_machine_that_starts_is_looked_at_each_time(
    rig: AzureRig, azure: AzureProvider, asks: Callable[[], bool]
) -> None:
    rig.knobs(create_s=60.0)
    azure.create(node_request("node_a"))
    assert [asks(), asks()] == [True, True]
    rig.clock.passed_s = 60.0
    assert [asks(), asks()] == [True, False]


def test_a_machine_that_ends_is_looked_at_each_time(
    rig: AzureRig, azure: AzureProvider, asks: Callable[[], bool]
) -> None:
    rig.knobs(delete_s=60.0)
    azure.create(node_request("node_a"))
    assert [asks(), asks()] == [True, False]
    azure.delete("node_a")
    assert nodes(azure) == set()
    assert [asks(), asks()] == [True, True]
    rig.clock.passed_s = 60.0
    assert [asks(), asks()] == [True, False]


def test_a_machine_that_failed_is_looked_at_each_time(
    rig: AzureRig, azure: AzureProvider, asks: Callable[[], bool]
) -> None:
    rig.fault("create-later", code="AllocationFailed", message="no capacity")
    azure.create(node_request("node_a"))
    assert [asks(), asks()] == [True, True]


def test_an_eviction_that_is_rehearsed_is_looked_for_at_once(
    azure: AzureProvider, asks: Callable[[], bool]
) -> None:
    azure.create(node_request("node_a"))
    assert [asks(), asks()] == [True, False]
    azure.simulate_eviction("node_a")
    assert asks()


def test_a_node_that_waits_for_an_instance_is_looked_at_each_time(
    rig: AzureRig, azure: AzureProvider, asks: Callable[[], bool]
) -> None:
    rig.knobs(create_s=60.0)
    azure.create(node_request("node_a", fabric="gpu-job_1"))
    assert [asks(), asks()] == [True, True]
    rig.clock.passed_s = 60.0
    rig.knobs(create_s=0.0)
    looks = [asks() for _ in range(5)]
    assert looks[:2] == [True, True], "the instance is given to the node, and shows its tag"
    assert looks[-1] is False, "the set's document names no machine any more"
    azure.delete("node_a")
    assert asks()
    assert nodes(azure) == set()


def test_a_list_that_was_overtaken_by_a_request_is_not_kept(
    rig: AzureRig, azure: AzureProvider, asks: Callable[[], bool]
) -> None:
    azure.create(node_request("node_a"))
    take = rig.cloud.faults.take

    def overtaken(at: object, **facts: object) -> object:
        if at == "list-sets":
            # The machines of this look are read already.  A request that is refused without asking Azure: the
            # emulator answers one at a time.
            with pytest.raises(InvalidRequest):
                azure.create(replace(node_request("node_b"), fabric="gpu-job_1"))
        return take(at, **facts)  # type: ignore[arg-type]

    rig.cloud.faults.take = overtaken  # type: ignore[method-assign, assignment]
    assert [asks(), asks()] == [True, True]


def test_a_clock_that_was_set_back_keeps_no_list(rig: AzureRig, azure: AzureProvider) -> None:
    azure.create(node_request("node_a"))
    azure.list()
    rig.evict("node_a")
    rig.clock.passed_s = -3600.0
    assert nodes(azure) == set()


def test_azure_says_when_only_few_questions_are_left(rig: AzureRig, azure: AzureProvider) -> None:
    azure.list()
    assert not azure.is_allowance_low(), "it has not said anything"
    rig.knobs(reads_left=FEW - 1)
    rig.clock.passed_s = QUIET_S
    azure.list()
    assert azure.is_allowance_low()
    rig.clock.passed_s += GOOD_FOR_S
    assert not azure.is_allowance_low(), "what it said is old"
    azure.list()
    assert azure.is_allowance_low()
    rig.knobs(reads_left=FEW)
    rig.clock.passed_s += QUIET_S
    azure.list()
    assert not azure.is_allowance_low()
