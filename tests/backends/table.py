"""Writes the tables of `docs/` from the marked tests, how they ended, and the reasons for what is not there.

usage: python -m tests.backends.table [--report JUNIT_XML]...
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.backends import results
from tests.backends.marks import Cell, Table, marked
from tests.backends.tables import TABLES

ROOT = Path(__file__).parents[2]


def page(table: Table, tests: Mapping[Cell, list[str]], ended: Mapping[str, str]) -> str:
    """The whole page, with what is written by hand before its table."""
    head, _, _ = table.page.read_text().partition(f"\n{table.begins}")
    return f"{head}\n{render(table, tests, ended)}"


def render(table: Table, tests: Mapping[Cell, list[str]], ended: Mapping[str, str]) -> str:
    """The page from the table on."""
    lines = [f"| | {' | '.join(table.cases)} |", f"|---|{'---|' * len(table.cases)}"]
    for name in table.names:
        cells = (_cell((name, case), tests, ended) for case in table.cases)
        lines.append(f"| `{name}` | {' | '.join(cells)} |")
    lines += [
        "",
        "## Tests",
        *_listed(table, tests, ended),
        "",
        "## Not supported",
        "",
        *_reasons(table, tests),
        "",
    ]
    return "\n".join(lines)


def _cell(cell: Cell, tests: Mapping[Cell, list[str]], ended: Mapping[str, str]) -> str:
    if cell not in tests:
        return "[not supported](#not-supported)"
    reported = {ended.get(test, "not run") for test in tests[cell]}
    return "passed" if reported == {"passed"} else ", ".join(sorted(reported))


def _reasons(table: Table, tests: Mapping[Cell, list[str]]) -> Iterator[str]:
    """One line for each reason of a row, with its cells."""
    for name in table.names:
        why: dict[str | None, list[str]] = {}
        for case in table.cases:
            if (name, case) not in tests:
                why.setdefault(table.reason_for((name, case)), []).append(case)
        for reason, cases in why.items():
            yield f"- `{name}`{'' if len(cases) == len(table.cases) else ', ' + ', '.join(cases)}: {reason}."


def _listed(table: Table, tests: Mapping[Cell, list[str]], ended: Mapping[str, str]) -> Iterator[str]:
    for name in table.names:
        shown = [(case, test) for case in table.cases for test in tests.get((name, case), [])]
        if shown:
            yield f"\n`{name}`:\n"
        for case, test in shown:
            path, _, function = test.partition("::")
            yield f"- {case}: [`{function}`](../{path}), {ended.get(test, 'not run')}"


def main() -> None:
    """Take over what reports say, and write the pages."""
    parser = argparse.ArgumentParser(prog="python -m tests.backends.table", description=__doc__)
    parser.add_argument("--report", type=Path, action="append", default=[], help="a JUnit report of pytest")
    reports = [results.outcomes(report) for report in parser.parse_args().report]
    for table in TABLES:
        tests = marked(ROOT / "tests", table)
        named = {test for cell in tests.values() for test in cell}
        ended = {test: one for test, one in results.load(table.results).items() if test in named}
        for report in reports:
            ended.update({test: one for test, one in report.items() if test in named})
        results.store(table.results, ended)
        table.page.write_text(page(table, tests, ended))


if __name__ == "__main__":
    main()
