"""The summary of `make soak` says what ran, its age is shown, and a change runs what it made stale."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests import soak
from tests.soak import Counts, age, counts_of, soak_changed
from tests.soak_parts import Part, digest_of


def test_counts_are_those_of_all_suites() -> None:
    report = (
        '<testsuites><testsuite tests="3" failures="1" errors="1" skipped="0"/>'
        '<testsuite tests="2" failures="0" errors="0" skipped="1"/></testsuites>'
    )
    assert counts_of(report, 61.6) == Counts(tests=5, failed=2, skipped=1, seconds=62)


def test_a_part_without_a_report_has_failed() -> None:
    assert soak.run(("--no-such-option",), {}).failed == 1


class Played:
    """Two parts in a folder of their own, and what would be run of them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.failing: set[str] = set()
        self.ran: list[str] = []
        self.environments: list[Mapping[str, str]] = []
        self.parts = {name: Part((f"test_{name}.py",), (f"{name}.py",)) for name in ("one", "two")}
        for name in self.parts:
            (root / f"test_{name}.py").touch()
            (root / f"{name}.py").write_text("as it was")

    def run(self, arguments: Iterable[str], environment: Mapping[str, str]) -> Counts:
        name = list(arguments)[-1].removeprefix("test_").removesuffix(".py")
        self.ran.append(name)
        self.environments.append(environment)
        return Counts(3, int(name in self.failing), 0, 40)

    def summary(self) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = json.loads(soak.SUMMARY.read_text())
        return found


@pytest.fixture
def played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Played:
    played = Played(tmp_path)
    monkeypatch.setattr(soak, "SUMMARY", tmp_path / "soak.json")
    monkeypatch.setattr(soak, "PARTS", played.parts)
    monkeypatch.setattr(soak, "run", played.run)
    monkeypatch.setattr(Part, "digest", lambda part: digest_of((*part.covers, *part.tests), tmp_path))
    return played


def test_each_part_is_recorded_and_its_failures_are_shown(played: Played) -> None:
    assert age() == "make soak has not been run yet"
    played.failing = {"two"}
    assert soak.soak(played.parts, rounds=5, seed=7) == 1
    assert {name: (part["failed"], part["seconds"]) for name, part in played.summary().items()} == {
        "one": (0, 40),
        "two": (1, 40),
    }
    assert played.environments[0]["REMORA_SOAK_ROUNDS"] == "5"
    assert " 1 tests failed" in age()
    assert age().endswith("has not passed on the files as they are: two")


def test_a_part_that_runs_alone_leaves_the_records_of_the_others(played: Played) -> None:
    soak.soak(played.parts, rounds=5, seed=7)
    before = played.summary()
    assert soak.soak(["two"], rounds=6, seed=8) == 0
    assert played.summary()["one"] == before["one"]
    assert (played.summary()["two"]["rounds"], played.summary()["two"]["seed"]) == (6, 8)


def test_a_change_runs_what_it_made_stale_and_records_nothing(
    played: Played, capsys: pytest.CaptureFixture[str]
) -> None:
    soak.soak(played.parts, rounds=5, seed=7)
    before = played.summary()
    played.ran.clear()
    assert soak_changed(100, 5, 7) == 0
    assert played.ran == []
    (played.root / "one.py").write_text("changed")
    assert soak_changed(100, 5, 7) == 0
    assert played.ran == ["one"]
    played.failing = {"one"}
    assert soak_changed(100, 5, 7) == 1
    assert played.summary() == before
    assert "left to make soak" not in capsys.readouterr().out


def test_what_does_not_fit_into_the_budget_is_named(
    played: Played, capsys: pytest.CaptureFixture[str]
) -> None:
    soak.soak(played.parts, rounds=5, seed=7)
    played.ran.clear()
    for name in played.parts:
        (played.root / f"{name}.py").write_text("changed")
    assert soak_changed(79, 5, 7) == 0
    assert played.ran == ["one"]
    assert "left to make soak: two (40 s)" in capsys.readouterr().out


def test_a_part_that_never_ran_is_named(played: Played, capsys: pytest.CaptureFixture[str]) -> None:
    soak.soak(["one"], rounds=5, seed=7)
    soak_changed(1000, 5, 7)
    assert played.ran == ["one"]
    assert "left to make soak: two (never run)" in capsys.readouterr().out
