"""deploy/azure/down: deletes everything that deploy/azure/up and a cluster made, with all nodes and all results.

It can be stopped and called again at any time.  Only groups with the cluster's tag are deleted, and of its
subscriptions only what has the cluster's name or mark.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Callable
from typing import Any, TypeVar

from azure.core.credentials import TokenCredential
from azure.identity import DefaultAzureCredential

from deploy.azure.client.cluster_parts import ClusterParts, root_of
from deploy.azure.client.image import remove_templates
from deploy.azure.client.resource_manager import ENDPOINT, VERSIONS, Json, Refused, ResourceManager

_PATIENCE_S = 3600.0

Say = Callable[[str], None]
Part = TypeVar("Part")


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
        return down.run()
    except Refused as refused:
        print(f"down: {refused}; call it again to go on", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("down: stopped; call it again to go on", file=sys.stderr)
        return 130
    finally:
        manager.close()


class Down:
    """What is of one cluster, in all its subscriptions."""

    def __init__(self, manager: ResourceManager, cluster: str, poll_s: float, say: Say) -> None:
        self._manager = manager
        self._cluster = cluster
        self._poll_s = poll_s
        self._say = say
        self._parts = ClusterParts(manager, cluster)
        self._look()

    def _look(self) -> None:
        """Find out in which subscriptions there is anything of the cluster."""
        others = self._parts.other_subscriptions()
        #: Subscriptions that the login does not see, and the paths of those that it sees, the first one's first.
        self._hidden = [one for one in others if not self._is_seen(one)]
        self._roots = [self._manager.root, *(root_of(one) for one in others if one not in self._hidden)]

    def _is_seen(self, subscription: str) -> bool:
        return self._manager.get(root_of(subscription), VERSIONS["subscriptions"]) is not None

    def groups(self) -> list[Json]:
        """Its resource groups, the nodes' first.  Raises Refused for one of that name which is not the cluster's."""
        places = [group for root in self._roots for group in self._parts.groups_of_places(root)]
        return [*places, *self._parts.groups()]

    def say_what_goes(self, groups: list[Json]) -> None:
        """One line for each group, and the number of what is in it."""
        for group in groups:
            number = len(self._parts.inside(group))
            self._say(f"{self._parts.named(group)}: {number} resources, with everything in them")
        if not groups:
            self._say(f"remora-{self._cluster}: there is no resource group of it")
        self._say_what_is_hidden()

    def _say_what_is_hidden(self) -> None:
        for one in self._hidden:
            said = f"the subscription {one} is not visible to this login"
            self._say(f"{said}: what is there of the cluster stays")

    def run(self) -> int:
        """Delete it all; roles first, so that the service makes no more nodes meanwhile."""
        self._stop_deployments()
        self._look()
        for group in self.groups():
            remove_templates(self._manager, self._parts.inside(group), self._poll_s, self._say)
        for one in self._of_all(self._parts.assignments):
            self._delete(one, "roleAssignments")
        self._parts.delete_groups(self.groups(), self._say, self._poll_s)
        for budget in self._of_all(self._parts.budgets):
            self._manager.delete(budget, VERSIONS["budgets"])
            self._say(f"deleted the budget {budget.rpartition('/')[2]}")
        for one in self._of_all(self._parts.deployments):
            self._manager.delete(one["id"], VERSIONS["deployments"])
        # Last: they say in which subscriptions there is anything.
        for one in self._parts.definitions() if not self._hidden else ():
            self._delete(one, "roleDefinitions")
        return self._say_what_is_left()

    def _of_all(self, parts: Callable[[str], list[Part]]) -> list[Part]:
        return [one for root in self._roots for one in parts(root)]

    def _delete(self, one: Json, kind: str) -> None:
        self._manager.delete(one["id"], VERSIONS[kind])
        self._say(f"deleted {one['properties'].get('roleName') or one['id']}")

    def _stop_deployments(self) -> None:
        """Until none of the cluster's runs: what it has made meanwhile is looked for afterwards."""
        given_up_at = time.monotonic() + _PATIENCE_S
        asked: set[str] = set()
        while running := [one["id"] for one in self._of_all(self._parts.deployments) if _runs(one)]:
            if not asked:
                self._say("a deployment still runs and is stopped")
            for path in running:
                if path not in asked:
                    asked.add(path)
                    self._cancel(path)
            if time.monotonic() > given_up_at:
                raise Refused("the deployment still runs after an hour")
            time.sleep(self._poll_s)
            self._look()

    def _cancel(self, path: str) -> None:
        try:
            self._manager.post(f"{path}/cancel", VERSIONS["deployments"])
        except Refused as refused:
            # It has ended by itself.
            if refused.status != 409:
                raise

    def _say_what_is_left(self) -> int:
        left: list[Any] = [*self.groups(), *self._of_all(self._parts.assignments), *self._parts.definitions()]
        left += [
            *self._of_all(self._parts.deployments),
            *({"id": one} for one in self._of_all(self._parts.budgets)),
        ]
        for one in left:
            self._say(f"left: {one['id']}")
        self._say_what_is_hidden()
        path = f"{self._manager.root}/providers/Microsoft.KeyVault/deletedVaults"
        for vault in self._manager.all(path, VERSIONS["vaults"]):
            properties = vault["properties"]
            if (properties.get("tags") or {}).get("remora:cluster") == self._cluster:
                until = properties["scheduledPurgeDate"][:10]
                self._say(
                    f"the deleted vault {vault['name']} is kept by Azure until {until} and cannot be purged before; it"
                    " costs nothing, and the next deploy/azure/up takes it back"
                )
        is_left = bool(left or self._hidden)
        self._say("something is left; call it again" if is_left else "nothing is left")
        return 1 if is_left else 0


def _runs(deployment: Json) -> bool:
    state = (deployment.get("properties") or {}).get("provisioningState")
    return state in ("Running", "Accepted")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
