"""Expressions in a job's command that stand for what only its worker knows.  Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

_OUTPUT = re.compile(r"\$\{\{\s*outputs\.([^{}\s]*)\s*\}\}")


def outputs_in(words: Iterable[str]) -> list[str]:
    """Names of the outputs that a command names as `${{outputs.NAME}}`."""
    return [name for word in words for name in _OUTPUT.findall(word)]


def with_outputs(words: Iterable[str], folder: str) -> list[str]:
    """The command with the path of each output, below `folder`, in place of its expression."""
    return [_OUTPUT.sub(lambda match: f"{folder}/{match.group(1)}", word) for word in words]
