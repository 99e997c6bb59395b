"""Where in Azure anything of a cluster is, in all its subscriptions, by names, tags and marks.

Which subscriptions these are stands in Azure itself: the role `Remora CLUSTER nodes of SUBSCRIPTION` may be assigned in
all of them, and gets each one before anything is made there.  The group of a further place, which is made before all
else of it, says in its tags what place it is.  A cluster of the same name in another subscription is another cluster:
docs/decisions/0232-a-cluster-is-named-with-its-subscription-where-others-have-names-too.md
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence

from deploy.azure.client.resource_manager import VERSIONS, Json, Refused, ResourceManager

_PATIENCE_S = 3600.0
_ROLE = re.compile(r"(?:nodes|parts|region|builder) of ([0-9a-f-]{36})", re.IGNORECASE)


class ClusterParts:
    """What there is of one cluster; a `root` is the path of a subscription."""

    def __init__(self, manager: ResourceManager, cluster: str) -> None:
        self._manager = manager
        self._cluster = cluster
        #: The description of all its assignments of roles.
        self.mark = f"Remora {cluster} of {manager.subscription}"

    def other_subscriptions(self) -> list[str]:
        """Ids of the subscriptions besides the first one in which there is, or may be, anything.

        Raises Refused when the cluster is one of another subscription, and only has places in this one.
        """
        own = self.definitions()
        if not own:
            self._check_subscription()
        scopes = [
            str(scope)
            for one in own
            if f"{self._cluster} nodes of " in one["properties"]["roleName"]
            for scope in one["properties"].get("assignableScopes", [])
        ]
        return sorted({scope.split("/")[2].lower() for scope in scopes} - {self._manager.subscription})

    def groups(self) -> list[Json]:
        """Its resource groups but those of further places, the nodes' first, and that of a build of the image.

        Raises Refused for one of these names that is not the cluster's.
        """
        found = []
        for name in (f"remora-{self._cluster}-nodes", image_group(self._cluster), f"remora-{self._cluster}"):
            group = self._manager.get(f"{self._manager.root}/resourcegroups/{name}", VERSIONS["groups"])
            if group is not None:
                if not self._is_ours(group):
                    raise Refused(
                        f"the resource group {name} lacks the tag remora:cluster={self._cluster}, so deploy/azure/up"
                        " did not make it, and nothing is changed: give it the tag if it is the cluster's, delete it,"
                        " or give another name as --cluster"
                    )
                found.append(group)
        return found

    def _is_ours(self, group: Json) -> bool:
        tags = group.get("tags") or {}
        # Azure Image Builder gives the tag of its own to a group that it makes, and ours perhaps not.
        builds = str(tags.get("imageTemplateResourceGroupName", "")).lower() == f"remora-{self._cluster}"
        is_of_a_build = builds and group["name"] == image_group(self._cluster)
        return bool(tags.get("remora:cluster") == self._cluster or is_of_a_build)

    def groups_of_places(self, root: str) -> list[Json]:
        """The resource groups of the further places in a subscription."""
        groups = self._manager.all(f"{root}/resourcegroups", VERSIONS["groups"])
        return [one for one in groups if self._is_place(one)]

    def _is_place(self, group: Json) -> bool:
        tags = group.get("tags") or {}
        first = str(tags.get("remora:subscription", "")).lower()
        return self._is_ours(group) and "remora:place" in tags and first == self._manager.subscription

    def check_place(self, root: str, place: str) -> None:
        """Raise Refused where the resource group of a further place is there and is not the cluster's."""
        name = place_group(self._cluster, place)
        group = self._manager.get(f"{root}/resourcegroups/{name}", VERSIONS["groups"])
        if group is not None and not (self._is_place(group) and group["tags"]["remora:place"] == place):
            raise Refused(
                f"the resource group {self.named(group)} lacks the tags of the place {place} of this cluster, so"
                " deploy/azure/up did not make it, and nothing is changed: give the place another name, or delete the"
                " group"
            )

    def inside(self, group: Json) -> list[Json]:
        """The resources of a group."""
        return list(self._manager.all(f"{path_of(group)}/resources", VERSIONS["groups"]))

    def definitions(self) -> list[Json]:
        """Its roles."""
        return [one for one in self._roles() if self._first_of(one) == self._manager.subscription]

    def _roles(self) -> list[Json]:
        """The roles of all clusters of this name that may be assigned in this subscription."""
        path = f"{self._manager.root}/providers/Microsoft.Authorization/roleDefinitions"
        return [one for one in self._manager.all(path, VERSIONS["roleDefinitions"]) if self._first_of(one)]

    def _first_of(self, role: Json) -> str:
        """The first subscription of the cluster of this name whose role it is, empty where it is none."""
        prefix, name = f"Remora {self._cluster} ", str(role["properties"].get("roleName", ""))
        found = _ROLE.fullmatch(name.removeprefix(prefix)) if name.startswith(prefix) else None
        return "" if found is None else found[1].lower()

    def _check_subscription(self) -> None:
        """Raise Refused when all that there is of this name are places of a cluster of another subscription."""
        others = {self._first_of(one) for one in self._roles()} - {self._manager.subscription}
        if others and not self.groups():
            raise Refused(
                f"the cluster {self._cluster} is one of the subscription {min(others)} and has places here: give that"
                " one as --subscription, or another name as --cluster"
            )

    def assignments(self, root: str) -> list[Json]:
        """What its identities may do in a subscription."""
        path = f"{root}/providers/Microsoft.Authorization/roleAssignments"
        listed = self._manager.all(path, VERSIONS["roleAssignments"])
        return [
            one
            for one in listed
            if str(one["properties"].get("description", "")).lower() == self.mark.lower()
        ]

    def budgets(self, root: str) -> list[str]:
        """The path of its budget in a subscription, if it is there."""
        path = self.budget_path(root)
        return [path] if self._manager.get(path, VERSIONS["budgets"]) is not None else []

    def deployments(self, root: str) -> list[Json]:
        """The records of its deployments at a subscription."""
        name, path = f"remora-{self._cluster}", f"{root}/providers/Microsoft.Resources/deployments"
        names = {f"{name}{part}" for part in ("", "-budget", "-roles", "-image-role", "-region-access")}
        of_places = re.compile(
            rf"{re.escape(name)}_place(-budget|-region)?_{self._manager.subscription[:8]}_.*"
        )
        return [
            one
            for one in self._manager.all(path, VERSIONS["deployments"])
            if of_places.fullmatch(one["name"]) or (one["name"] in names and root == self._manager.root)
        ]

    def budget_path(self, root: str) -> str:
        """The path of its budget in a subscription."""
        # In another subscription there may be clusters of the same name, each with a budget of its own.
        places = "" if root == self._manager.root else f"_places_{self._manager.subscription[:8]}"
        return f"{root}/providers/Microsoft.Consumption/budgets/remora-{self._cluster}{places}"

    def named(self, group: Json) -> str:
        """A group's name, with the subscription where it is another one than the first."""
        subscription = str(group["id"]).split("/")[2].lower()
        is_own = subscription == self._manager.subscription
        return str(group["name"]) if is_own else f"{group['name']} of the subscription {subscription}"

    def delete_groups(self, groups: Sequence[Json], say: Callable[[str], None], poll_s: float) -> None:
        """Delete groups with everything in them, and wait until they are gone.  Raises Refused."""
        for group in groups:
            say(f"deleting {self.named(group)}, which takes minutes")
            self._manager.delete(path_of(group), VERSIONS["groups"])
        given_up_at = time.monotonic() + _PATIENCE_S
        for group in groups:
            while self._manager.get(path_of(group), VERSIONS["groups"]) is not None:
                if time.monotonic() > given_up_at:
                    raise Refused(f"{group['name']} is still there after an hour")
                time.sleep(poll_s)
            say(f"deleted {self.named(group)}")


def image_group(cluster: str) -> str:
    """The resource group in which Azure Image Builder builds images of a cluster's nodes."""
    return f"remora-{cluster}_image"


def place_group(cluster: str, place: str) -> str:
    """The resource group of the nodes of a further place."""
    return f"remora-{cluster}-nodes_{place}"


def root_of(subscription: str) -> str:
    """The path of a subscription."""
    return f"/subscriptions/{subscription}"


def path_of(group: Json) -> str:
    """The path of a resource group."""
    root, _, name = str(group["id"]).rpartition("/")
    # The two services that serve groups write this word differently.
    return f"{root.rpartition('/')[0]}/resourcegroups/{name}"
