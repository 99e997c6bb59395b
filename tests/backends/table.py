"""Writes `docs/backends.md` from the marked tests, how they ended, and the reasons for what is not there.

usage: python -m tests.backends.table [--report JUNIT_XML]...
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.backends import results
from tests.backends.marks import CASES, NAMES, Cell, marked
from tests.backends.reasons import REASONS

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "backends.md"

_HEAD = """# What each backend can do

`backend` in the [job specification](job-spec.md) names the framework of a script. Every cell below is either shown by a
test that passed when the page was made, or is not supported, for the reason that stands there. `make backends-table`
runs the tests and makes the page anew; do not edit it by hand.

- **runs**: a job trains to its end.
- **resumes same size**, **other size**: a later attempt goes on from a checkpoint, with as many workers or with others.
- **notice**: a node that will be taken is left in time.
- **silent death**: a node vanishes, and the others go on.
- **unmodified script**: a script that knows nothing of Remora.
"""


def reason_for(cell: Cell) -> str | None:
    """Why there is no test for a cell; None when nobody said."""
    return REASONS.get(cell) or REASONS.get(cell[0])


def render(tests: Mapping[Cell, list[str]], ended: Mapping[str, str]) -> str:
    """The page."""
    lines = [_HEAD, f"| | {' | '.join(CASES)} |", f"|---|{'---|' * len(CASES)}"]
    for name in NAMES:
        lines.append(f"| `{name}` | {' | '.join(_cell((name, case), tests, ended) for case in CASES)} |")
    lines += ["", "## Tests", *_listed(tests, ended), "", "## Not supported", "", *_reasons(tests), ""]
    return "\n".join(lines)


def _cell(cell: Cell, tests: Mapping[Cell, list[str]], ended: Mapping[str, str]) -> str:
    if cell not in tests:
        return "[not supported](#not-supported)"
    reported = {ended.get(test, "not run") for test in tests[cell]}
    return "passed" if reported == {"passed"} else ", ".join(sorted(reported))


def _reasons(tests: Mapping[Cell, list[str]]) -> Iterator[str]:
    """One line for each reason of a backend, with its cells."""
    for name in NAMES:
        why: dict[str | None, list[str]] = {}
        for case in CASES:
            if (name, case) not in tests:
                why.setdefault(reason_for((name, case)), []).append(case)
        for reason, cases in why.items():
            yield f"- `{name}`{'' if len(cases) == len(CASES) else ', ' + ', '.join(cases)}: {reason}."


def _listed(tests: Mapping[Cell, list[str]], ended: Mapping[str, str]) -> Iterator[str]:
    for name in NAMES:
        shown = [(case, test) for case in CASES for test in tests.get((name, case), [])]
        if shown:
            yield f"\n`{name}`:\n"
        for case, test in shown:
            path, _, function = test.partition("::")
            yield f"- {case}: [`{function}`](../{path}), {ended.get(test, 'not run')}"


def main() -> None:
    """Take over what reports say, and write the page."""
    parser = argparse.ArgumentParser(prog="python -m tests.backends.table", description=__doc__)
    parser.add_argument("--report", type=Path, action="append", default=[], help="a JUnit report of pytest")
    tests = marked(ROOT / "tests")
    named = {test for cell in tests.values() for test in cell}
    ended = {test: outcome for test, outcome in results.load().items() if test in named}
    for report in parser.parse_args().report:
        ended.update({test: one for test, one in results.outcomes(report).items() if test in named})
    results.store(ended)
    PAGE.write_text(render(tests, ended))


if __name__ == "__main__":
    main()
