"""Where in Azure anything of a cluster is, in all its subscriptions, by names, tags and marks.

Which subscriptions these are stands in Azure itself: the role `Remora CLUSTER nodes` may be assigned in all of them,
and gets each one before anything is made there.  The group of a further place, which is made before all else of it,
says in its tags what place it is.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence

from deploy.azure.client.resource_manager import VERSIONS, Json, Refused, ResourceManager

_PATIENCE_S = 3600.0
_FIRST = re.compile(r"of the subscription ([0-9a-f-]{36})$")


class ClusterParts:
    """What there is of one cluster; a `root` is the path of a subscription."""

    def __init__(self, manager: ResourceManager, cluster: str) -> None:
        self._manager = manager
        self._cluster = cluster
        #: The description of all its assignments of roles, and how the names of its roles begin.
        self.mark = f"Remora {cluster}"

    def other_subscriptions(self) -> list[str]:
        """Ids of the subscriptions besides the first one in which there is, or may be, anything."""
        scopes = [
            str(scope)
            for one in self.definitions()
            if one["properties"]["roleName"] == f"{self.mark} nodes"
            for scope in one["properties"].get("assignableScopes", [])
        ]
        return sorted({scope.split("/")[2].lower() for scope in scopes} - {self._manager.subscription})

    def groups_of_places(self, root: str) -> list[Json]:
        """The resource groups of the further places in a subscription."""
        found = []
        for group in self._manager.all(f"{root}/resourcegroups", VERSIONS["groups"]):
            tags = group.get("tags") or {}
            is_ours = tags.get("remora:cluster") == self._cluster and "remora:place" in tags
            if is_ours and str(tags.get("remora:subscription", "")).lower() == self._manager.subscription:
                found.append(group)
        return found

    def inside(self, group: Json) -> list[Json]:
        """The resources of a group."""
        return list(self._manager.all(f"{path_of(group)}/resources", VERSIONS["groups"]))

    def definitions(self) -> list[Json]:
        """Its roles.  Raises Refused when they are those of a cluster that only has places in this subscription."""
        path = f"{self._manager.root}/providers/Microsoft.Authorization/roleDefinitions"
        names = {f"{self.mark} {part}" for part in ("nodes", "parts", "region", "builder")}
        listed = self._manager.all(path, VERSIONS["roleDefinitions"])
        found = [one for one in listed if one["properties"].get("roleName") in names]
        for one in found:
            first = _FIRST.search(str(one["properties"].get("description", "")).lower())
            if first is not None and first[1] != self._manager.subscription:
                said = f"the cluster {self._cluster} is one of the subscription {first[1]}"
                raise Refused(f"{said}: give that one as --subscription")
        return found

    def assignments(self, root: str) -> list[Json]:
        """What its identities may do in a subscription."""
        path = f"{root}/providers/Microsoft.Authorization/roleAssignments"
        listed = self._manager.all(path, VERSIONS["roleAssignments"])
        return [one for one in listed if one["properties"].get("description") == self.mark]

    def budgets(self, root: str) -> list[str]:
        """The path of its budget in a subscription, if it is there."""
        path = budget_path(root, self._cluster, root == self._manager.root)
        return [path] if self._manager.get(path, VERSIONS["budgets"]) is not None else []

    def deployments(self, root: str) -> list[Json]:
        """The records of its deployments at a subscription."""
        name, path = f"remora-{self._cluster}", f"{root}/providers/Microsoft.Resources/deployments"
        names = {f"{name}{part}" for part in ("", "-budget", "-roles", "-image-role", "-region-access")}
        return [
            one
            for one in self._manager.all(path, VERSIONS["deployments"])
            if one["name"].startswith(f"{name}_place")
            or (one["name"] in names and root == self._manager.root)
        ]

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


def budget_path(root: str, cluster: str, is_first: bool) -> str:
    """The path of a cluster's budget in a subscription."""
    # In another subscription there may be a cluster of the same name, with a budget of its own.
    name = f"remora-{cluster}" if is_first else f"remora-{cluster}_places"
    return f"{root}/providers/Microsoft.Consumption/budgets/{name}"


def root_of(subscription: str) -> str:
    """The path of a subscription."""
    return f"/subscriptions/{subscription}"


def path_of(group: Json) -> str:
    """The path of a resource group."""
    root, _, name = str(group["id"]).rpartition("/")
    # The two services that serve groups write this word differently.
    return f"{root.rpartition('/')[0]}/resourcegroups/{name}"
