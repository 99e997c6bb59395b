"""The table of backends, from marks and reports to the page."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.backends.marks import marked
from tests.backends.results import outcomes
from tests.backends.table import render
from tests.backends.tables import BACKENDS, FRAMEWORKS

MARKED = """
import pytest

@pytest.mark.backend("ddp", "runs")
@pytest.mark.parametrize("size", [1, pytest.param(2, marks=pytest.mark.backend("ddp", "notice"))])
def test_one(size): ...

def test_two(): ...
"""
REPORT = """<testsuites><testsuite>
<testcase classname="tests.e2e.test_a" name="test_one[1]"/>
<testcase classname="tests.e2e.test_a" name="test_one[2]"><failure>no</failure></testcase>
<testcase classname="tests.e2e.test_a" name="test_two"><skipped/></testcase>
</testsuite></testsuites>"""


def test_marks_are_found_without_running_anything(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_a.py").write_text(MARKED)
    one = "tests/test_a.py::test_one"
    assert marked(tmp_path / "tests", BACKENDS) == {("ddp", "runs"): [one], ("ddp", "notice"): [one]}
    assert marked(tmp_path / "tests", FRAMEWORKS) == {}, "it has a mark of its own"


def test_a_mark_for_a_cell_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "test_a.py").write_text(MARKED.replace('"runs"', '"walks"'))
    with pytest.raises(ValueError, match=r"test_one is marked with \('ddp', 'walks'\)"):
        marked(tmp_path, BACKENDS)


def test_the_worst_outcome_of_a_tests_parameters_counts(tmp_path: Path) -> None:
    (tmp_path / "report.xml").write_text(REPORT)
    found = outcomes(tmp_path / "report.xml")
    assert found == {"tests/e2e/test_a.py::test_one": "failed", "tests/e2e/test_a.py::test_two": "skipped"}


def test_a_cell_says_how_its_tests_ended() -> None:
    tests = {("ddp", "runs"): ["tests/test_a.py::test_one"], ("ddp", "notice"): ["tests/test_a.py::test_two"]}
    page = render(BACKENDS, tests, {"tests/test_a.py::test_one": "passed"})
    (row,) = (line for line in page.splitlines() if line.startswith("| `ddp`"))
    assert row.split(" | ")[1] == "passed"
    assert row.split(" | ")[4] == "not run"
    assert "- runs: [`test_one`](../tests/test_a.py), passed" in page
