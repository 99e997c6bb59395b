"""Further places of a cluster's nodes, other regions or subscriptions: which there are, with which addresses (pure).

A place is an object of the template's parameter `furtherPlaces`: `name`, `region`, `network` (its addresses) and, where
it is another one, `subscription`.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any

from cluster.azure.settings import MOST_PLACES

Place = dict[str, Any]

#: As the service reads it; a name of Azure's may not end with a hyphen besides.
_NAME = re.compile(r"[a-z](?:[a-z0-9-]{0,18}[a-z0-9])?")
_REGION = re.compile(r"[a-z0-9]{3,40}")
_SUBSCRIPTION = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_KEYS = {"name": _NAME, "region": _REGION, "subscription": _SUBSCRIPTION}
#: A place has at least the addresses of a few nodes, and Azure keeps five of them.
_SMALLEST = 26
#: What a place may not have: the addresses of the first network, and those that InfiniBand reserves.
_TAKEN = {
    "the first network": ipaddress.IPv4Network("10.70.0.0/16"),
    "InfiniBand": ipaddress.IPv4Network("172.16.0.0/16"),
}
#: Networks that places get, one after another.
_FREE = [ipaddress.IPv4Network(f"10.{number}.0.0/16") for number in range(71, 71 + 2 * MOST_PLACES)]


class PlacesRefused(Exception):
    """Places cannot be made as they are asked for; the message is one sentence."""


def read_places(words: Iterable[str]) -> list[Place]:
    """The places of options `NAME=REGION` and `NAME=REGION@SUBSCRIPTION`.  Raises PlacesRefused."""
    found = []
    for word in words:
        name, equals, rest = word.partition("=")
        region, at, subscription = rest.partition("@")
        if not equals or not name or not region or (at and not subscription):
            raise PlacesRefused(f"--place {word[:80]!r} is not NAME=REGION or NAME=REGION@SUBSCRIPTION")
        found.append({"name": name, "region": region} | ({"subscription": subscription} if at else {}))
    return found


def problems_of(places: Sequence[Any]) -> list[str]:
    """What is wrong with places, of which some may not have their addresses yet."""
    problems = [problem for place in places for problem in _problems(place)]
    if problems:
        return problems
    names = [place["name"] for place in places]
    problems += [f"the place {name} is named twice" for name in sorted(set(names)) if names.count(name) > 1]
    networks = {place["name"]: _network(place) for place in places if "network" in place}
    for (one, first), (other, second) in combinations([*_TAKEN.items(), *networks.items()], 2):
        if first.overlaps(second):
            problems.append(f"{second} of the place {other} overlaps {first} of {one}")
    return problems


def _problems(place: Any) -> list[str]:
    if not isinstance(place, dict) or not {"name", "region"} <= place.keys():
        return ["each of furtherPlaces has to be an object with name and region"]
    said = f"the place {str(place['name'])[:40]!r}"
    odd = sorted(str(key)[:40] for key in place.keys() - {*_KEYS, "network"})
    problems = [f"{said} has no {key}" for key in odd]
    for key, form in _KEYS.items():
        if key in place and not (isinstance(place[key], str) and form.fullmatch(place[key])):
            problems.append(f"{said} has the {key} {str(place[key])[:60]!r}, which is {_WANTED[key]}")
    if "network" in place and not _is_network(place):
        problems.append(f"{said} has the network {str(place['network'])[:60]!r}, which is none of private")
        problems[-1] += f" addresses such as 10.71.0.0/16, /{_SMALLEST} or larger"
    return problems


_WANTED = {
    "name": "no name: 1 to 20 of a-z, 0-9 and -, beginning with a letter and not ending with -",
    "region": "no region such as westeurope",
    "subscription": "no id in lower case; list yours by: az account list --output table",
}


def _is_network(place: Place) -> bool:
    try:
        network = _network(place)
    except ValueError:
        return False
    return network.is_private and 8 <= network.prefixlen <= _SMALLEST


def _network(place: Place) -> ipaddress.IPv4Network:
    return ipaddress.IPv4Network(str(place["network"]))


def planned(given: Sequence[Place], known: Sequence[Place], own: str) -> list[Place]:
    """All places that there are to be, by their names, each with its addresses.  Raises PlacesRefused.

    `known` are those that are there: they stay as they are, whether they are given or not.  `own` is the id of the
    cluster's first subscription, which no place has to name.
    """
    found = {place["name"]: place for place in known}
    for place in given:
        place = {key: value for key, value in place.items() if (key, value) != ("subscription", own)}
        there = found.setdefault(place["name"], place)
        moved = [key for key in ("region", "subscription") if there.get(key, own) != place.get(key, own)] + [
            key for key in ("network",) if key in place and there.get(key) != place[key]
        ]
        if moved:
            said = ", ".join(f"{key} {there.get(key, own)}" for key in moved)
            raise PlacesRefused(
                f"the place {place['name']} is there with the {said}, and no place can be moved; give the new one"
                " another name"
            )
    if len(found) > MOST_PLACES:
        raise PlacesRefused(
            f"with those that are there, these are {len(found)} places of {MOST_PLACES} at most"
        )
    places = _with_networks([found[name] for name in sorted(found)])
    problems = problems_of(places)
    if problems:
        raise PlacesRefused("; ".join(problems))
    return places


def _with_networks(places: Sequence[Place]) -> list[Place]:
    taken = [_network(place) for place in places if "network" in place]
    free = [one for one in _FREE if not any(one.overlaps(other) for other in taken)]
    missing = [place["name"] for place in places if "network" not in place]
    if len(missing) > len(free):
        raise PlacesRefused(
            f"no addresses are left for {', '.join(missing)}: give each its network in a file"
        )
    networks = {name: str(network) for name, network in zip(missing, free, strict=False)}
    return [{"network": networks.get(place["name"]), **place} for place in places]


def subscriptions_of(places: Iterable[Place]) -> set[str]:
    """The other subscriptions that places are in."""
    return {place["subscription"] for place in places if "subscription" in place}


def regions_of(places: Iterable[Place], first: str) -> list[str]:
    """The regions of all places, each once, the first one's before all others."""
    return [first, *sorted({place["region"] for place in places} - {first})]


def place_of(tags: Mapping[str, str], region: str, subscription: str) -> Place:
    """The place whose resource group has these tags."""
    found = {"name": tags["remora:place"], "region": region, "network": tags["remora:network"]}
    return (
        found
        if subscription == tags["remora:subscription"].lower()
        else {**found, "subscription": subscription}
    )
