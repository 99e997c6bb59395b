"""A function of the job's code in place of a command line: `entrypoint: train:main`, and its arguments.  Pure.

It becomes a command of Python that needs nothing of Remora, so that it runs in every environment; the module is
imported under its own name, and not as `__main__`, so that what it defines can be pickled.
"""

from __future__ import annotations

import json
import keyword
import math
import re
from collections.abc import Mapping
from typing import Any

from remora.errors import SpecProblem

ENTRYPOINT_FORM = "a module and a function of the code, e.g. train:main or package.train:main"
ARGUMENTS_FORM = "names with values for the function, or a list of values"
#: Bytes of the arguments as JSON: they are one word of the command, of which Linux takes 128 KiB.
MAX_ARGUMENT_BYTES = 100 * 1024
_DOTTED = r"[A-Za-z_]\w{0,99}(?:\.[A-Za-z_]\w{0,99}){0,9}"
_ENTRYPOINT = re.compile(f"{_DOTTED}:{_DOTTED}", re.ASCII)
#: What a whole number that the function returns means: its exit code; anything else that it returns means success.
_CALL = """\
import functools, importlib, json, sys
target, given = sys.argv[1], json.loads(sys.argv[2])
sys.argv[:] = [target]
module, _, name = target.partition(":")
call = functools.reduce(getattr, name.split("."), importlib.import_module(module))
code = call(*given) if isinstance(given, list) else call(**given)
sys.exit(code if type(code) is int else 0)
"""


def is_entrypoint(text: str) -> bool:
    """True for `module:function`, both with dots or without."""
    return _ENTRYPOINT.fullmatch(text) is not None


def refuses_arguments(arguments: Mapping[Any, Any] | list[Any]) -> str | None:
    """Why a function cannot be called with these; None when it can."""
    if isinstance(arguments, Mapping):
        for name in arguments:
            if not isinstance(name, str) or not name.isidentifier() or keyword.iskeyword(name):
                return f"{str(name)[:60]!r} is not the name of an argument in Python"
    waiting: list[Any] = [arguments]
    while waiting:
        value = waiting.pop()
        if isinstance(value, Mapping):
            if not all(isinstance(key, str) for key in value):
                return "keys within arguments must be texts; put quotes around them"
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value
        elif isinstance(value, float) and not math.isfinite(value):
            return "a number within arguments is not finite; write it as a text"
        elif not isinstance(value, str | int | float | bool | None):
            return (
                f"{str(value)[:60]!r} is no text, number, true, false, list or mapping; put quotes around it"
            )
    if len(json.dumps(arguments)) > MAX_ARGUMENT_BYTES:
        return f"arguments have more than {MAX_ARGUMENT_BYTES // 1024} KiB; put the data into files"
    return None


def command_of(entrypoint: str, arguments: Mapping[str, Any] | list[Any]) -> list[str]:
    """The command that calls the function."""
    return ["python", "-c", _CALL, entrypoint, json.dumps(arguments)]


def add_command(raw: dict[Any, Any]) -> list[SpecProblem]:
    """Give a raw specification with an entrypoint the command that it becomes; problems of the two together.

    A specification as stored has both, and they agree.
    """
    entrypoint, arguments = raw.get("entrypoint"), raw.get("arguments") or {}
    if entrypoint is None:
        if not arguments:
            return []
        text = "these are the arguments of an entrypoint, and there is none; write them into `command`"
        raw.pop("arguments")
        return [SpecProblem("arguments", text)]
    given = raw.get("command")
    is_usable = isinstance(entrypoint, str) and is_entrypoint(entrypoint)
    is_usable = is_usable and isinstance(arguments, Mapping | list) and refuses_arguments(arguments) is None
    # What is wrong with the two is found by their own fields.
    raw["command"] = command_of(entrypoint, arguments) if is_usable else ["python"]
    if given is None or not is_usable or given == raw["command"]:
        return []
    return [SpecProblem("entrypoint", "there is a command too; a job has either a command or an entrypoint")]
