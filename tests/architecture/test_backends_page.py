"""The tables of `docs/` say what the marked tests have shown, and say something about everything."""

from __future__ import annotations

import pytest

from remora.spec.backends import BACKENDS as OF_THE_SPECIFICATION
from remora.spec.backends import LATER_BACKENDS
from tests.backends import results
from tests.backends.marks import Table, marked
from tests.backends.table import ROOT, page
from tests.backends.tables import BACKENDS, TABLES

pytestmark = pytest.mark.parametrize("table", TABLES, ids=lambda one: one.mark)


def test_the_page_is_what_the_generator_makes(table: Table) -> None:
    found = page(table, marked(ROOT / "tests", table), results.load(table.results))
    assert table.page.read_text() == found, f"run `make {table.page.stem}-table`"


def test_every_marked_test_has_passed(table: Table) -> None:
    named = {test for cell in marked(ROOT / "tests", table).values() for test in cell}
    ended = results.load(table.results)
    assert {test for test in named if ended.get(test) != "passed"} == set(), (
        f"run `make {table.page.stem}-table`"
    )
    assert set(ended) == named


def test_every_cell_has_a_test_or_a_reason(table: Table) -> None:
    tests = marked(ROOT / "tests", table)
    cells = [(name, case) for name in table.names for case in table.cases]
    assert [cell for cell in cells if cell not in tests and not table.reason_for(cell)] == []
    assert [cell for cell in cells if cell in tests and cell in table.reasons] == [], (
        "a reason that is none any more"
    )
    stale = [
        name
        for name in table.names
        if name in table.reasons and any((name, case) in tests for case in table.cases)
    ]
    assert stale == [], "a row with tests says why single cells are empty"


def test_the_tables_have_their_rows(table: Table) -> None:
    assert len(set(table.names)) == len(table.names)
    if table is BACKENDS:
        assert sorted(table.names) == sorted({*OF_THE_SPECIFICATION, *LATER_BACKENDS})
