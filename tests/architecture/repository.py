"""The repository as text: what tests about its form read."""

from __future__ import annotations

import ast
import re
import subprocess
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("remora", "service", "cluster", "trainers")


@cache
def tracked() -> tuple[Path, ...]:
    """Every file that is or will be part of a commit."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    paths = (ROOT / name for name in listed.stdout.split("\0") if name)
    return tuple(path for path in paths if path.is_file())


@cache
def texts() -> dict[str, str]:
    """Content of every tracked file that is text, by its path from the root."""
    found = {}
    for path in tracked():
        try:
            found[path.relative_to(ROOT).as_posix()] = path.read_text()
        except UnicodeDecodeError:
            continue
    return found


def sources(*packages: str) -> dict[str, str]:
    """Python sources below these top folders."""
    return {
        name: text
        for name, text in texts().items()
        if name.endswith(".py") and name.split("/")[0] in packages
    }


@cache
def tree_of(name: str) -> ast.Module:
    """The syntax tree of a source, by its path from the root: many tests read it, and it takes milliseconds to make."""
    return ast.parse(texts()[name])


@cache
def pages() -> dict[str, str]:
    """Every page for people."""
    return {name: text for name, text in texts().items() if name.endswith(".md")}


def blocks(language: str) -> list[tuple[str, str]]:
    """Every block of code in a language, with the page that it is on."""
    return [
        (page, block)
        for page, text in sorted(pages().items())
        for block in re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    ]
