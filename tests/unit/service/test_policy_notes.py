"""Notes on policies that can be applied: what they cost without a budget, and what quotas lack, with the request."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from cluster.azure.catalogue import BY_NAME
from cluster.policies.documents import read_document
from cluster.policies.policy_problems import PoliciesRefused
from remora.clusters import DEFAULT_CLUSTER
from service.clouds.fixed_pool import fixed_pool, known
from service.embedded.emulated_azure import emulated_azure_settings, write_azure_settings
from service.policy_notes import notes_on
from service.settings import Settings

A100, FAMILY = "Standard_NC24ads_A100_v4", "StandardNCADSA100v4Family"
SUBNET = "/subscriptions/s/resourceGroups/w/providers/Microsoft.Network/virtualNetworks/v/subnets/nodes"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    settings = Settings(home=tmp_path, cloud="azure-emulated", azure_file=None)
    azure = emulated_azure_settings("http://127.0.0.1:7266")
    west = {"region": "westeurope", "resource_group": "w", "subnet": SUBNET, "subscription": "other"}
    document = {**azure.model_dump(), "places": {"west": west}}
    write_azure_settings(settings.azure, type(azure).model_validate(document))
    return settings


def notes(settings: Settings, document: str, **limits: int) -> list[str]:
    return notes_on(read_document(document, known(settings)), settings, {DEFAULT_CLUSTER: limits})


def pool(**values: Any) -> str:
    said = {"sizes": f"[{A100}]", "capacity": "on-demand", "max_nodes": 20, **values}
    return "pools: {gpu: {" + ", ".join(f"{name}: {value}" for name, value in said.items()) + "}}\n"


def test_without_a_budget_the_most_that_a_day_may_cost_is_said(settings: Settings) -> None:
    (said,) = notes(settings, pool())
    assert f"up to {20 * 24 * BY_NAME[A100].on_demand_usd:,.0f} USD a day" in said
    assert notes(settings, pool() + "budget: {usd_per_day: 100}") == []
    assert notes(settings, pool() + "budget: {usd_per_month: 100}") == []
    assert notes(settings, pool(max_nodes=0)) == []


def test_a_quota_that_is_too_small_is_said_with_the_request_for_more(settings: Settings) -> None:
    budget = "budget: {usd_per_day: 100}"
    limits = {FAMILY.lower(): 96}
    (said,) = notes(settings, pool() + budget, **limits)
    assert said.startswith(f"max_nodes of gpu needs 480 vCPUs of the quota {FAMILY}, which allows 96; ")
    words = shlex.split(said.partition("with: ")[2])
    asked = dict(zip(words[3::2], words[4::2], strict=True))
    assert words[:3] == ["az", "quota", "update"]
    assert asked["--limit-object"] == "value=480"
    assert asked["--scope"].endswith("/providers/Microsoft.Compute/locations/eastus")
    assert asked["--resource-type"] == "dedicated"
    assert notes(settings, pool() + budget, **{FAMILY.lower(): 480}) == []
    assert notes(settings, pool() + budget) == [], "a quota that is not known is not called small"


def test_the_most_nodes_of_a_schedule_count(settings: Settings) -> None:
    night = "[{window: {begins: '0 20 * * *', lasts_s: 3600}, max_nodes: 30}]"
    (said,) = notes(settings, pool(schedules=night) + "budget: {usd_per_day: 1}", **{FAMILY.lower(): 480})
    assert "needs 720 vCPUs" in said


def test_a_place_has_its_own_quota_region_and_subscription(settings: Settings) -> None:
    document = pool(place="west", capacity="spot") + "budget: {usd_per_day: 100}"
    assert notes(settings, document, lowprioritycores=1) == []
    (said,) = notes(settings, document, **{"lowprioritycores@west": 1})
    words = shlex.split(said.partition("with: ")[2])
    assert {"lowPriorityCores", "value=480", "lowPriority"} <= {*words}
    assert "/subscriptions/other/providers/Microsoft.Compute/locations/westeurope" in words


def test_nodes_that_cost_nothing_are_no_reason_for_a_note(tmp_path: Path) -> None:
    local = Settings(home=tmp_path, cloud="local", nodes=5)
    assert notes(local, fixed_pool(local).document) == []


def test_each_cluster_is_held_against_what_its_own_place_sells(settings: Settings) -> None:
    """By the file in its folder; of a cluster without one it is not known what can be bought."""
    west = settings.azure.read_text()
    ward = settings.for_cluster("ward")
    ward.cluster_home.mkdir(parents=True)
    write_azure_settings(settings.azure, emulated_azure_settings("http://127.0.0.1:7266"))
    ward.azure.write_text(west)
    with pytest.raises(PoliciesRefused, match="there is no place 'west'"):
        read_document(pool(place="west"), known(settings))
    of_ward = read_document(pool(place="west", max_nodes=9, cluster="ward"), known(settings))
    limits = {"ward": {f"{FAMILY.lower()}@west": 24}}
    dear, small = notes_on(of_ward, settings, limits)
    assert "all nodes that max_nodes allows cost up to" in dear
    assert "/locations/westeurope" in small
    beyond = pool(place="west", max_nodes=9, cluster="ward") + "projects: {a: {cluster: ward, gpus: 10}}\n"
    with pytest.raises(PoliciesRefused, match="all pools of the cluster ward together have 9 GPUs"):
        read_document(beyond, known(settings))
    elsewhere = read_document(pool(place="west", max_nodes=9, cluster="lab"), known(settings))
    assert notes_on(elsewhere, settings, {}) == []
