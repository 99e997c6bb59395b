"""Which tests show what of a backend or a library: those with its mark, found without running them."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

#: Name and case.
Cell = tuple[str, str]

HERE = Path(__file__).parent
DOCS = Path(__file__).parents[2] / "docs"


@dataclass(frozen=True)
class Table:
    """A table of the documentation: a row for each name, a column for each case."""

    #: Name of the mark of its tests, `@pytest.mark.backend(name, case)`.
    mark: str
    names: tuple[str, ...]
    cases: tuple[str, ...]
    #: The page; it is made from the line on that begins the table, and what is before is written by hand.
    page: Path
    begins: str
    #: How its tests ended.
    results: Path
    #: Why a cell is empty; a reason for a whole row has no case.
    reasons: Mapping[str | Cell, str]

    def reason_for(self, cell: Cell) -> str | None:
        """Why there is no test for a cell; None where that is not said."""
        return self.reasons.get(cell) or self.reasons.get(cell[0])


def marked(tests: Path, table: Table) -> dict[Cell, list[str]]:
    """Tests by cell, as `path::name` from the root of the repository, in order.

    Raises ValueError for a cell that the table does not have.
    """
    found: dict[Cell, list[str]] = {}
    for path in sorted(tests.rglob("test_*.py")):
        text = path.read_text()
        if f"mark.{table.mark}(" not in text:
            continue
        for function in _functions(ast.parse(text)):
            test = f"{path.relative_to(tests.parent).as_posix()}::{function.name}"
            for cell in _cells(function, table.mark):
                if cell[0] not in table.names or cell[1] not in table.cases:
                    raise ValueError(f"{test} is marked with {cell}, which is no cell of the table")
                found.setdefault(cell, []).append(test)
    return found


def _functions(module: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def _cells(function: ast.FunctionDef | ast.AsyncFunctionDef, mark: str) -> Iterator[Cell]:
    """Cells of its marks, also of those that single parameters have."""
    for decorator in function.decorator_list:
        for node in ast.walk(decorator):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == f"pytest.mark.{mark}":
                name, case = (ast.literal_eval(argument) for argument in node.args)
                yield name, case
