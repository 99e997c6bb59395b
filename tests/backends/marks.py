"""Which tests show what of a backend: those with `@pytest.mark.backend(name, case)`, found without running them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

CASES = ("runs", "resumes same size", "resumes other size", "notice", "silent death", "unmodified script")
#: The same whether a version has them or not.
NAMES = ("ddp", "fsdp", "deepspeed", "tensorflow", "mpi", "horovod", "command")

#: Backend and case.
Cell = tuple[str, str]


def marked(tests: Path) -> dict[Cell, list[str]]:
    """Tests by cell, as `path::name` from the root of the repository, in order.

    Raises ValueError for a cell that the table does not have.
    """
    found: dict[Cell, list[str]] = {}
    for path in sorted(tests.rglob("test_*.py")):
        text = path.read_text()
        if "mark.backend(" not in text:
            continue
        for function in _functions(ast.parse(text)):
            test = f"{path.relative_to(tests.parent).as_posix()}::{function.name}"
            for cell in _cells(function):
                if cell[0] not in NAMES or cell[1] not in CASES:
                    raise ValueError(f"{test} is marked with {cell}, which is no cell of the table")
                found.setdefault(cell, []).append(test)
    return found


def _functions(module: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def _cells(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[Cell]:
    """Cells of its marks, also of those that single parameters have."""
    for decorator in function.decorator_list:
        for node in ast.walk(decorator):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.backend":
                name, case = (ast.literal_eval(argument) for argument in node.args)
                yield name, case
