"""Values laid over a stored specification by dotted names: `workers.max`, `environment.variables.LR`.  Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from remora.errors import SpecError, SpecProblem

#: Values that may be laid over one specification.
MAX_OVERRIDES = 200
#: What a command and a function in its place are written in.
_CALL = ("entrypoint", "arguments")


def overridden(spec: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of the stored specification with these values; JobSpec checks it.  Raises SpecError.

    A command replaces a function, and a function a command.
    """
    changed: dict[str, Any] = json.loads(json.dumps(spec))
    problems = []
    for name, value in values.items():
        if problem := _put(changed, name, value):
            problems.append(problem)
    if problems:
        raise SpecError(problems)
    heads = {name.partition(".")[0] for name in values}
    if "command" in heads and not heads & set(_CALL):
        for name in _CALL:
            changed.pop(name, None)
    elif changed.get("entrypoint") is not None and "command" not in heads:
        # The stored command is the one that the function had become.
        changed.pop("command", None)
    return changed


def _put(spec: dict[str, Any], name: str, value: Any) -> SpecProblem | None:
    *parents, last = name.split(".")
    section: Any = spec
    for at, parent in enumerate(parents):
        if section.get(parent) is None:
            section[parent] = {}
        section = section[parent]
        if not isinstance(section, dict):
            above = ".".join(parents[: at + 1])
            return SpecProblem(name[:200], f"{above[:100]} has no keys; give all of it, {above[:100]}=VALUE")
    if not last:
        return SpecProblem(name[:200], "expected the name of a field, such as workers.max")
    section[last] = value
    return None
