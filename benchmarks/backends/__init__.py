"""Step time of each backend beside the framework's own launcher: `make bench-backends`.

Every module here is a part of it, and has a function `run`.  It returns a part of the document, such as
`{"steady_ratio": {"fsdp": 1.01}}`, and raises FrameworkMissing where it cannot be measured.
"""

from __future__ import annotations

import importlib
import logging
import pkgutil
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

log = logging.getLogger(__name__)

Part = dict[str, Any]


class FrameworkMissing(Exception):
    """What a part measures is not installed; the message says what to install."""


def run(leave_out: Collection[str] = (), rounds: int | None = None) -> Part:
    """The whole document, with as many rounds as are given, or as each part takes by itself.

    What could not be measured stands in `missing` with the reason, and what was left out in `left_out`.
    """
    arguments = {} if rounds is None else {"rounds": rounds}
    parts = {
        name: partial(importlib.import_module(f"{__name__}.{name}").run, **arguments)
        for name in names()
        if name not in leave_out
    }
    return collect(parts) | ({"left_out": sorted(leave_out)} if leave_out else {})


def names() -> list[str]:
    """The parts: every module here but those that contestants run, with imports of their own."""
    found = sorted(one.name for one in pkgutil.iter_modules(__path__))
    return [name for name in found if not name.endswith("_train")]


def collect(parts: Mapping[str, Callable[[], Part]]) -> Part:
    """Run the parts one after the other, and put what they return together.

    A part that fails costs no other part its minutes: why it failed stands in `failed`.
    """
    document: Part = {}
    for name, part in parts.items():
        try:
            found = part()
        except FrameworkMissing as missing:
            found = {"missing": {name: f"{missing}; or leave it out: make bench-backends LEAVE_OUT={name}"}}
        except Exception as error:
            log.exception("the part %s failed", name)
            found = {"failed": {name: f"{type(error).__name__}: {error}"[:500]}}
        for key, value in found.items():
            if isinstance(value, Mapping) and isinstance(document.get(key), dict):
                document[key].update(value)
            else:
                document[key] = value
    return document
