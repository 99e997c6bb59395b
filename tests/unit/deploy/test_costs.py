"""The table of costs is that of the README, and counts what a deployment has."""

from __future__ import annotations

from pathlib import Path

import pytest

from deploy.azure.client import costs
from tests.contracts.deploy.subscription import Subscription

KINDS = {
    "NAT gateway": "natGateways",
    "public address": "publicIPAddresses",
    "private endpoint": "privateEndpoints",
    "private DNS zone": "privateDnsZones",
    "PostgreSQL, 2 vCores": "flexibleServers",
}


def test_the_readme_has_the_table() -> None:
    text = costs.README.read_text()
    assert costs.with_table(text) == text, "write it by: python -m deploy.azure.client.costs"


@pytest.mark.parametrize("size", costs.SIZES)
def test_what_is_counted_is_what_is_deployed(tmp_path: Path, size: str) -> None:
    with Subscription(tmp_path) as azure:
        azure.up(size)
        kinds = [one["type"].rpartition("/")[2] for one in azure.resources]
        counted = costs.parts_of(costs.parameters_of(size))
        for part, kind in KINDS.items():
            assert counted.get(part, 0) == kinds.count(kind), part
        disks = [number for part, number in counted.items() if part.startswith("disk of")]
        assert disks == [kinds.count("virtualMachines")]


def test_what_is_counted_of_a_place_is_what_it_adds(tmp_path: Path) -> None:
    with Subscription(tmp_path) as azure:
        azure.up("team")
        before = [one["type"].rpartition("/")[2] for one in azure.resources]
        azure.up("team", "--place", "west=westeurope")
        after = [one["type"].rpartition("/")[2] for one in azure.resources]
        counted = costs.parts_of_a_place()
        added = {part: after.count(kind) - before.count(kind) for part, kind in KINDS.items()}
        assert {part: number for part, number in added.items() if number} == counted


def test_the_trial_costs_what_it_promises() -> None:
    known = costs.prices()
    parts = costs.parts_of(costs.parameters_of("trial")).items()
    usd = sum(number * costs.monthly_usd(part, known) for part, number in parts) * 24 / costs.HOURS
    assert usd <= 5.0


def test_each_price_names_its_list_and_what_was_not_compared_is_marked() -> None:
    known = costs.prices()
    for part, price in {**known["machines"], **known["parts"]}.items():
        assert price["list"].startswith("https://azure.microsoft.com/pricing/"), part
        assert (" ?" in row(part)) == (not price["seen"])


def row(part: str) -> str:
    return next(line for line in costs.table().splitlines() if line.startswith(f"| {part} |"))
