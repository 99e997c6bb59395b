"""deploy/azure/down against an emulated subscription: nothing is left wherever it is cut off, and nothing else goes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from cluster.azure.emulator.deployments.kinds import GROUPS
from cluster.azure.emulator.deployments.template import Wanted
from cluster.azure.emulator.faults import EmulatorFault, FaultPoint
from cluster.azure.emulator.server import SUBSCRIPTION
from deploy.azure.client.resource_manager import Refused, ResourceManager
from tests.contracts.deploy.subscription import Subscription


@pytest.mark.parametrize("size", ["trial", "team"])
def test_nothing_is_left_and_the_deleted_vault_is_named(azure: Subscription, size: str) -> None:
    azure.up(size)
    assert azure.down() == 0
    assert azure.leftovers() == []
    (name,) = azure.resources.deleted_vaults
    assert any(line.startswith(f"the deleted vault {name} is kept by Azure until 20") for line in azure.said)
    assert azure.said[-1] == "nothing is left"
    # Again, where nothing is.
    assert azure.down() == 0
    assert azure.said[0] == "remora-remora: there is no resource group of it"


def test_it_says_how_much_goes_and_does_nothing_unless_the_name_is_typed(
    azure: Subscription, capsys: pytest.CaptureFixture[str]
) -> None:
    azure.up()
    before = azure.shot()
    for answer in ("", "y", "remora2", "REMORA"):
        assert azure.down(answer=answer) == 2
    assert azure.said[0].startswith("remora-remora-nodes: 1 resources")
    assert "nothing was deleted" in capsys.readouterr().err
    assert azure.shot() == before


def test_what_belongs_to_another_cluster_stays(azure: Subscription) -> None:
    azure.up("trial", "--cluster", "other")
    before = azure.shot()
    azure.up()
    assert azure.down() == 0
    assert azure.shot() == before


def test_a_group_of_that_name_that_up_did_not_make_is_not_deleted(
    azure: Subscription, capsys: pytest.CaptureFixture[str]
) -> None:
    id = f"/subscriptions/{SUBSCRIPTION}/resourceGroups/remora-remora"
    azure.resources.put(Wanted(id=id, type=GROUPS, body={"name": "remora-remora", "location": "eastus"}))
    assert azure.down() == 1
    assert "lacks the tag remora:cluster=remora" in capsys.readouterr().err
    assert azure.resources.find(id) is not None


def test_cut_off_after_any_change_and_called_again_nothing_is_left(
    azure: Subscription, monkeypatch: pytest.MonkeyPatch
) -> None:
    delete = ResourceManager.delete

    def cut_off_after(number: int) -> Callable[..., Any]:
        calls = iter(range(number))

        def cut(self: ResourceManager, *arguments: str) -> None:
            if next(calls, None) is None:
                raise Refused("the test ends it here")
            delete(self, *arguments)

        return cut

    number, codes = 0, []
    while 0 not in codes:
        azure.up()
        monkeypatch.setattr(ResourceManager, "delete", cut_off_after(number))
        codes.append(azure.down())
        monkeypatch.setattr(ResourceManager, "delete", delete)
        assert azure.down() == 0
        assert azure.leftovers() == []
        azure.resources.deleted_vaults.clear()
        number += 3
    assert number > 20, "each role, both groups, the budget, the roles' definitions, the deployments"


def test_a_deployment_that_still_runs_is_stopped_first(azure: Subscription) -> None:
    azure.up()
    azure.server.deployer.resource_s = 3600.0
    deployment = azure.server.deployer.begin(SUBSCRIPTION, "remora-remora", azure.request(), time.time())
    assert deployment.state == "Running"
    assert azure.down() == 0
    assert "a deployment still runs and is stopped" in azure.said
    assert azure.leftovers() == []


def test_what_azure_refuses_is_said_with_what_to_do(
    azure: Subscription, capsys: pytest.CaptureFixture[str]
) -> None:
    azure.up()
    said = "The scope cannot perform delete operation because following scope(s) are locked."
    azure.faults.all.append(
        EmulatorFault(at=FaultPoint.DELETE_GROUP, status=409, code="ScopeLocked", message=said)
    )
    assert azure.down() == 1
    assert capsys.readouterr().err == f"down: ScopeLocked: {said}; call it again to go on\n"
    assert azure.down() == 0
    assert azure.leftovers() == []
