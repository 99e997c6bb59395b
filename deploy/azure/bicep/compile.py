"""Writes deploy/azure/main.json, the template that Azure is sent, out of main.bicep and its modules.

    python -m deploy.azure.bicep.compile [--check]

Bicep's own compiler is not to be had from a package index.  This one knows the part of the language that our files use,
and refuses everything else; docs/decisions/0164 says why, and docs/azure-first-run.md compares it with `bicep build`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from deploy.azure.bicep.parse import NotUnderstood, read
from deploy.azure.bicep.tree import (
    Array,
    Call,
    Declared,
    File,
    Index,
    Literal,
    Loop,
    Name,
    Object,
    Operation,
    Property,
    Text,
)

SOURCE = Path(__file__).parents[1] / "main.bicep"
COMPILED = SOURCE.with_name("main.json")

_SCHEMAS = {
    "subscription": "https://schema.management.azure.com/schemas/2018-05-01/subscriptionDeploymentTemplate.json#",
    "resourceGroup": "https://schema.management.azure.com/schemas/2019-04-01/deploymentTemplate.json#",
}
_DEPLOYMENTS = "Microsoft.Resources/deployments"
_DEPLOYMENTS_VERSION = "2022-09-01"
_OPERATORS = {
    "==": "equals",
    "&&": "and",
    "||": "or",
    "+": "add",
    "-": "sub",
    "<": "less",
    ">": "greater",
    "<=": "lessOrEquals",
    ">=": "greaterOrEquals",
    "?": "if",
    "!": "not",
}
#: Of decorators, their names in a template.
_RULES = ("minLength", "maxLength", "minValue", "maxValue")


def compiled(path: Path) -> dict[str, Any]:
    """The template of a file.  Raises NotUnderstood."""
    return _Template(path, read(path.read_text())).document()


class _Template:
    """One file on its way to a template, with symbolic names of resources (language version 2.0)."""

    def __init__(self, path: Path, file: File) -> None:
        self._path = path
        self._file = file
        #: Items and indexes of the loops around, each with its value.
        self._items: dict[str, str] = {}

    def document(self) -> dict[str, Any]:
        """All of it."""
        file = self._file
        found: dict[str, Any] = {
            "$schema": _SCHEMAS[file.scope],
            "languageVersion": "2.0",
            "contentVersion": "1.0.0.0",
        }
        if file.parameters:
            found["parameters"] = {name: self._parameter(name) for name in file.parameters}
        if file.variables:
            found["variables"] = self._variables()
        found["resources"] = {name: self._declared(one) for name, one in file.declared.items()}
        if file.outputs:
            found["outputs"] = {
                name: {"type": kind, "value": self._value(value)}
                for name, (kind, value) in file.outputs.items()
            }
        return found

    def _parameter(self, name: str) -> dict[str, Any]:
        one = self._file.parameters[name]
        kind = f"secure{one.kind}" if "secure" in one.rules else one.kind
        found: dict[str, Any] = {"type": kind}
        if one.default is not None:
            found["defaultValue"] = self._value(one.default)
        if "allowed" in one.rules:
            found["allowedValues"] = self._value(one.rules["allowed"])
        found |= {rule: self._value(one.rules[rule]) for rule in _RULES if rule in one.rules}
        if "description" in one.rules:
            found["metadata"] = {"description": self._value(one.rules["description"])}
        return found

    def _variables(self) -> dict[str, Any]:
        for name, value in self._file.variables.items():
            if self._needed(value):
                raise NotUnderstood(
                    f"{self._path.name}: the variable {name} needs a resource, which comes later"
                )
        return self._object(Object(tuple((Text((name,)), one) for name, one in self._file.variables.items())))

    # --- resources and modules

    def _declared(self, one: Declared) -> dict[str, Any]:
        if one.loop is None:
            return self._made(one)
        copy: dict[str, Any] = {"name": one.name, "count": f"[length({self._text(one.loop.list)})]"}
        if one.batch:
            copy |= {"mode": "serial", "batchSize": one.batch}
        with self._in_loop(one.loop, "copyIndex()"):
            return {"copy": copy} | self._made(one)

    @contextlib.contextmanager
    def _in_loop(self, loop: Loop, index: str) -> Iterator[None]:
        """The names of a loop have values, which depend on this expression of its index."""
        outside = self._items
        self._items = outside | {loop.item: f"{self._text(loop.list)}[{index}]"}
        if loop.index:
            self._items[loop.index] = index
        try:
            yield
        finally:
            self._items = outside

    def _made(self, one: Declared) -> dict[str, Any]:
        found: dict[str, Any] = {"existing": True} if one.is_existing else {}
        if one.condition is not None:
            found["condition"] = self._value(one.condition)
        if one.is_module:
            return found | self._module(one) | self._dependencies(one)
        kind, _, version = one.what.partition("@")
        found |= {"type": kind, "apiVersion": version}
        scope = one.body.get("scope")
        if scope is not None:
            found["scope"] = f"[{self._id(scope)}]"
        found["name"] = self._closed(self._names(one))
        for key, value in one.body.pairs:
            if key.parts[0] not in ("parent", "scope", "name", "dependsOn"):
                found[str(key.parts[0])] = self._value(value)
        return found if one.is_existing else found | self._dependencies(one)

    def _module(self, one: Declared) -> dict[str, Any]:
        path = (self._path.parent / one.what).resolve()
        inner = compiled(path)
        found: dict[str, Any] = {
            "type": _DEPLOYMENTS,
            "apiVersion": _DEPLOYMENTS_VERSION,
            "name": self._value(one.body.get("name")),
        }
        found |= self._place(one.body.get("scope"))
        given = one.body.get("params") or Object(())
        names = {str(key.parts[0]) for key, _ in given.pairs}
        known = inner.get("parameters", {})
        needed = {name for name, rules in known.items() if "defaultValue" not in rules}
        if needed - names or names - known.keys():
            odd = ", ".join(sorted((needed - names) | (names - known.keys())))
            raise NotUnderstood(f"{self._path.name}: the module {one.name} and {one.what} differ in {odd}")
        found["properties"] = {
            "expressionEvaluationOptions": {"scope": "inner"},
            "mode": "Incremental",
            "parameters": {
                str(key.parts[0]): self._object(Object(((Text(("value",)), value),)))
                for key, value in given.pairs
            },
            "template": inner,
        }
        return found

    def _place(self, scope: Any) -> dict[str, Any]:
        """Where a module's deployment is: nothing for the scope of its file where that is a group."""
        match scope:
            case None if self._file.scope != "subscription":
                return {}
            case None:
                return {"location": "[deployment().location]"}
            case Call("subscription", (subscription,)):
                return {
                    "subscriptionId": self._value(subscription),
                    "location": "[deployment().location]",
                }
            case Call("resourceGroup", (subscription, group)):
                return {"subscriptionId": self._value(subscription), "resourceGroup": self._value(group)}
        return {"resourceGroup": self._value(self._symbol(scope).body.get("name"))}

    def _dependencies(self, one: Declared) -> dict[str, Any]:
        needed = self._needed(one.body) | (
            self._needed(one.condition) if one.condition is not None else set()
        )
        if one.loop is not None:
            needed |= self._needed(one.loop.list)
        # An existing one is not waited for; what makes it is named in dependsOn.
        found = sorted(name for name in needed if not self._file.declared[name].is_existing)
        return {"dependsOn": found} if found else {}

    def _needed(self, expression: Any) -> set[str]:
        """Resources and modules that an expression names, also by the parents of existing ones."""
        if isinstance(expression, Name):
            one = self._file.declared.get(expression.name)
            if one is None:
                return set()
            return {expression.name} | (self._needed(one.body) if one.is_existing else set())
        return {name for part in _parts(expression) for name in self._needed(part)}

    def _symbol(self, expression: Any) -> Declared:
        if isinstance(expression, Name) and expression.name in self._file.declared:
            return self._file.declared[expression.name]
        raise NotUnderstood(f"{self._path.name}: {expression!r} is no resource")

    def _names(self, one: Declared) -> list[Any]:
        """The names of a resource's parents and its own."""
        parent = one.body.get("parent")
        return [*(self._names(self._symbol(parent)) if parent is not None else ()), one.body.get("name")]

    def _closed(self, names: list[Any]) -> Any:
        if len(names) == 1:
            return self._value(names[0])
        holes = "/".join(f"{{{number}}}" for number in range(len(names)))
        return f"[format('{holes}', {', '.join(map(self._text, names))})]"

    def _id(self, expression: Any) -> str:
        one = self._symbol(expression)
        names = ", ".join(map(self._text, self._names(one)))
        scope = one.body.get("scope")
        kind = f"'{one.what.partition('@')[0]}'"
        if scope is not None:
            return f"extensionResourceId({self._id(scope)}, {kind}, {names})"
        function = "subscriptionResourceId" if self._file.scope == "subscription" else "resourceId"
        return f"{function}({kind}, {names})"

    # --- expressions

    def _value(self, expression: Any, name: str = "value") -> Any:
        """The JSON of an expression; what is to be computed stands in brackets."""
        match expression:
            case Literal(value):
                return value
            case Text(parts) if all(isinstance(part, str) for part in parts):
                return _plain("".join(parts))
            case Call("loadTextContent", arguments):
                return _plain(self._loaded(arguments))
            case Object():
                return self._object(expression)
            case Array(items):
                return [self._value(item) for item in items]
            case Loop():
                raise NotUnderstood(f"{self._path.name}: a loop stands where none can, at {name}")
        return f"[{self._text(expression)}]"

    def _object(self, one: Object) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in one.pairs:
            name = self._value(key)
            if isinstance(value, Loop):
                found.setdefault("copy", []).append(self._copy(name, value))
            else:
                found[name] = self._value(value, name)
        return found

    def _copy(self, name: str, loop: Loop) -> dict[str, Any]:
        with self._in_loop(loop, f"copyIndex('{name}')"):
            return {
                "name": name,
                "count": f"[length({self._text(loop.list)})]",
                "input": self._value(loop.value),
            }

    def _text(self, expression: Any) -> str:
        """An expression in the language of templates, without brackets."""
        match expression:
            case Literal(value) if value is None or isinstance(value, bool):
                return f"{json.dumps(value)}()"
            case Literal(value):
                return str(value)
            case Text(parts):
                return self._format(parts)
            case Name(name):
                return self._name(name)
            case Call(function, arguments):
                return self._call(function, arguments)
            case Property():
                return self._property(expression)
            case Index(of, at):
                return f"{self._text(of)}[{self._text(at)}]"
            case Object(pairs):
                return f"createObject({', '.join(self._text(one) for pair in pairs for one in pair)})"
            case Array(items):
                return f"createArray({', '.join(map(self._text, items))})"
            case Operation("!=", operands):
                return f"not({self._text(Operation('==', operands))})"
            case Operation(operator, operands):
                return f"{_OPERATORS[operator]}({', '.join(map(self._text, operands))})"
        raise NotUnderstood(f"{self._path.name}: {expression!r} is not understood")

    def _format(self, parts: tuple[Any, ...]) -> str:
        holes = [part for part in parts if not isinstance(part, str)]
        if not holes:
            return _quoted("".join(parts))
        number, text = 0, ""
        for part in parts:
            if isinstance(part, str):
                text += part.replace("{", "{{").replace("}", "}}")
            else:
                text, number = f"{text}{{{number}}}", number + 1
        return f"format({_quoted(text)}, {', '.join(map(self._text, holes))})"

    def _name(self, name: str) -> str:
        if name in self._items:
            return self._items[name]
        if name in self._file.parameters:
            return f"parameters('{name}')"
        if name in self._file.variables:
            return f"variables('{name}')"
        raise NotUnderstood(f"{self._path.name}: {name} is nothing that has a value")

    def _call(self, function: str, arguments: tuple[Any, ...]) -> str:
        if function == "loadTextContent":
            return _quoted(self._loaded(arguments))
        return f"{function}({', '.join(map(self._text, arguments))})"

    def _loaded(self, arguments: tuple[Any, ...]) -> str:
        name: str = arguments[0].parts[0]
        return (self._path.parent / name).read_text()

    def _property(self, one: Property) -> str:
        root, names = _path_of(one)
        declared = self._file.declared.get(root.name) if isinstance(root, Name) else None
        if declared is None:
            return f"{self._text(one.of)}.{one.name}"
        match declared.is_module, names:
            case True, ["outputs", name]:
                return f"reference('{declared.name}').outputs.{name}.value"
            case False, ["id"]:
                return self._id(root)
            case False, ["name"]:
                return self._text(declared.body.get("name"))
            case False, ["properties", *rest]:
                return ".".join([f"reference('{declared.name}')", *rest])
        raise NotUnderstood(f"{self._path.name}: {declared.name}.{'.'.join(names)} is not understood")


def _plain(text: str) -> str:
    """A string that a template does not take for an expression."""
    return f"[{text}" if text.startswith("[") else text


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _path_of(one: Any) -> tuple[Any, list[str]]:
    names: list[str] = []
    while isinstance(one, Property):
        names.insert(0, one.name)
        one = one.of
    return one, names


def _parts(expression: Any) -> list[Any]:
    """The expressions that one is directly made of."""
    match expression:
        case Text(parts):
            return [part for part in parts if not isinstance(part, str)]
        case Call(_, arguments):
            return list(arguments)
        case Property(of, _):
            return [of]
        case Index(of, at):
            return [of, at]
        case Object(pairs):
            return [one for pair in pairs for one in pair]
        case Array(items):
            return list(items)
        case Loop(_, over, value):
            return [over, value]
        case Operation(_, operands):
            return list(operands)
    return []


def written(path: Path = SOURCE) -> str:
    """The text of the template of a file, as it stands in the repository."""
    return json.dumps(compiled(path), indent=2) + "\n"


def main(arguments: list[str]) -> int:
    """Write the template, or compare it."""
    parser = argparse.ArgumentParser(prog="python -m deploy.azure.bicep.compile", description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; 1 when it is out of date")
    chosen = parser.parse_args(arguments)
    try:
        text = written()
    except (NotUnderstood, OSError) as error:
        print(f"compile: {error}", file=sys.stderr)
        return 1
    if chosen.check:
        if COMPILED.exists() and COMPILED.read_text() == text:
            return 0
        print("compile: main.json is not what main.bicep says; write it by: make template", file=sys.stderr)
        return 1
    COMPILED.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
