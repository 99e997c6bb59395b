"""Writes the blocking client, `remora/client/blocking.py`, from the text of the asynchronous one.

    python -m deploy.make_client            # writes it
    python -m deploy.make_client --check    # fails where the file is not what would be written

What the asynchronous client waits for is called directly in the blocking one: `RULES` are applied to the whole text in
this order, comments and docstrings included, and Ruff then sorts imports and breaks lines.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "remora" / "client" / "asynchronous.py"
TARGET = ROOT / "remora" / "client" / "blocking.py"

#: Regular expressions, each of which matches at least once, and what stands in the blocking client for what they match.
RULES = (
    # Sentences of docstrings.
    (r"The asynchronous Python client\.", "The blocking Python client."),
    (
        r"`remora\.client\.blocking` is generated from this module:",
        "This module is generated from `remora.client.asynchronous`:",
    ),
    (r"after a change here\.", "after a change there."),
    (r"The asynchronous client\.  Close", "The blocking client.  Close"),
    (r"an `async with` statement; streams are read by `async for`\.", "a `with` statement."),
    # Code.
    (r"\bAwaitable\[(list\[\w+\])\]", r"\1"),
    (r"\bAwaitable, ", ""),
    (r"\bawait asyncio\.to_thread\(([\w.]+)(?:, |(?=\)))", r"\1("),
    (r"\bawait ", ""),
    (r"\basync (?=def|for|with)", ""),
    (r"\basyncio\b", "time"),
    (r"\bAsync(?=Client|Iterator)", ""),
    (r"\b__a(?=enter__|exit__)", "__"),
    (r"\ba(?=(?:close|iter_bytes|read)\b)", ""),
)
_ASYNCHRONOUS = (ast.AsyncFunctionDef, ast.AsyncFor, ast.AsyncWith, ast.Await)


def blocking(source: str) -> str:
    """The text of the blocking client.

    Raises ValueError where a rule matches nothing, and where something of asyncio is left.
    """
    for pattern, text in RULES:
        source, matches = re.subn(pattern, text, source)
        if not matches:
            raise ValueError(f"nothing in {SOURCE.name} matches the rule {pattern}")
    left = [node for node in ast.walk(ast.parse(source)) if isinstance(node, _ASYNCHRONOUS)]
    if left or "to_thread" in source:
        raise ValueError(f"no rule makes this blocking: {ast.unparse(left[0]) if left else 'to_thread'}")
    return _formatted(source)


def _formatted(source: str) -> str:
    """The text with sorted imports and lines as long as they may be; `yield from` stands for a loop that yields."""
    file = ["--stdin-filename", str(TARGET), "-"]
    sorted_out = _ruff(source, "check", "--fix", "--unsafe-fixes", "--select", "I,UP028", "--quiet", *file)
    return _ruff(sorted_out, "format", "--quiet", *file)


def _ruff(source: str, *arguments: str) -> str:
    program = Path(sys.executable).with_name("ruff")
    done = subprocess.run([program, *arguments], input=source, capture_output=True, text=True, check=True)
    return done.stdout


def main(arguments: list[str]) -> str | None:
    """Write the blocking client, or with `--check` say what is wrong with the one that is there."""
    text = blocking(SOURCE.read_text())
    if arguments == ["--check"]:
        same = TARGET.read_text() == text
        return None if same else f"{TARGET.name} is not what {SOURCE.name} says: make client"
    if arguments:
        return __doc__
    TARGET.write_text(text)
    return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
