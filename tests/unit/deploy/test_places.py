"""Which further places there are to be, and with which addresses."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cluster.azure.settings import MOST_PLACES
from deploy.azure.client.further_places import with_regions
from deploy.azure.client.places import PlacesRefused, planned, problems_of, read_places
from tests.architecture.repository import ROOT

OWN, SECOND = "00000000-0000-0000-0000-000000000000", "11111111-1111-1111-1111-111111111111"
WEST = {"name": "west", "region": "westeurope"}


def test_options_are_places() -> None:
    assert read_places(["west=westeurope", f"research=eastus@{SECOND}"]) == [
        WEST,
        {"name": "research", "region": "eastus", "subscription": SECOND},
    ]


@pytest.mark.parametrize("word", ["west", "west=", "=westeurope", "west=westeurope@", ""])
def test_an_option_of_another_form_is_refused(word: str) -> None:
    with pytest.raises(PlacesRefused, match="is not NAME=REGION"):
        read_places([word])


@pytest.mark.parametrize(
    ("places", "said"),
    [
        (["west"], "an object with name and region"),
        ([{"name": "west"}], "an object with name and region"),
        ([{**WEST, "name": "West"}], "is no name"),
        ([{**WEST, "name": "west-"}], "is no name"),
        ([{**WEST, "name": "a" * 21}], "is no name"),
        ([{**WEST, "name": 3}], "is no name"),
        ([{**WEST, "region": "West Europe"}], "no region such as"),
        ([{**WEST, "subscription": "mine"}], "no id in lower case"),
        ([{**WEST, "zone": "1"}], "has no zone"),
        ([{**WEST, "network": "10.71.0.1/16"}], "none of private"),
        ([{**WEST, "network": "8.8.0.0/16"}], "none of private"),
        ([{**WEST, "network": "10.71.0.0/28"}], "none of private"),
        ([{**WEST, "network": ["10.71.0.0/16"]}], "none of private"),
        ([WEST, WEST], "the place west is named twice"),
        ([{**WEST, "network": "10.64.0.0/12"}], "overlaps 10.70.0.0/16 of the first network"),
        ([{**WEST, "network": "172.16.0.0/12"}], "overlaps 172.16.0.0/16 of InfiniBand"),
        (
            [{**WEST, "network": "10.71.0.0/16"}, {**WEST, "name": "b", "network": "10.71.4.0/24"}],
            "10.71.4.0/24 of the place b overlaps 10.71.0.0/16 of west",
        ),
    ],
)
def test_what_is_wrong_with_a_place_is_said(places: list[Any], said: str) -> None:
    assert any(said in problem for problem in problems_of(places)), problems_of(places)


def test_places_that_are_there_keep_their_addresses_and_others_get_free_ones() -> None:
    first = planned([WEST, {"name": "east", "region": "eastus2"}], [], OWN)
    assert {one["name"]: one["network"] for one in first} == {"east": "10.71.0.0/16", "west": "10.72.0.0/16"}
    west = [one for one in first if one["name"] == "west"]
    more = planned([{"name": "a", "region": "uksouth"}, {"name": "z", "region": "uksouth"}], west, OWN)
    assert {one["name"]: one["network"] for one in more} == {
        "a": "10.71.0.0/16",
        "west": "10.72.0.0/16",
        "z": "10.73.0.0/16",
    }
    own = planned([{**WEST, "network": "10.71.128.0/20"}, {"name": "a", "region": "uksouth"}], [], OWN)
    assert [one["network"] for one in own] == ["10.72.0.0/16", "10.71.128.0/20"]


def test_the_subscription_of_the_cluster_is_not_another_one() -> None:
    (place,) = planned([{**WEST, "subscription": OWN}], [], OWN)
    assert "subscription" not in place
    assert planned([{**WEST, "subscription": OWN}], [place], OWN) == [place]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"region": "eastus"}, "region westeurope"),
        ({"subscription": SECOND}, f"subscription {OWN}"),
        ({"network": "10.90.0.0/16"}, "network 10.71.0.0/16"),
    ],
)
def test_a_place_that_is_there_is_not_moved(change: dict[str, str], said: str) -> None:
    known = planned([WEST], [], OWN)
    with pytest.raises(PlacesRefused, match=f"is there with the {said}, and no place can be moved"):
        planned([WEST | change], known, OWN)


def test_there_are_no_more_places_than_the_service_reads() -> None:
    places = [{"name": f"p{number}", "region": "eastus"} for number in range(MOST_PLACES)]
    found = planned(places, [], OWN)
    assert len({one["network"] for one in found}) == MOST_PLACES
    with pytest.raises(PlacesRefused, match=f"{MOST_PLACES} at most"):
        planned([WEST], found, OWN)
    template = json.loads((ROOT / "deploy/azure/main.json").read_text())
    assert template["parameters"]["furtherPlaces"]["maxLength"] == MOST_PLACES


def test_where_no_addresses_are_left_it_is_said() -> None:
    large = [f"10.{start}.0.0/{length}" for start, length in ((72, 13), (80, 12), (96, 11))]
    places = [{"name": f"p{at}", "region": "eastus", "network": one} for at, one in enumerate(large)]
    with pytest.raises(PlacesRefused, match="no addresses are left for west, z"):
        planned([*places, WEST, {"name": "z", "region": "eastus"}], [], OWN)


def test_an_image_keeps_its_regions_and_gets_those_that_it_lacks() -> None:
    there = [{"name": "East US", "regionalReplicaCount": 2}]
    assert with_regions({"targetRegions": there}, ["eastus", "westeurope"]) == [
        *there,
        {"name": "westeurope"},
    ]
    assert with_regions({"targetRegions": there}, ["eastus"]) == []
