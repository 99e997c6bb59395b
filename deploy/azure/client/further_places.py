"""The further places of a deployment: which there are, and what of them no template makes or takes away."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from deploy.azure.client.cluster_parts import ClusterParts, place_group, root_of
from deploy.azure.client.places import (
    Place,
    PlacesRefused,
    place_of,
    planned,
    regions_of,
    subscriptions_of,
)
from deploy.azure.client.registrations import register
from deploy.azure.client.resource_manager import VERSIONS, Json, ResourceManager

#: Kinds of resources that a subscription needs for nodes, or for a network that reaches vault and storage.
_NAMESPACES = ("Microsoft.Compute", "Microsoft.KeyVault", "Microsoft.Network", "Microsoft.Storage")
_MACHINES = ("microsoft.compute/virtualmachines", "microsoft.compute/virtualmachinescalesets")
_LINKS = "microsoft.network/privatednszones/virtualnetworklinks"


class FurtherPlaces:
    """The places of one deployment; `parameters` is called first."""

    def __init__(
        self, manager: ResourceManager, cluster: str, say: Callable[[str], None], poll_s: float
    ) -> None:
        self._manager = manager
        self._cluster = cluster
        self._say = say
        self._poll_s = poll_s
        self._parts = ClusterParts(manager, cluster)
        #: Their resource groups, by their names.
        self._groups: dict[str, Json] = {}
        self._places: list[Place] = []
        self._others: list[str] = []

    # --- before the template

    def parameters(
        self,
        given: Sequence[Place],
        removed: Sequence[str],
        is_usable: Callable[[str], None],
        budget_start: Callable[[str], str],
    ) -> dict[str, Any]:
        """The template's parameters of places: those that are there and are not removed, and the given ones.

        `is_usable` raises Refused for a subscription that is not; `budget_start` is the first day of the budget at this
        path.  Raises PlacesRefused, and Refused.
        """
        own = self._manager.subscription
        others = self._parts.other_subscriptions()
        for subscription in sorted({*others, *subscriptions_of(given)} - {own}):
            is_usable(subscription)
        known = self._known([own, *others])
        self._check_removed(removed, given)
        self._places = planned(given, [one for one in known if one["name"] not in removed], own)
        self._others = sorted({*others, *subscriptions_of(self._places)})
        for place in self._places:
            where = f", subscription {place['subscription']}" if "subscription" in place else ""
            self._say(f"place {place['name']}: {place['region']}{where}, {place['network']}")
        self._check_groups()
        starts = {one: budget_start(self._parts.budget_path(root_of(one))) for one in self._others}
        return {
            "furtherPlaces": self._places,
            "otherSubscriptions": [{"id": one, "budgetStart": starts[one]} for one in self._others],
        }

    def _known(self, subscriptions: Sequence[str]) -> list[Place]:
        found = []
        for subscription in subscriptions:
            for group in self._parts.groups_of_places(root_of(subscription)):
                place = place_of(group["tags"], group["location"], subscription)
                self._groups[place["name"]] = group
                found.append(place)
        return found

    def _check_groups(self) -> None:
        for place in self._places:
            if place["name"] not in self._groups:
                root = root_of(place.get("subscription", self._manager.subscription))
                self._parts.check_place(root, place["name"])

    def _check_removed(self, removed: Sequence[str], given: Sequence[Place]) -> None:
        for place in given:
            if place["name"] in removed:
                raise PlacesRefused(f"the place {place['name']} is to be made and to be removed")
        for name in removed:
            if name not in self._groups:
                self._say(f"place {name[:40]!r}: there is none")
                continue
            inside = self._parts.inside(self._groups[name])
            machines = [one for one in inside if one["type"].lower() in _MACHINES]
            if machines:
                raise PlacesRefused(
                    f"the place {name} has {len(machines)} machines or scale sets: let its pools buy nothing, and wait"
                    " until its nodes have ended"
                )
            self._say(f"place {name}: to be removed, with its {len(inside)} resources")

    def register(self) -> None:
        """Let other subscriptions have what nodes are made of: only a person may, and the controller may not."""
        for subscription in self._others:
            register(self._manager, root_of(subscription), _NAMESPACES, self._poll_s, self._say)

    # --- after the template, which knows the removed places no more

    def remove(self, removed: Sequence[str]) -> None:
        """Take away what is of removed places, and of subscriptions without a place; a template takes nothing away."""
        for name in removed:
            if name in self._groups:
                self._remove_links(f"remora-{self._cluster}-{name}")
                self._parts.delete_groups([self._groups[name]], self._say, self._poll_s)
        used = subscriptions_of(self._places)
        for subscription in self._others:
            if subscription not in used:
                self._clear(root_of(subscription))

    def _remove_links(self, network: str) -> None:
        """The others' halves of a network's peerings, without which it could not be peered again, and its zones'."""
        first = f"{self._manager.root}/resourceGroups/remora-{self._cluster}"
        networks = [f"{first}/providers/Microsoft.Network/virtualNetworks/remora-{self._cluster}"]
        for place in self._places:
            name = f"remora-{self._cluster}-{place['name']}"
            group = root_of(place.get("subscription", self._manager.subscription)) + (
                f"/resourceGroups/{place_group(self._cluster, place['name'])}"
            )
            networks.append(f"{group}/providers/Microsoft.Network/virtualNetworks/{name}")
        for one in networks:
            self._manager.delete(f"{one}/virtualNetworkPeerings/{network}", VERSIONS["networks"])
        for link in self._parts.inside({"id": first}):
            if link["type"].lower() == _LINKS and link["id"].rpartition("/")[2] == f"{network}_place":
                self._manager.delete(link["id"], VERSIONS["zones"])

    def _clear(self, root: str) -> None:
        for one in self._parts.assignments(root):
            self._manager.delete(one["id"], VERSIONS["roleAssignments"])
        for budget in self._parts.budgets(root):
            self._manager.delete(budget, VERSIONS["budgets"])
        for one in self._parts.deployments(root):
            self._manager.delete(one["id"], VERSIONS["deployments"])

    def regions(self, first: str) -> list[str]:
        """Those of all places, each once, that of the service before all others."""
        return regions_of(self._places, first)

    def replicate(self, gallery: str, version: str, first: str) -> None:
        """Begin to copy the image of the nodes to the regions of all places; says what there is to do otherwise."""
        if not self._places:
            return
        regions = self.regions(first)
        path = (
            f"{self._manager.root}/resourceGroups/remora-{self._cluster}/providers/Microsoft.Compute/galleries/{gallery}"
            f"/images/remora-node/versions/{version}"
        )
        image = self._manager.get(path, VERSIONS["galleries"])
        if image is None:
            said = f"there is no image {version} yet: build it, and call this again to copy it to"
            self._say(f"{said} {', '.join(regions)}")
            return
        targets = with_regions(image["properties"].get("publishingProfile") or {}, regions)
        if targets:
            body = {"properties": {"publishingProfile": {"targetRegions": targets}}}
            self._manager.patch(path, VERSIONS["galleries"], body)
            self._say(f"the image {version} is copied to {', '.join(regions)}, which takes up to an hour")


def with_regions(profile: Mapping[str, Any], regions: Sequence[str]) -> list[Json]:
    """The target regions of an image that lacks some of these, those that it has first; none when it has them all."""
    there: list[Json] = list(profile.get("targetRegions") or [])
    # Azure shows "West Europe" for westeurope.
    names = {str(one["name"]).replace(" ", "").lower() for one in there}
    missing = [{"name": region} for region in regions if region not in names]
    return [*there, *missing] if missing else []
