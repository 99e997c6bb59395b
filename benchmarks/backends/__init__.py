"""Step time of each backend beside the framework's own launcher: `make bench-backends`.

Every module here that has a function `run()` is a part of it.  It returns a part of the document, such as
`{"steady_ratio": {"fsdp": 1.01}}`, and raises FrameworkMissing where it cannot be measured.
"""

from __future__ import annotations

import importlib
import logging
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from typing import Any

log = logging.getLogger(__name__)

Part = dict[str, Any]


class FrameworkMissing(Exception):
    """What a part measures is not installed; the message says what to install."""


def run() -> Part:
    """The whole document; what could not be measured stands in `missing` with the reason."""
    return collect(dict(_parts()))


def collect(parts: Mapping[str, Callable[[], Part]]) -> Part:
    """Run the parts one after the other, and put what they return together.

    A part that fails costs no other part its minutes: why it failed stands in `failed`.
    """
    document: Part = {}
    for name, part in parts.items():
        try:
            found = part()
        except FrameworkMissing as missing:
            found = {"missing": {name: str(missing)}}
        except Exception as error:
            log.exception("the part %s failed", name)
            found = {"failed": {name: f"{type(error).__name__}: {error}"[:500]}}
        for key, value in found.items():
            if isinstance(value, Mapping) and isinstance(document.get(key), dict):
                document[key].update(value)
            else:
                document[key] = value
    return document


def _parts() -> Iterator[tuple[str, Callable[[], Part]]]:
    for found in sorted(pkgutil.iter_modules(__path__), key=lambda one: one.name):
        if not found.name.endswith("_train"):  # what the contestants run, with imports of their own
            module = importlib.import_module(f"{__name__}.{found.name}")
            if hasattr(module, "run"):
                yield found.name, module.run
