"""All resources of the emulated subscription that templates make, with the rules by which they are made and deleted."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from typing import Any

from cluster.azure.emulator.deployments.kinds import (
    ASSIGNMENTS,
    BUILT_IN_ROLES,
    DEFINITIONS,
    GROUPS,
    HIDDEN,
    IDENTITIES,
    SECRETS,
    SERVERS,
    VAULTS,
    Json,
    added,
    check_change,
    check_new,
)
from cluster.azure.emulator.deployments.networks import check_networks
from cluster.azure.emulator.deployments.template import DEPLOYMENTS, Wanted
from cluster.azure.emulator.emulated_cloud import Refused

_DAY_S = 86_400.0
#: Ids of the parts of a resource that are no resources of their own here.
_PART = re.compile(r"(/virtualNetworks/[^/]+)/subnets/[^/]+$|(/images/[^/]+)/versions/[^/]+$", re.IGNORECASE)


class Resources:
    """Resources by their ids, which Azure compares without regard to case."""

    def __init__(self, operators: frozenset[str]) -> None:
        """`operators` are the ids of people who may get roles."""
        #: Where vaults and storages answer.
        self.url = ""
        self._operators = operators
        self._all: dict[str, Json] = {}
        #: Values of secrets, and passwords of databases, by the ids of what has them.
        self.hidden: dict[str, dict[str, str]] = {}
        #: Deleted vaults by name: their document, and when they are purged, seconds since 1970.
        self.deleted_vaults: dict[str, tuple[Json, float]] = {}
        #: Subscriptions, and namespaces of resources that each may have; a template registers those of its resources.
        self.registered: set[tuple[str, str]] = set()

    def dry(self) -> Resources:
        """A copy, on which a deployment can be tried."""
        found = Resources(self._operators)
        found.url = self.url
        found._all = copy.deepcopy(self._all)
        found.hidden = copy.deepcopy(self.hidden)
        found.deleted_vaults = dict(self.deleted_vaults)
        found.registered = set(self.registered)
        return found

    def __iter__(self) -> Iterator[Json]:
        return iter(self._all.values())

    def find(self, id: str) -> Json | None:
        """A resource's document, None when there is none."""
        return self._all.get(id.lower())

    def of_type(self, kind: str, below: str = "") -> list[Json]:
        """The resources of one type, also below one scope."""
        return [one for one in self if one["type"] == kind and one["id"].lower().startswith(below.lower())]

    def put(self, wanted: Wanted) -> str:
        """Make or change a resource; returns `Create`, `Modify` or `NoChange`.  Raises Refused, with nothing done."""
        old = self.find(wanted.id)
        document: Json = {**copy.deepcopy(wanted.body), "id": wanted.id, "type": wanted.type}
        document.pop("apiVersion", None)
        self._check_place(wanted)
        self._check_links(document)
        check_networks(document, self.find)
        if old is None:
            check_new(wanted.type, document)
            self._check_vault(document)
        else:
            check_change(wanted.type, old, document)
        self._check_roles(document)
        self._hide(document)
        addition = added(self.url).get(wanted.type)
        if addition is not None:
            document["properties"] = {
                **document.get("properties", {}),
                **addition({"properties": {}, **document}),
            }
        self._all[wanted.id.lower()] = document
        self.registered.add((subscription_of(wanted.id), wanted.type.partition("/")[0]))
        return "Create" if old is None else "NoChange" if document == old else "Modify"

    # --- what is checked

    def _check_place(self, wanted: Wanted) -> None:
        group = re.match(r"(/subscriptions/[^/]+/resourceGroups/([^/]+))/", wanted.id)
        if group is not None and self.find(group[1]) is None:
            raise Refused(404, "ResourceGroupNotFound", f"Resource group '{group[2]}' could not be found.")
        scope, of_a_provider, rest = wanted.id.rpartition("/providers/")
        if not of_a_provider:
            return
        if "/providers/" in scope and not self._is_there(scope):
            raise Refused(404, "ResourceNotFound", f"The Resource '{scope}' was not found.")
        parent = "/".join(rest.split("/")[:-2])
        if len(rest.split("/")) > 3 and not self._is_there(f"{scope}/providers/{parent}"):
            raise Refused(404, "ParentResourceNotFound", f"The parent of '{rest}' could not be found.")

    def _is_there(self, id: str) -> bool:
        part = _PART.search(id)
        if part is not None:
            whole = id[: part.end(1) if part[1] else part.end(2)]
            found = self.find(whole)
            if found is None or part[2]:
                return found is not None
            name = id.rpartition("/")[2]
            return any(one["name"] == name for one in found["properties"]["subnets"])
        return self.find(id) is not None

    def _check_links(self, document: Json) -> None:
        for link in _links(document.get("properties", {})):
            is_role = f"/providers/{DEFINITIONS}/" in link
            if link.count("/") > 2 and not is_role and not self._is_there(link):
                raise Refused(400, "InvalidResourceReference", f"The resource '{link}' was not found.")

    def _check_vault(self, document: Json) -> None:
        if document["type"] != VAULTS:
            return
        wants_back = document["properties"].get("createMode") == "recover"
        is_kept = document["name"] in self.deleted_vaults
        if is_kept and not wants_back:
            said = f"A vault with the same name '{document['name']}' already exists in deleted state."
            raise Refused(409, "ConflictError", said)
        if wants_back and not is_kept:
            raise Refused(404, "DeletedVaultNotFound", f"There is no deleted vault '{document['name']}'.")
        if wants_back:
            del self.deleted_vaults[document["name"]]

    def _check_roles(self, document: Json) -> None:
        properties = document.get("properties", {})
        if document["type"] == ASSIGNMENTS:
            principals = {one["properties"]["principalId"] for one in self.of_type(IDENTITIES)}
            if properties["principalId"] not in principals | self._operators:
                said = f"Principal {properties['principalId']} does not exist in the directory."
                raise Refused(400, "PrincipalNotFound", said)
            role = properties["roleDefinitionId"]
            if role.rpartition("/")[2] not in BUILT_IN_ROLES and self.role(role, document["id"]) is None:
                raise Refused(
                    404, "RoleDefinitionDoesNotExist", f"The role definition {role} does not exist."
                )
        if document["type"] == DEFINITIONS:
            same = [one for one in self.of_type(DEFINITIONS) if one["id"] != document["id"]]
            if properties["roleName"].lower() in {one["properties"]["roleName"].lower() for one in same}:
                said = (
                    "A custom role with the same name already exists in this directory. Use a different name"
                )
                raise Refused(409, "RoleDefinitionWithSameNameExists", said)

    def role(self, id: str, scope: str) -> Json | None:
        """The role of the tenant that may be assigned at a scope; its id may name any subscription.

        None when there is none, or when it is not for the subscription of the scope.
        """
        root = f"/subscriptions/{subscription_of(scope)}"
        for one in self.of_type(DEFINITIONS):
            if one["name"] == id.rpartition("/")[2] and root in one["properties"]["assignableScopes"]:
                return one
        return None

    def _hide(self, document: Json) -> None:
        for name in HIDDEN.get(document["type"], ()):
            value = document["properties"].pop(name, None)
            if value is not None:
                self.hidden.setdefault(document["id"].lower(), {})[name] = value

    # --- what goes

    def delete(self, id: str) -> bool:
        """Delete what is neither a group nor in one; True when it was there.  Raises Refused."""
        found = self.find(id)
        if found is not None and found["type"] == DEFINITIONS:
            users = [
                one
                for one in self.of_type(ASSIGNMENTS)
                if one["properties"]["roleDefinitionId"].rpartition("/")[2] == found["name"]
            ]
            if users:
                said = "There are existing role assignments referencing role."
                raise Refused(400, "RoleDefinitionHasAssignments", said)
        return self._all.pop(id.lower(), None) is not None

    def delete_group(self, id: str, now: float) -> None:
        """Delete a group with everything in it; its vaults are kept for their days, as Azure does."""
        for one in list(self):
            if (one["id"].lower() + "/").startswith(id.lower() + "/"):
                if one["type"] == VAULTS:
                    days = one["properties"]["softDeleteRetentionInDays"]
                    self.deleted_vaults[one["name"]] = (one, now + _DAY_S * days)
                del self._all[one["id"].lower()]
                self.hidden.pop(one["id"].lower(), None)

    def secret(self, name: str) -> str | None:
        """The value of a secret of any vault, None when there is none."""
        for one in self.of_type(SECRETS):
            if one["name"] == name:
                return self.hidden[one["id"].lower()]["value"]
        return None

    def password(self, server: str) -> str | None:
        """The password that a database server was given last; for tests."""
        for one in self.of_type(SERVERS):
            if one["name"] == server:
                return self.hidden[one["id"].lower()].get("administratorLoginPassword")
        return None

    def patch(self, id: str, properties: Json) -> Json | None:
        """Replace some properties of a resource; its document, None when there is none."""
        found = self.find(id)
        if found is not None:
            found["properties"] |= copy.deepcopy(properties)
        return found

    def groups(self) -> list[Json]:
        """All resource groups."""
        return self.of_type(GROUPS)

    def shown(self) -> list[Json]:
        """What a list of resources shows: all but groups and deployments."""
        return [one for one in self if one["type"] not in (GROUPS, DEPLOYMENTS)]


def subscription_of(id: str) -> str:
    """The subscription that an id begins with."""
    return id.split("/")[2]


def _links(value: Any) -> Iterator[str]:
    """The ids of resources that stand anywhere in a document."""
    if isinstance(value, str) and value.startswith("/subscriptions/"):
        yield value
    elif isinstance(value, dict):
        for key, one in value.items():
            yield from _links(key)
            yield from _links(one)
    elif isinstance(value, list):
        for one in value:
            yield from _links(one)
