"""deploy/azure/down: deletes everything that deploy/azure/up and a cluster made, with all nodes and all results.

It can be stopped and called again at any time.  Only groups with the cluster's tag are deleted, and of the subscription
only what has the cluster's name or mark.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Callable
from typing import Any

from azure.core.credentials import TokenCredential
from azure.identity import DefaultAzureCredential

from deploy.azure.client.image import remove_templates
from deploy.azure.client.resource_manager import ENDPOINT, VERSIONS, Json, Refused, ResourceManager

_PATIENCE_S = 3600.0

Say = Callable[[str], None]


def main(
    arguments: list[str],
    credential: TokenCredential | None = None,
    say: Say = print,
    ask: Callable[[str], str] = input,
) -> int:
    """0: nothing is left; 1: Azure refused, or something is left; 2: it was not confirmed; 130: stopped by Ctrl-C."""
    parser = argparse.ArgumentParser(prog="deploy/azure/down", description=__doc__)
    parser.add_argument("--subscription", required=True, help="id of the subscription")
    parser.add_argument("--cluster", default="remora", help="name of the cluster; remora by default")
    parser.add_argument("--confirm", metavar="CLUSTER", help="its name again, instead of the question")
    parser.add_argument("--endpoint", default=ENDPOINT, help=argparse.SUPPRESS)
    parser.add_argument("--poll-s", type=float, default=10.0, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if not re.fullmatch(r"[a-z][a-z0-9-]{0,19}", options.cluster):
        print("down: --cluster is no name of a cluster", file=sys.stderr)
        return 2
    manager = ResourceManager(credential or DefaultAzureCredential(), options.subscription, options.endpoint)
    try:
        down = Down(manager, options.cluster, options.poll_s, say)
        groups = down.groups()
        down.say_what_goes(groups)
        try:
            answer = options.confirm if options.confirm is not None else ask("type the name of the cluster: ")
        except EOFError:
            answer = ""
        if answer != options.cluster:
            print(f"down: nothing was deleted: {answer[:40]!r} is not {options.cluster!r}", file=sys.stderr)
            return 2
        return down.run(groups)
    except Refused as refused:
        print(f"down: {refused}; call it again to go on", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("down: stopped; call it again to go on", file=sys.stderr)
        return 130
    finally:
        manager.close()


class Down:
    """What is of one cluster in one subscription."""

    def __init__(self, manager: ResourceManager, cluster: str, poll_s: float, say: Say) -> None:
        self._manager = manager
        self._cluster = cluster
        self._poll_s = poll_s
        self._say = say
        self._mark = f"Remora {cluster}"
        self._budget = f"{manager.root}/providers/Microsoft.Consumption/budgets/remora-{cluster}"

    def groups(self) -> list[Json]:
        """Its resource groups, the nodes' first.  Raises Refused for one of that name which is not the cluster's."""
        found = []
        for name in (f"remora-{self._cluster}-nodes", f"remora-{self._cluster}"):
            group = self._manager.get(f"{self._manager.root}/resourcegroups/{name}", VERSIONS["groups"])
            if group is None:
                continue
            if (group.get("tags") or {}).get("remora:cluster") != self._cluster:
                raise Refused(
                    f"the resource group {name} lacks the tag remora:cluster={self._cluster}, so it was not made by"
                    " deploy/azure/up; nothing is deleted"
                )
            found.append(group)
        return found

    def say_what_goes(self, groups: list[Json]) -> None:
        """One line for each group, and the number of what is in it."""
        for group in groups:
            inside = list(self._manager.all(f"{_path(group)}/resources", VERSIONS["groups"]))
            self._say(f"{group['name']}: {len(inside)} resources, with everything in them")
        if not groups:
            self._say(f"remora-{self._cluster}: there is no resource group of it")

    def run(self, groups: list[Json]) -> int:
        """Delete it all; roles first, so that the service makes no more nodes meanwhile."""
        self._stop_deployment()
        for group in groups:
            inside = self._manager.all(f"{_path(group)}/resources", VERSIONS["groups"])
            remove_templates(self._manager, list(inside), self._poll_s, self._say)
        for one in self._assignments():
            self._delete(one, "roleAssignments")
        for group in groups:
            self._say(f"deleting {group['name']}, which takes minutes")
            self._manager.delete(_path(group), VERSIONS["groups"])
        self._wait_for(groups)
        if self._manager.get(self._budget, VERSIONS["budgets"]) is not None:
            self._manager.delete(self._budget, VERSIONS["budgets"])
            self._say(f"deleted the budget remora-{self._cluster}")
        for one in self._definitions():
            self._delete(one, "roleDefinitions")
        for one in self._deployments():
            self._manager.delete(one["id"], VERSIONS["deployments"])
        return self._say_what_is_left()

    def _delete(self, one: Json, kind: str) -> None:
        self._manager.delete(one["id"], VERSIONS[kind])
        self._say(f"deleted {one['properties'].get('roleName') or one['id']}")

    def _wait_for(self, groups: list[Json]) -> None:
        given_up_at = time.monotonic() + _PATIENCE_S
        for group in groups:
            while self._manager.get(_path(group), VERSIONS["groups"]) is not None:
                if time.monotonic() > given_up_at:
                    raise Refused(f"{group['name']} is still there after an hour")
                time.sleep(self._poll_s)
            self._say(f"deleted {group['name']}")

    def _stop_deployment(self) -> None:
        path = f"{self._manager.root}/providers/Microsoft.Resources/deployments/remora-{self._cluster}"
        given_up_at = time.monotonic() + _PATIENCE_S
        asked = False
        while (document := self._manager.get(path, VERSIONS["deployments"])) is not None:
            if document["properties"]["provisioningState"] not in ("Running", "Accepted"):
                return
            if not asked:
                self._say("a deployment still runs and is stopped")
                self._manager.post(f"{path}/cancel", VERSIONS["deployments"])
                asked = True
            if time.monotonic() > given_up_at:
                raise Refused("the deployment still runs after an hour")
            time.sleep(self._poll_s)

    # --- what is of the cluster outside of its groups

    def _assignments(self) -> list[Json]:
        path = f"{self._manager.root}/providers/Microsoft.Authorization/roleAssignments"
        listed = self._manager.all(path, VERSIONS["roleAssignments"])
        return [one for one in listed if one["properties"].get("description") == self._mark]

    def _definitions(self) -> list[Json]:
        path = f"{self._manager.root}/providers/Microsoft.Authorization/roleDefinitions"
        names = {f"{self._mark} {part}" for part in ("nodes", "parts", "region", "builder")}
        listed = self._manager.all(path, VERSIONS["roleDefinitions"])
        return [one for one in listed if one["properties"].get("roleName") in names]

    def _deployments(self) -> list[Json]:
        path = f"{self._manager.root}/providers/Microsoft.Resources/deployments"
        names = {f"remora-{self._cluster}{part}" for part in ("", "-roles", "-image-role", "-region-access")}
        return [one for one in self._manager.all(path, VERSIONS["deployments"]) if one["name"] in names]

    def _say_what_is_left(self) -> int:
        left: list[Any] = [*self.groups(), *self._assignments(), *self._definitions(), *self._deployments()]
        if self._manager.get(self._budget, VERSIONS["budgets"]) is not None:
            left.append({"id": self._budget})
        for one in left:
            self._say(f"left: {one['id']}")
        path = f"{self._manager.root}/providers/Microsoft.KeyVault/deletedVaults"
        for vault in self._manager.all(path, VERSIONS["vaults"]):
            properties = vault["properties"]
            if (properties.get("tags") or {}).get("remora:cluster") == self._cluster:
                until = properties["scheduledPurgeDate"][:10]
                self._say(
                    f"the deleted vault {vault['name']} is kept by Azure until {until} and cannot be purged before; it"
                    " costs nothing, and the next deploy/azure/up takes it back"
                )
        self._say("something is left; call it again" if left else "nothing is left")
        return 1 if left else 0


def _path(group: Json) -> str:
    root, _, name = str(group["id"]).rpartition("/")
    # The two services that serve groups write this word differently.
    return f"{root.rpartition('/')[0]}/resourcegroups/{name}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
