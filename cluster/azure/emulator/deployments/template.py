"""What a template asks for: its resources in the order of their dependencies, evaluated one at a time (pure).

A resource is evaluated when those that it needs exist, because it may read them by `reference`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from cluster.azure.emulator.deployments.expressions import InLoop, InvalidTemplate, Names, copied, evaluate

DEPLOYMENTS = "Microsoft.Resources/deployments"
#: The whole document of a resource by its id, None when there is none.
Find = Callable[[str], dict[str, Any] | None]

_VALUE_TYPES: Mapping[str, type | tuple[type, ...]] = {
    "string": str,
    "securestring": str,
    "int": int,
    "bool": bool,
    "array": list,
    "object": dict,
    "secureobject": dict,
}


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a deployment is: a subscription, or one of its resource groups."""

    subscription: str
    tenant: str
    group: str = ""
    region: str = ""

    @property
    def id(self) -> str:
        """The scope's id."""
        root = f"/subscriptions/{self.subscription}"
        return f"{root}/resourceGroups/{self.group}" if self.group else root


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """One resource as a template wants it."""

    id: str
    type: str
    body: dict[str, Any] = field(default_factory=dict)


class Template:
    """One template with its parameters in one place.  Raises InvalidTemplate for what Azure would not accept."""

    def __init__(
        self, document: Mapping[str, Any], given: Mapping[str, Any], place: Place, find: Find
    ) -> None:
        """`given` are the values of parameters by their names."""
        self._document = document
        self._place = place
        self._find = find
        self._ids: dict[str, str] = {}
        self._outputs_of: dict[str, dict[str, Any]] = {}
        #: Values of variables, which depend on parameters alone.
        self._variables: dict[str, Any] = {}
        self._resources: Mapping[str, dict[str, Any]] = document["resources"]
        if document.get("languageVersion") != "2.0" or not isinstance(self._resources, dict):
            raise InvalidTemplate("The emulator evaluates templates of language version 2.0.")
        self._parameters = self._checked(given)

    def _checked(self, given: Mapping[str, Any]) -> dict[str, Any]:
        known: Mapping[str, Any] = self._document.get("parameters", {})
        odd = given.keys() - known.keys()
        if odd:
            raise InvalidTemplate(
                f"The template parameters '{', '.join(sorted(odd))}' in the parameters file are not valid; they are"
                " not present in the original template."
            )
        self._parameters = {}
        for name, rules in known.items():
            if name not in given and "defaultValue" not in rules:
                raise InvalidTemplate(f"The value for the template parameter '{name}' is not provided.")
            value = given[name] if name in given else evaluate(rules["defaultValue"], self)
            _check_value(name, value, rules)
            self._parameters[name] = value
        return self._parameters

    def resources(self) -> Iterator[Wanted | tuple[Wanted, Template]]:
        """What is to be made, each after what it depends on; a nested deployment comes with its template.

        The caller makes each resource before the next one is asked for.
        """
        for name in self._ordered():
            one = self._resources[name]
            for scope in self._iterations(one):
                wanted = self._wanted(name, one, scope)
                if one.get("existing") or not evaluate(one.get("condition", True), scope):
                    continue
                if one["type"] != DEPLOYMENTS:
                    yield wanted
                    continue
                inner = self._nested(one, scope)
                yield wanted, inner
                self._outputs_of[name] = inner.outputs()

    def _iterations(self, one: Mapping[str, Any]) -> Iterator[Names]:
        """The names of each iteration of a resource's loop; of one without a loop, those of the template alone."""
        if "copy" not in one:
            yield self
            return
        for number in range(evaluate(one["copy"]["count"], self)):
            yield InLoop(self, [], number)

    def outputs(self) -> dict[str, Any]:
        """Outputs by name, as the document of a deployment has them."""
        return {
            name: {"type": one["type"], "value": evaluate(one["value"], self)}
            for name, one in self._document.get("outputs", {}).items()
        }

    def _ordered(self) -> list[str]:
        found: list[str] = []
        waiting = list(self._resources)
        while waiting:
            ready = [one for one in waiting if not set(self._needs(one)) - set(found)]
            if not ready:
                raise InvalidTemplate(f"Circular dependency detected on resource: '{waiting[0]}'.")
            found += ready
            waiting = [one for one in waiting if one not in ready]
        return found

    def _needs(self, name: str) -> list[str]:
        needs: list[str] = self._resources[name].get("dependsOn", [])
        missing = [one for one in needs if one not in self._resources]
        if missing:
            raise InvalidTemplate(f"The resource '{missing[0]}' is not defined in the template.")
        return needs

    def _wanted(self, name: str, one: Mapping[str, Any], scope: Names) -> Wanted:
        own = evaluate(one["name"], scope)
        self._ids[name] = self._id_of(one, own, scope)
        if one.get("existing") or one["type"] == DEPLOYMENTS:
            return Wanted(id=self._ids[name], type=one["type"])
        if not evaluate(one.get("condition", True), scope):
            return Wanted(id=self._ids[name], type=one["type"])
        body = {
            key: evaluate(value, scope)
            for key, value in one.items()
            if key not in ("copy", "dependsOn", "condition", "scope", "type", "name")
        }
        return Wanted(id=self._ids[name], type=one["type"], body={**body, "name": own.rpartition("/")[2]})

    def _id_of(self, one: Mapping[str, Any], name: str, iteration: Names) -> str:
        kind = one["type"]
        if kind == "Microsoft.Resources/resourceGroups":
            return f"{self._place.id}/resourceGroups/{name}"
        scope = evaluate(one["scope"], iteration) if "scope" in one else self._place_of(one, iteration).id
        if scope.startswith("/"):
            return f"{scope}/providers/{_path(kind, name.split('/'))}"
        raise InvalidTemplate(f"The scope '{scope}' of the resource '{name}' is not valid.")

    def _place_of(self, one: Mapping[str, Any], scope: Names) -> Place:
        """Where a resource is: in the deployment's own place, unless it is a deployment that names another one."""
        group = evaluate(one.get("resourceGroup", ""), scope)
        subscription = evaluate(one.get("subscriptionId", ""), scope)
        if subscription:
            return replace(self._place, subscription=subscription, group=group)
        return replace(self._place, group=group or self._place.group)

    def _nested(self, one: Mapping[str, Any], scope: Names) -> Template:
        properties = one["properties"]
        given = {name: evaluate(value, scope)["value"] for name, value in properties["parameters"].items()}
        return Template(properties["template"], given, self._place_of(one, scope), self._find)

    # --- functions that depend on the deployment

    def call(self, function: str, arguments: list[Any]) -> Any:
        """The value of a function of a template.  Raises KeyError when there is none of this name."""
        match function, arguments:
            case "parameters", [name]:
                return self._parameters[name]
            case "variables", [name]:
                return self._variable(name)
            case "subscription", []:
                place = self._place
                return {
                    "id": f"/subscriptions/{place.subscription}",
                    "subscriptionId": place.subscription,
                    "tenantId": place.tenant,
                }
            case "resourceGroup", [] if self._place.group:
                return {"id": self._place.id, "name": self._place.group, "location": self._place.region}
            case "deployment", []:
                return {"location": self._place.region}
            case "resourceId", [kind, *names] if self._place.group:
                return f"{self._place.id}/providers/{_path(kind, names)}"
            case "subscriptionResourceId", [kind, *names]:
                return f"/subscriptions/{self._place.subscription}/providers/{_path(kind, names)}"
            case "reference", [name]:
                return self._referenced(name)
        raise KeyError(function)

    def _variable(self, name: str) -> Any:
        if name not in self._variables:
            found = self._document.get("variables", {})
            loops = {copy["name"]: copy for copy in found.get("copy", [])}
            value = copied(loops[name], self) if name in loops else evaluate(found[name], self)
            self._variables[name] = value
        return self._variables[name]

    def _referenced(self, name: str) -> Any:
        if name in self._outputs_of:
            return {"outputs": self._outputs_of[name]}
        found = self._find(self._ids[name])
        if found is None:
            raise InvalidTemplate(f"The resource '{self._ids[name]}' that is referenced was not found.")
        return found["properties"]


def _path(kind: str, names: list[str]) -> str:
    """`Microsoft.X/a/b` and two names as `Microsoft.X/a/NAME/b/NAME`."""
    provider, *kinds = kind.split("/")
    if len(kinds) != len(names):
        raise InvalidTemplate(f"The type '{kind}' and the name '{'/'.join(names)}' differ in their length.")
    return "/".join([provider, *(part for pair in zip(kinds, names, strict=True) for part in pair)])


def _check_value(name: str, value: Any, rules: Mapping[str, Any]) -> None:
    wanted = _VALUE_TYPES[rules["type"]]
    # Of numbers the value counts, and of what else has one, the length.
    size = value if isinstance(value, int) else len(value)
    low = rules.get("minValue", rules.get("minLength", size))
    high = rules.get("maxValue", rules.get("maxLength", size))
    problem = ""
    if not isinstance(value, wanted) or (wanted is int and isinstance(value, bool)):
        problem = f"Expected a value of type '{rules['type']}'"
    elif "allowedValues" in rules and value not in rules["allowedValues"]:
        problem = f"The value is not part of the allowed value(s): '{','.join(rules['allowedValues'])}'"
    elif not low <= size <= high:
        problem = f"The value, or its length, should be from '{low}' to '{high}'"
    if problem:
        raise InvalidTemplate(
            f"The provided value for the template parameter '{name}' is not valid. {problem}."
        )
