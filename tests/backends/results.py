"""How marked tests ended when they ran last, in one small file for each table."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from xml.etree import ElementTree


def load(file: Path) -> dict[str, str]:
    """Outcome by test: passed, failed, or skipped."""
    results: dict[str, str] = json.loads(file.read_text()) if file.exists() else {}
    return results


def store(file: Path, results: dict[str, str]) -> None:
    """Keep them in the order of their names."""
    file.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")


def outcomes(report: Path) -> dict[str, str]:
    """Outcome by test in a JUnit report of pytest; a test with parameters passed when it passed with all of them."""
    found: dict[str, list[str]] = {}
    for case in ElementTree.parse(report).iter("testcase"):  # noqa: S314 - our own file
        path = case.get("classname", "").replace(".", "/") + ".py"
        test = f"{path}::{case.get('name', '').partition('[')[0]}"
        found.setdefault(test, []).append(_outcome(child.tag for child in case))
    return {test: _worst(all_) for test, all_ in found.items()}


def _outcome(tags: Iterable[str]) -> str:
    reported = set(tags)
    return "failed" if reported & {"failure", "error"} else "skipped" if "skipped" in reported else "passed"


def _worst(all_: list[str]) -> str:
    return next(one for one in ("failed", "skipped", "passed") if one in all_)
