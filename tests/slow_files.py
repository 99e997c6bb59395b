"""Which files have tests of the slow lane: of 11,000 tests it runs 200, and to import the others takes a minute."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
#: The marks of all tests of a file: up to the next line that begins at the margin.
_OF_ALL = re.compile(r"^pytestmark = .*?^(?=\S)", re.MULTILINE | re.DOTALL)


def slow_files(root: Path = ROOT) -> list[str]:
    """Paths below `root` of the files that may have tests marked `slow` and not `soak`, in order."""
    found = (root / "tests").rglob("test_*.py")
    return sorted(path.relative_to(root).as_posix() for path in found if may_be_slow(path))


@cache
def may_be_slow(path: Path) -> bool:
    """Whether the text of a file has the mark `slow`, and does not give `soak` to all its tests."""
    text = path.read_text()
    of_all = _OF_ALL.search(text)
    return "mark.slow" in text and not (of_all and "mark.soak" in of_all.group())


def report_lost(items: Iterable[pytest.Item]) -> None:
    """Report those of these tests as errors that are of the slow lane, and in a file that it does not read."""
    for item in items:
        if item.get_closest_marker("soak") or not item.get_closest_marker("slow") or may_be_slow(item.path):
            continue
        why = "The slow lane does not read this file: give its tests the mark `slow` in it (tests/slow_files.py)."
        item.ihook.pytest_collectreport(
            report=pytest.CollectReport(item.nodeid, "failed", longrepr=why, result=[])
        )
