"""The summary of `make soak` says what ran, and its age is shown."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests import soak
from tests.soak import Counts, age, counts_of


def test_counts_are_those_of_all_suites() -> None:
    report = (
        '<testsuites><testsuite tests="3" failures="1" errors="1" skipped="0"/>'
        '<testsuite tests="2" failures="0" errors="0" skipped="1"/></testsuites>'
    )
    assert counts_of(report, 61.6) == Counts(tests=5, failed=2, skipped=1, seconds=62)


def test_its_age_is_in_commits_and_its_failures_are_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(soak, "SUMMARY", tmp_path / "soak.json")
    assert age() == "make soak has not been run yet"
    parts = {"rounds": {"failed": 1}, "seeds": {"failed": 2}}
    soak.SUMMARY.write_text(json.dumps({"commit": "HEAD", "day": "2026-11-25", "parts": parts}))
    assert "2026-11-25" in age()
    assert age().endswith(": 3 tests failed")


def test_a_part_without_a_report_has_failed() -> None:
    assert soak.run(("--no-such-option",), {}).failed == 1
