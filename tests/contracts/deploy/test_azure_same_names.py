"""What has the name of something of a cluster and is not of it: another cluster's, or made by hand."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from cluster.azure.emulator.deployments.kinds import ASSIGNMENTS, BUDGETS, DEFINITIONS, GROUPS
from cluster.azure.emulator.deployments.template import Wanted
from cluster.azure.emulator.emulated_cloud import Refused
from cluster.azure.emulator.server import SUBSCRIPTION
from tests.contracts.deploy.subscription import Subscription

SECOND = "11111111-1111-1111-1111-111111111111"
THIRD = "22222222-2222-2222-2222-222222222222"
WEST = ("--place", "west=westeurope")
RESEARCH = ("--place", f"research=eastus2@{SECOND}")


def put_group(azure: Subscription, name: str, tags: dict[str, str], subscription: str = SUBSCRIPTION) -> None:
    id = f"/subscriptions/{subscription}/resourceGroups/{name}"
    azure.resources.put(Wanted(id=id, type=GROUPS, body={"name": name, "location": "eastus", "tags": tags}))


def of(azure: Subscription, subscription: str) -> dict[str, Any]:
    """All that there is in one subscription, with the records of deployments of modules."""
    root = f"/subscriptions/{subscription}/"
    return {one["id"]: copy.deepcopy(one) for one in azure.resources if one["id"].startswith(root)}


def error_of(azure: Subscription, capsys: pytest.CaptureFixture[str], *more: str) -> str:
    """The one line that `up` says when it refuses; nothing has changed by it."""
    before = (azure.shot(), set(azure.server.deployer.all), set(azure.resources.registered))
    assert azure.up("trial", *more) == 1
    assert (azure.shot(), set(azure.server.deployer.all), set(azure.resources.registered)) == before
    (line,) = capsys.readouterr().err.splitlines()
    return line


# --- resource groups


@pytest.mark.parametrize("more", [(), ("--what-if",)], ids=["", "what-if"])
@pytest.mark.parametrize(
    ("name", "tags"),
    [
        ("remora-remora", {}),
        ("remora-remora-nodes", {"remora:cluster": "remora-nodes"}),
        ("remora-remora_image", {"remora:cluster": "other"}),
    ],
)
def test_a_group_that_is_not_of_the_cluster_is_refused_before_anything_is_written(
    azure: Subscription,
    name: str,
    tags: dict[str, str],
    more: tuple[str, ...],
    capsys: pytest.CaptureFixture[str],
) -> None:
    put_group(azure, name, tags)
    said = (
        f"the resource group {name} lacks the tag remora:cluster=remora, so deploy/azure/up did not make it, and"
        " nothing is changed: give it the tag if it is the cluster's, delete it, or give another name as --cluster"
    )
    assert error_of(azure, capsys, *more) == f"up: {said}"
    assert azure.down() == 1
    assert capsys.readouterr().err == f"down: {said}; call it again to go on\n"


@pytest.mark.parametrize("more", [(), ("--what-if",)], ids=["", "what-if"])
@pytest.mark.parametrize(
    ("subscription", "tags"),
    [
        (SUBSCRIPTION, {}),
        # Of a cluster of the same name in another subscription, and of another place.
        (
            SECOND,
            {"remora:cluster": "remora", "remora:place": "research", "remora:subscription": THIRD},
        ),
        (SECOND, {"remora:cluster": "remora"}),
    ],
)
def test_a_group_of_a_place_that_is_not_of_the_cluster_is_refused_before_anything_is_written(
    azure: Subscription,
    subscription: str,
    tags: dict[str, str],
    more: tuple[str, ...],
    capsys: pytest.CaptureFixture[str],
) -> None:
    place, given = ("west", WEST) if subscription == SUBSCRIPTION else ("research", RESEARCH)
    put_group(azure, f"remora-remora-nodes_{place}", tags, subscription)
    where = f"remora-remora-nodes_{place}" + (f" of the subscription {SECOND}" if place == "research" else "")
    assert error_of(azure, capsys, *given, *more) == (
        f"up: the resource group {where} lacks the tags of the place {place} of this cluster, so deploy/azure/up did"
        " not make it, and nothing is changed: give the place another name, or delete the group"
    )


def test_a_cluster_whose_name_ends_as_a_group_of_another_one_is_refused(
    azure: Subscription, capsys: pytest.CaptureFixture[str]
) -> None:
    azure.up("trial", "--without-image")
    assert "remora-remora-nodes lacks the tag remora:cluster=remora-nodes" in error_of(
        azure, capsys, "--cluster", "remora-nodes"
    )


# --- subscriptions


def test_two_subscriptions_of_a_tenant_have_a_cluster_of_the_same_name(azure: Subscription) -> None:
    assert azure.up() == 0
    first = of(azure, SUBSCRIPTION)
    azure.id = SECOND
    assert azure.up() == 0
    second = of(azure, SECOND)
    assert len(second) == len(first)
    names = [one["properties"]["roleName"] for one in azure.resources.of_type(DEFINITIONS)]
    assert sorted(names) == sorted(
        f"Remora remora {part} of {subscription}"
        for part in ("nodes", "parts", "region", "builder")
        for subscription in (SUBSCRIPTION, SECOND)
    )
    # A second call changes no name, and taking one away leaves the other one as it was.
    assert azure.up() == 0
    assert of(azure, SECOND) == second
    assert azure.down() == 0
    assert of(azure, SECOND) == {}
    assert of(azure, SUBSCRIPTION) == first
    azure.id = SUBSCRIPTION
    assert azure.down() == 0
    assert azure.leftovers() == []


def test_clusters_of_the_same_name_have_places_in_each_others_subscription(azure: Subscription) -> None:
    """Each finds its own places, rights, budgets and deployments there, and takes away no others."""
    own = {}
    for id, more in ((SUBSCRIPTION, ()), (SECOND, ()), (THIRD, ("--place", f"third=eastus2@{SECOND}"))):
        azure.id = id
        assert azure.up("trial", "--without-image", *more) == 0
        own[id] = of(azure, id)
    before = of(azure, SECOND)
    azure.id = SUBSCRIPTION
    assert azure.up("trial", "--without-image", *RESEARCH) == 0
    added = {one["type"] for id, one in of(azure, SECOND).items() if id not in before}
    assert {ASSIGNMENTS, BUDGETS, GROUPS} <= added
    everything = of(azure, SECOND)
    assert {id: everything[id] for id in own[SECOND]} == own[SECOND]
    assert azure.up("trial", "--without-image", "--remove-place", "research") == 0
    assert of(azure, SECOND) == before
    assert azure.up("trial", "--without-image", *RESEARCH) == 0
    azure.id = SECOND
    assert azure.down() == 0
    assert of(azure, SECOND) == {id: one for id, one in everything.items() if id not in own[SECOND]}
    for id in (SUBSCRIPTION, THIRD):
        azure.id = id
        assert azure.down() == 0
    assert azure.leftovers() == []


def test_a_tenant_takes_no_name_of_a_role_twice(azure: Subscription) -> None:
    azure.up("trial", "--without-image")
    (one, *_) = azure.resources.of_type(DEFINITIONS)
    scopes = [f"/subscriptions/{SECOND}"]
    name = one["properties"]["roleName"].upper()
    properties = {**one["properties"], "roleName": name, "assignableScopes": scopes}
    id = f"{scopes[0]}/providers/{DEFINITIONS}/33333333-3333-3333-3333-333333333333"
    with pytest.raises(Refused) as refused:
        azure.resources.put(
            Wanted(id=id, type=DEFINITIONS, body={"name": id[-36:], "properties": properties})
        )
    assert (refused.value.code, refused.value.status) == ("RoleDefinitionWithSameNameExists", 409)
