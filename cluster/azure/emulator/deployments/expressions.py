"""The language of expressions in templates of Azure Resource Manager, as far as ours use it (pure).

https://learn.microsoft.com/azure/azure-resource-manager/templates/template-expressions
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import uuid
from collections.abc import Callable, Mapping
from typing import Any, Protocol


class InvalidTemplate(Exception):
    """A template cannot be evaluated; the message is Resource Manager's kind of sentence."""


class Names(Protocol):
    """What the expressions of one deployment can name."""

    def call(self, function: str, arguments: list[Any]) -> Any:
        """The value of a function that depends on the deployment.  Raises KeyError when there is none of the name."""


_TOKEN = re.compile(
    r"\s*(?:(?P<text>'(?:[^']|'')*')|(?P<number>-?\d+)|(?P<name>[A-Za-z_]\w*)|(?P<sign>[()\[\],.]))",
    re.DOTALL,
)
_DEEPEST = 60


def evaluate(value: Any, scope: Names) -> Any:
    """A value of a template with all expressions in it evaluated; keys of objects too.  Raises InvalidTemplate."""
    if isinstance(value, str):
        if value.startswith("[["):
            return value[1:]
        if value.startswith("[") and value.endswith("]"):
            return _Reader(value[1:-1], scope).all()
        return value
    if isinstance(value, list):
        return [evaluate(one, scope) for one in value]
    if isinstance(value, dict):
        return _object(value, scope)
    return value


def _object(value: Mapping[str, Any], scope: Names) -> dict[str, Any]:
    found = {str(evaluate(key, scope)): evaluate(one, scope) for key, one in value.items() if key != "copy"}
    copies = value.get("copy", [])
    return found | {copy["name"]: copied(copy, scope) for copy in copies if isinstance(copies, list)}


def copied(copy: Mapping[str, Any], scope: Names) -> list[Any]:
    """The list that a loop over properties, or of variables, makes."""
    count = evaluate(copy["count"], scope)
    return [evaluate(copy["input"], InLoop(scope, [copy["name"]], number)) for number in range(count)]


class InLoop:
    """The names of one iteration of a loop: `call("copyIndex", ...)` with its arguments is its number, from 0."""

    def __init__(self, outside: Names, arguments: list[str], number: int) -> None:
        """`arguments` are those of `copyIndex` in a loop over properties, and none in one of resources."""
        self._outside = outside
        self._arguments = arguments
        self._number = number

    def call(self, function: str, arguments: list[Any]) -> Any:
        """The value of a function that depends on the deployment, or on this iteration."""
        if function == "copyIndex" and arguments == self._arguments:
            return self._number
        return self._outside.call(function, arguments)


class _Reader:
    """Reads one expression and evaluates it at once; `if` alone leaves out what it does not choose."""

    def __init__(self, text: str, scope: Names) -> None:
        self._tokens: list[tuple[str, str]] = []
        self._scope = scope
        self._at = 0
        place = 0
        text = text.rstrip()
        while place < len(text):
            match = _TOKEN.match(text, place)
            if match is None:
                raise InvalidTemplate(f"Unable to parse language expression '{text[:100]}' at {place}.")
            self._tokens.append((match.lastgroup or "", match[match.lastgroup or ""]))
            place = match.end()
        self._tokens.append(("end", ""))

    def all(self) -> Any:
        """The value of the whole expression."""
        value = self._value(0, False)
        if self._tokens[self._at][0] != "end":
            raise InvalidTemplate(f"The expression goes on after its end, at {self._tokens[self._at][1]!r}.")
        return value

    def _take(self, sign: str) -> bool:
        found = self._tokens[self._at] == ("sign", sign)
        self._at += found
        return found

    def _next(self) -> tuple[str, str]:
        token = self._tokens[self._at]
        self._at += 1
        if token[0] == "end":
            raise InvalidTemplate("The expression ends too early.")
        return token

    def _value(self, depth: int, skip: bool) -> Any:
        """One value; with `skip` it is read and not evaluated."""
        if depth > _DEEPEST:
            raise InvalidTemplate("The expression is too deep.")
        kind, text = self._next()
        value: Any
        if kind == "text":
            value = text[1:-1].replace("''", "'")
        elif kind == "number":
            value = int(text)
        elif kind == "name":
            value = self._call(text, depth, skip)
        else:
            raise InvalidTemplate(f"The expression has {text!r} where a value should be.")
        return self._followed(value, depth, skip)

    def _followed(self, value: Any, depth: int, skip: bool) -> Any:
        while True:
            if self._take("."):
                name = self._next()[1]
                value = None if skip else _property(value, name)
            elif self._take("["):
                index = self._value(depth + 1, skip)
                if not self._take("]"):
                    raise InvalidTemplate("The expression lacks a ']'.")
                value = None if skip else _property(value, index)
            else:
                return value

    def _call(self, name: str, depth: int, skip: bool) -> Any:
        if not self._take("("):
            raise InvalidTemplate(f"The expression has {name!r} where a function should be.")
        arguments: list[Any] = []
        while not self._take(")"):
            # Of `if` only what its condition chooses is evaluated: the other may name what does not exist.
            left_out = name == "if" and len(arguments) > 0 and bool(arguments[0]) != (len(arguments) == 1)
            arguments.append(self._value(depth + 1, skip or left_out))
            self._take(",")
        if skip:
            return None
        if name == "if":
            return arguments[1] if arguments[0] else arguments[2]
        return self._called(name, arguments)

    def _called(self, name: str, arguments: list[Any]) -> Any:
        try:
            if name in _FUNCTIONS:
                return _FUNCTIONS[name](*arguments)
            return self._scope.call(name, arguments)
        except KeyError as error:
            raise InvalidTemplate(f"The template function '{name}' is not valid: {error}.") from error
        except (TypeError, ValueError, IndexError) as error:
            raise InvalidTemplate(f"The template function '{name}' failed: {error}.") from error


def _property(value: Any, name: Any) -> Any:
    try:
        return value[name]
    except (KeyError, TypeError, IndexError) as error:
        known = ", ".join(value) if isinstance(value, dict) else type(value).__name__
        raise InvalidTemplate(
            f"The language expression property '{name}' doesn't exist, available properties are '{known}'."
        ) from error


def _format(text: str, *holes: Any) -> str:
    return re.sub(
        r"\{\{|\}\}|\{(\d+)\}",
        lambda found: found[0][0] if found[1] is None else _as_text(holes[int(found[1])]),
        text,
    )


def _as_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _guid(*parts: str) -> str:
    # Another number than Azure's for the same words; as there, the same for the same words.
    return str(uuid.uuid5(uuid.NAMESPACE_URL, "-".join(parts)))


def _unique(*parts: str) -> str:
    digest = hashlib.sha256("-".join(parts).encode()).digest()
    return base64.b32encode(digest)[:13].decode().lower()


def _joined(*lists: Any) -> Any:
    if all(isinstance(one, list) for one in lists):
        return [item for one in lists for item in one]
    return "".join(map(_as_text, lists))


def _union(*parts: Any) -> Any:
    if all(isinstance(one, list) for one in parts):
        items = [item for one in parts for item in one]
        return [item for number, item in enumerate(items) if item not in items[:number]]
    found: dict[str, Any] = {}
    for one in parts:
        found |= one
    return found


def _created(*words: Any) -> dict[str, Any]:
    return dict(zip(words[::2], words[1::2], strict=True))


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "add": lambda one, other: one + other,
    "and": lambda *all_of: all(all_of),
    "base64": lambda text: base64.b64encode(text.encode()).decode(),
    "concat": _joined,
    "contains": lambda container, item: item in container,
    "createArray": lambda *items: list(items),
    "createObject": _created,
    "empty": lambda value: value is None or len(value) == 0,
    "equals": lambda one, other: one == other,
    "false": lambda: False,
    "format": _format,
    "guid": _guid,
    "indexOf": lambda items, item: items.index(item) if item in items else -1,
    "join": lambda items, between: between.join(map(_as_text, items)),
    "json": json.loads,
    "length": len,
    "not": lambda value: not value,
    "null": lambda: None,
    "or": lambda *any_of: any(any_of),
    "replace": lambda text, old, new: text.replace(old, new),
    "string": _as_text,
    "sub": lambda one, other: one - other,
    "take": lambda value, number: value[: max(0, number)],
    "true": lambda: True,
    "union": _union,
    "uniqueString": _unique,
}
