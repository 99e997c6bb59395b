"""`docs/backends.md` says what the marked tests have shown, and says something about everything."""

from __future__ import annotations

from remora.spec.backends import BACKENDS, LATER_BACKENDS
from tests.backends import results
from tests.backends.marks import CASES, NAMES, marked
from tests.backends.reasons import REASONS
from tests.backends.table import PAGE, ROOT, reason_for, render


def test_the_page_is_what_the_generator_makes() -> None:
    assert PAGE.read_text() == render(marked(ROOT / "tests"), results.load()), "run `make backends-table`"


def test_every_marked_test_has_passed() -> None:
    named = {test for cell in marked(ROOT / "tests").values() for test in cell}
    ended = results.load()
    assert {test for test in named if ended.get(test) != "passed"} == set(), "run `make backends-table`"
    assert set(ended) == named


def test_the_table_has_every_backend() -> None:
    assert sorted(NAMES) == sorted({*BACKENDS, *LATER_BACKENDS})


def test_every_cell_has_a_test_or_a_reason() -> None:
    tests = marked(ROOT / "tests")
    cells = [(name, case) for name in NAMES for case in CASES]
    assert [cell for cell in cells if cell not in tests and not reason_for(cell)] == []
    assert [cell for cell in cells if cell in tests and cell in REASONS] == [], (
        "a reason that is none any more"
    )
    stale = [name for name in NAMES if name in REASONS and any((name, case) in tests for case in CASES)]
    assert stale == [], "a backend with tests says why single cells are empty"
