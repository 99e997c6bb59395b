"""Machines of the emulated Azure hear of their eviction as real ones do: from a metadata service of their own."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import httpx2
import pytest

from cluster.azure.body import machine_name
from cluster.azure.emulator.emulated_cloud import Cloud
from cluster.azure.emulator.notices import metadata_url
from cluster.azure.emulator.server import EmulatorServer
from cluster.node.agent.metadata import MetadataAway, MetadataService
from cluster.node.agent.scheduled_events import DrainNotice, ScheduledEvent, meaning
from cluster.provider import NodeRequest
from tests.contracts.cluster.azure_rig import CLUSTER, CPU_SIZE, AzureRig
from tests.unit.cluster.test_azure_body import body

NAME = machine_name(CLUSTER, "node_a")


@pytest.fixture
def rig() -> Iterator[AzureRig]:
    """With one spot machine that runs; the test moves the time."""
    with AzureRig(manual_clock=True) as rig:
        rig.create(node_request("node_a"))
        rig.list()
        yield rig


@pytest.fixture
def metadata(rig: AzureRig) -> Iterator[MetadataService]:
    """What the machine's agent asks."""
    service = MetadataService(metadata_url(rig.server.url, NAME), clock=rig.clock)
    yield service
    service.close()


def node_request(node_id: str) -> NodeRequest:
    return NodeRequest(node_id=node_id, pool="cpu", resources={"CPU": 1.0}, offering=f"{CPU_SIZE}/1/spot")


def only_event(metadata: MetadataService) -> ScheduledEvent:
    (event,) = metadata.listen().document.events
    return event


def test_a_notice_is_a_preempt_with_the_time_at_which_the_machine_goes(
    rig: AzureRig, metadata: MetadataService
) -> None:
    assert metadata.listen().document.events == ()
    goes_at = rig.notice("node_a")
    assert goes_at == rig.clock() + 30.0
    event = only_event(metadata)
    assert metadata.name() == NAME
    assert (event.type, event.resources, event.is_started) == ("Preempt", (NAME,), False)
    assert event.not_before == pytest.approx(goes_at, abs=1.0), "it has whole seconds"
    rig.clock.passed_s = 29.0
    assert len(rig.list()) == 1
    rig.clock.passed_s = 30.0
    assert rig.list() == []
    assert rig.left() == 0


def test_a_simulated_eviction_is_heard_too(rig: AzureRig, metadata: MetadataService) -> None:
    rig.azure.simulate_eviction("node_a")
    assert only_event(metadata).type == "Preempt"


def test_a_simulated_eviction_may_be_announced_later_and_a_second_request_does_not_put_it_off(
    rig: AzureRig, metadata: MetadataService
) -> None:
    rig.knobs(announce_s=120.0)
    rig.azure.simulate_eviction("node_a")
    rig.clock.passed_s = 119.0
    rig.azure.simulate_eviction("node_a")
    assert len(rig.list()) == 1
    assert metadata.listen().document.events == ()
    rig.clock.passed_s = 121.0
    assert len(rig.list()) == 1
    assert only_event(metadata).not_before == pytest.approx(rig.clock() + 29.0, abs=1.0)
    rig.clock.passed_s = 151.0
    assert rig.list() == []


def test_no_other_machine_gets_the_notice(rig: AzureRig, metadata: MetadataService) -> None:
    rig.create(node_request("node_b"))
    rig.list()
    rig.notice("node_b")
    assert metadata.listen().document.events == ()


def test_a_machine_that_needs_no_more_time_goes_at_once_and_is_not_answered_any_more(
    rig: AzureRig, metadata: MetadataService
) -> None:
    rig.notice("node_a")
    metadata.acknowledge(only_event(metadata).id)
    assert rig.list() == []
    assert rig.left() == 0
    with pytest.raises(MetadataAway, match="404"):
        metadata.listen()


def test_a_machine_that_gets_a_second_notice_goes_at_the_first(
    rig: AzureRig, metadata: MetadataService
) -> None:
    first = rig.notice("node_a")
    rig.clock.passed_s = 10.0
    assert rig.notice("node_a") == first
    only_event(metadata)


def test_the_next_machine_of_a_name_has_nothing_of_the_notice_of_the_last_one(
    rig: AzureRig, metadata: MetadataService
) -> None:
    rig.notice("node_a")
    rig.delete("node_a")
    assert rig.state()["machines"] == {}
    rig.create(node_request("node_a"))
    rig.clock.passed_s = 31.0
    assert list(rig.state()["machines"]) == [NAME]
    assert metadata.listen().document.events == ()


def test_a_cloud_whose_clock_is_behind_is_understood(rig: AzureRig, metadata: MetadataService) -> None:
    rig.knobs(skew_s=-3600.0)
    rig.notice("node_a")
    heard = metadata.listen()
    (event,) = heard.document.events
    means = meaning(event, rig.clock(), heard.skew_s)
    assert isinstance(means, DrainNotice)
    assert means.deadline_at == pytest.approx(rig.clock() + 30.0, abs=2.0)


def test_a_machine_that_is_not_there_cannot_get_a_notice(rig: AzureRig) -> None:
    with pytest.raises(httpx2.HTTPStatusError, match="404"):
        rig.notice("node_never")


def test_time_passes_by_itself_where_it_shall() -> None:
    cloud, gone = Cloud(), threading.Event()
    cloud.on_end.append(lambda _machine: gone.set())
    cloud.create("m", body(), time.time(), 24, "a family")
    cloud.notice_s = 0.0
    cloud.notice("m", time.time())
    with EmulatorServer(cloud, passes_every_s=0.01):
        assert gone.wait(30.0), "no request asked for it, and yet it went"
