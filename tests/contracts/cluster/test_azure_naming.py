"""An instance of a scale set learns which node it is from its own metadata service, by its tags."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from cluster.azure.emulator.notices import metadata_url
from cluster.node.agent import naming
from cluster.node.agent.metadata import MetadataAway, MetadataService
from cluster.node.agent.naming import node_id_by_tag
from cluster.provider import NodeRequest
from tests.contracts.cluster.azure_rig import IB_SIZE, AzureRig


@pytest.fixture
def rig() -> Iterator[AzureRig]:
    """With one instance that runs, and that has not been given to its node."""
    # The host's time: the metadata service counts requests by the second.
    with AzureRig() as rig:
        node_request = NodeRequest(
            node_id="node_a", pool="gpu", resources={}, offering=f"{IB_SIZE}/1/spot", fabric="gpu-job_1"
        )
        rig.create(node_request)
        rig.fault("claim", status=409, code="Conflict")
        rig.list()
        yield rig


@pytest.fixture
def metadata(rig: AzureRig) -> Iterator[MetadataService]:
    (name,) = rig.state()["machines"]
    service = MetadataService(metadata_url(rig.server.url, name))
    yield service
    service.close()


def test_its_tags_are_those_of_the_set_until_it_is_given_to_a_node(
    rig: AzureRig, metadata: MetadataService
) -> None:
    before = metadata.tags()
    assert before["remora:fabric"] == "gpu-job_1"
    assert "remora:node" not in before
    rig.list()
    assert metadata.tags()["remora:node"] == "node_a"


def test_it_waits_for_its_name_and_hears_it_without_a_restart(
    rig: AzureRig, metadata: MetadataService
) -> None:
    heard: list[str] = []
    stopping = threading.Event()
    waits = threading.Thread(target=lambda: heard.append(node_id_by_tag(metadata, stopping)), daemon=True)
    waits.start()
    rig.list()
    waits.join(60.0)
    assert heard == ["node_a"]


def test_a_metadata_service_that_says_nothing_is_asked_again_soon(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(naming, "TIMEOUT_S", 0.1)
    monkeypatch.setattr(naming, "LOOK_S", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as silent, ThreadPoolExecutor(1) as thread:
        silent.settimeout(60.0)
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        asked = thread.submit(naming.node_id, url, stopping := threading.Event())
        first, _ = silent.accept()
        second, _ = silent.accept()
        stopping.set()
        first.close()
        second.close()
        assert asked.result(60.0) == ""


def test_it_stops_waiting_when_it_is_ended(metadata: MetadataService) -> None:
    stopping = threading.Event()
    stopping.set()
    assert node_id_by_tag(metadata, stopping) == ""


def test_a_machine_that_is_gone_has_no_tags(rig: AzureRig, metadata: MetadataService) -> None:
    (name,) = rig.state()["machines"]
    rig.control(f"machines/{name}/evict", {})
    with pytest.raises(MetadataAway, match="404"):
        metadata.tags()
