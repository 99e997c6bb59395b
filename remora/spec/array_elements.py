"""The jobs of an array: one specification each, with its values in place of `${{array.NAME}}`.  Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from remora.errors import SpecError, SpecProblem
from remora.job_commands import shell_quotes
from remora.job_commands.expressions import EXPRESSION
from remora.job_commands.shell_quotes import Value
from remora.spec.arrays import INDEX, MAX_ARRAY_BYTES, Scalar
from remora.spec.spec import JobSpec


@dataclass(frozen=True)
class Element:
    """One job of an array."""

    index: int
    parameters: dict[str, Scalar]
    spec: JobSpec


def elements_of(spec: JobSpec) -> list[Element]:
    """The jobs of a specification with an array.  Raises SpecError."""
    if spec.array is None:
        raise ValueError("the specification has no array")
    stored = {**spec.to_mapping(), "array": None}
    values = list(spec.array.elements())
    if len(json.dumps(stored)) * len(values) > MAX_ARRAY_BYTES:
        text = f"{len(values)} such jobs have more than {MAX_ARRAY_BYTES // 2**20} MiB; write several arrays"
        raise SpecError([SpecProblem("array", text)])
    found = []
    for index, parameters in enumerate(values):
        try:
            one = JobSpec.from_mapping(_filled(stored, {**parameters, INDEX: index}))
        except SpecError as error:
            problems = (SpecProblem(p.field, f"in element {index}: {p.message}") for p in error.problems)
            raise SpecError(problems) from None
        except ValueError as error:
            raise SpecError([SpecProblem("command", f"in element {index}: {error}")]) from None
        found.append(Element(index, parameters, one))
    return found


def _filled(stored: Mapping[str, Any], values: Mapping[str, Scalar]) -> dict[str, Any]:
    """The specification of one element."""
    spec: dict[str, Any] = {**stored, "name": f"{stored['name'][:58]}-{values[INDEX]}"}
    if spec["entrypoint"] is not None:
        spec.pop("command")
        spec["arguments"] = _in_arguments(spec["arguments"], values)
    elif spec["command"][:2] == ["bash", "-c"]:
        spec["command"] = [
            *("bash", "-c"),
            *(
                shell_quotes.fill(word, EXPRESSION, lambda match: _in_shell(match, values))
                for word in spec["command"][2:]
            ),
        ]
    else:
        spec["command"] = [_in_text(word, values) for word in spec["command"]]
    environment = spec["environment"]
    variables = {name: _in_text(text, values) for name, text in environment["variables"].items()}
    spec["environment"] = {**environment, "variables": variables}
    spec["labels"] = {name: _in_text(text, values) for name, text in spec["labels"].items()}
    return spec


def _parameter(match: re.Match[str], values: Mapping[str, Scalar]) -> Scalar | None:
    kind, _, name = match.group(1).strip().partition(".")
    return values.get(name) if kind == "array" else None


def _written(value: Scalar) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _in_text(text: str, values: Mapping[str, Scalar]) -> str:
    def fill(match: re.Match[str]) -> str:
        value = _parameter(match, values)
        return match.group() if value is None else _written(value)

    return EXPRESSION.sub(fill, text)


def _in_shell(match: re.Match[str], values: Mapping[str, Scalar]) -> Value:
    value = _parameter(match, values)
    return Value(match.group(), is_expression=True) if value is None else Value(_written(value))


def _in_arguments(value: Any, values: Mapping[str, Scalar]) -> Any:
    """A text that is one expression becomes the value itself, a number for example."""
    if isinstance(value, str):
        whole = EXPRESSION.fullmatch(value)
        found = None if whole is None else _parameter(whole, values)
        return _in_text(value, values) if found is None else found
    if isinstance(value, list):
        return [_in_arguments(one, values) for one in value]
    if isinstance(value, dict):
        return {name: _in_arguments(one, values) for name, one in value.items()}
    return value
