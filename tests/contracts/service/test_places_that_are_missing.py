"""A place that operators take out of Azure's file while machines are in it: the controller waits until it is back."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from remora.states import NodeState
from service.clouds.azure_settings import require_places
from service.clouds.place_files import CloudUnusable
from service.controller.connecting import ClusterConnection
from service.controller.controller import Process
from service.queue import lifecycle
from service.queue.rows import NodeRow
from service.settings import Settings
from service.store import nodes
from service.store.database import Database
from tests.contracts.cluster.azure_rig import settings as azure_settings

SUBNET = "/subscriptions/s/resourceGroups/g/providers/Microsoft.Network/virtualNetworks/west/subnets/nodes"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(home=tmp_path, cloud="azure", ray_address="10.0.0.4:6379", tick_s=0.01)


def write(settings: Settings, *places: str) -> None:
    there = {
        name: {"region": "westeurope", "resource_group": f"of-{name}", "subnet": SUBNET} for name in places
    }
    settings.azure.write_text(azure_settings("http://127.0.0.1:9", places=there).model_dump_json())


def bought(database: Database, offering: str, state: NodeState = NodeState.READY) -> NodeRow:
    row = NodeRow(
        id=f"node_{offering[:4]}{state}",
        pool="gpu",
        cluster="default",
        offering=offering,
        state=state,
        created_at=1.0,
        ended_at=2.0 if state is NodeState.GONE else None,
    )
    database.transact(lambda connection: nodes.insert_node(connection, lifecycle.NodeDecision(row)))
    return row


def check(database: Database, settings: Settings) -> None:
    require_places(settings, database.query(partial(nodes.live_offerings, cluster=settings.cluster)))


def test_a_place_with_living_machines_has_to_stay_and_one_whose_machines_ended_may_go(
    database: Database, settings: Settings
) -> None:
    bought(database, "A100@west/1/spot")
    bought(database, "V100/any/on-demand")
    bought(database, "H100@east/1/spot", NodeState.GONE)
    write(settings, "west", "east")
    check(database, settings)
    write(settings, "west")
    check(database, settings)
    write(settings, "east")
    with pytest.raises(CloudUnusable, match="has no place west any more") as refused:
        check(database, settings)
    assert "put it back until they have ended" in str(refused.value)
    check(database, settings.model_copy(update={"cloud": "local"}))
    assert database.query(partial(nodes.live_offerings, cluster="another")) == []


def test_the_controller_looks_at_nothing_before_the_place_is_back(
    database: Database, settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    bought(database, "A100@west/1/spot")
    write(settings)
    connected: list[str] = []

    def connect(_: Settings, address: str) -> ClusterConnection:
        connected.append(address)
        process.stopping.set()
        raise ConnectionError("no head is here")

    process = Process(settings, database, connect)
    put_back: list[Callable[[], None]] = [partial(write, settings, "west")]

    def wait(_: float) -> bool:
        """Between two ticks the operator acts."""
        if put_back:
            assert connected == []
            put_back.pop()()
        return process.stopping.is_set()

    process.stopping.wait = wait  # type: ignore[method-assign,assignment]
    process.run()
    assert connected == ["10.0.0.4:6379"]
    assert "no node can be made, trying again" in caplog.text
    assert "has no place west any more" in caplog.text
