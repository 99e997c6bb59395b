"""Names of what several places of Azure sell to one cluster (pure).

A place is a region or a subscription.  What is sold in a place that has a name says so:
`Standard_NC24ads_A100_v4@west/1/spot`, with the quota `...@west`.  So prices, refusals and quotas are kept for each
place, and the planner needs to know nothing of places: a pool's sizes are those of one place.  Only this module and
the policies write and read such names; the provider of a place never sees them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from cluster.azure.catalogue import Size, offerings
from cluster.azure.settings import AzureSettings
from cluster.policies.offerings import Offering
from cluster.policies.policies import AT_PLACE


def at_place(name: str, place: str) -> str:
    """A size, a quota or the id of an offering, with its place in it."""
    if not place or not name:
        return name
    size, slash, rest = name.partition("/")
    return f"{size}{AT_PLACE}{place}{slash}{rest}"


def without_place(name: str) -> tuple[str, str]:
    """The name as the place itself knows it, and the place; an empty one where none is in it."""
    size, slash, rest = name.partition("/")
    size, _, place = size.partition(AT_PLACE)
    return f"{size}{slash}{rest}", place


def sold_at(found: Iterable[Offering], place: str) -> tuple[Offering, ...]:
    """The offerings of one place under the names that the planner has for them."""
    if not place:
        return tuple(found)
    return tuple(
        replace(one, size=at_place(one.size, place), quota=at_place(one.quota, place)) for one in found
    )


def table_of(settings: AzureSettings, sizes: Iterable[Size]) -> tuple[Offering, ...]:
    """What the table says is sold in all places of the settings."""
    table = tuple(sizes)
    return tuple(
        offering
        for place, there in settings.by_place().items()
        for offering in sold_at(offerings(there.region, sizes=table), place)
    )
