"""How the product's code is cut: sizes of functions and files, modules with one importer, names used twice.

`make house` prints it.  It is a mirror and not a gate: where a target would make the code worse, the code is right.
"""

from __future__ import annotations

import ast
import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from tests.architecture.repository import PACKAGES, sources, tree_of

#: Functions above this length are named, longest first.
LONG_FUNCTION = 60
#: Most names that are printed for one row.
_SHOWN = 12


#: Modules that list others.
_LISTS = frozenset(
    {"__init__.py", "__main__.py", "app.py", "main.py", "server.py", "controller.py", "cloud_loop.py"}
)
#: Targets that would make the code worse where they are not met.
_WHY_NOT = {
    "lines of product code": "the target was set before environments, inputs, images, requests of owners, pipelines and"
    " the integrations of libraries were built, and nothing was to be lost",
    "functions above 60 lines": "a migration, the options of a command, the settings of a loop and of a launch, and the"
    " list of all routes read better from top to bottom",
    "modules with one importer": "a third of them are parts that a list names, and joining others with their importer"
    " would make files of more than 280 lines",
}


@dataclass(frozen=True)
class Row:
    """One measured figure, with the target it is held against and the places that make it so."""

    what: str
    figure: float
    target: str
    places: tuple[str, ...] = ()

    def __str__(self) -> str:
        figure = f"{self.figure:.1f}".removesuffix(".0")
        return f"{self.what:<58}{figure:>9}   {self.target}"


def rows(texts: Mapping[str, str], tree_of: Callable[[str], ast.Module]) -> list[Row]:
    """All figures of these sources, by path from the root; `tree_of` gives the syntax tree of a path."""
    trees = {name: tree_of(name) for name in texts}
    functions = sorted(_functions(trees), reverse=True)
    lines = {name: text.count("\n") for name, text in texts.items()}
    lengths = [length for length, _ in functions]
    sizes = [count for name, count in lines.items() if not _is_migration(name)]
    long = [place for length, place in functions if length > LONG_FUNCTION]
    single = single_importers(trees)
    modules = [name for name in texts if not name.endswith("__init__.py")]
    doubled = doubled_classes(trees)
    return [
        Row("lines of product code", sum(lines.values()), "at most 50,000"),
        Row("modules", len(modules), ""),
        Row("lines of a function, median", statistics.median(lengths), ""),
        Row("lines of a function, 90th percentile", percentile(lengths, 0.9), "at most 20"),
        Row(f"functions above {LONG_FUNCTION} lines", len(long), "none outside tables", tuple(long)),
        Row("lines of a file, median", statistics.median(sizes), ""),
        Row("lines of a file, 90th percentile", percentile(sizes, 0.9), "at most 280"),
        Row(
            "modules with one importer, per cent", 100 * len(single) / len(modules), "under 15", tuple(single)
        ),
        Row("of them those that a list names", 100 * len(listed(trees, single)) / len(modules), ""),
        Row("public class names used twice in one package", len(doubled), "none", tuple(doubled)),
        Row("module names used twice", len(twice := doubled_modules(modules)), "", tuple(twice)),
    ]


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of all values does not exceed; of no values 0."""
    ordered = sorted(values)
    return ordered[math.ceil(len(ordered) * share) - 1] if ordered else 0.0


def single_importers(trees: Mapping[str, ast.Module]) -> list[str]:
    """Modules that exactly one other module imports, by path."""
    paths = {_module(name): name for name in trees}
    importers: dict[str, set[str]] = defaultdict(set)
    for name, tree in trees.items():
        for imported in _imports(tree):
            if imported in paths and paths[imported] != name:
                importers[imported].add(name)
    return sorted(
        paths[module]
        for module, by in importers.items()
        if len(by) == 1 and not paths[module].endswith("__init__.py")
    )


def listed(trees: Mapping[str, ast.Module], single: Iterable[str]) -> list[str]:
    """Modules with one importer whose importer lists the parts of a package, or those of a process.

    Routes, commands, backends and loops are such parts: one module for each, and one that names all of them.
    """
    by = {
        imported: name
        for name, tree in trees.items()
        if PurePosixPath(name).name in _LISTS
        for imported in _imports(tree)
    }
    return [name for name in single if _module(name) in by]


def doubled_classes(trees: Mapping[str, ast.Module]) -> list[str]:
    """Public class names that stand twice or more in one top-level package, with their places."""
    found: dict[tuple[str, str], list[str]] = defaultdict(list)
    for name, tree in trees.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[name.split("/")[0], node.name].append(name)
    return [
        f"{class_name}: {', '.join(sorted(places))}"
        for (_, class_name), places in sorted(found.items())
        if len(places) > 1
    ]


def doubled_modules(names: Iterable[str]) -> list[str]:
    """Names of files that are used more than once, with how often."""
    counted = Counter(PurePosixPath(name).stem for name in names)
    return [f"{stem} ({count})" for stem, count in counted.most_common() if count > 1]


def _functions(trees: Mapping[str, ast.Module]) -> Iterator[tuple[int, str]]:
    for name, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield _length(node), f"{name}:{node.lineno} {node.name}"


def _length(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines from `def` to its end, without those of its docstring."""
    last = function.end_lineno or function.lineno
    first = function.body[0]
    documented = ast.get_docstring(function, clean=False) is not None
    docstring = (first.end_lineno or first.lineno) - first.lineno + 1 if documented else 0
    return last - function.lineno + 1 - docstring


def _imports(tree: ast.Module) -> Iterator[str]:
    """Every module that may be meant, also where a name of `from ... import name` is one."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _module(name: str) -> str:
    return name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _is_migration(name: str) -> bool:
    return "/migrations/" in name


def main() -> None:
    """Print the table, why some of its targets are not met, and the places behind each figure that has some."""
    table = rows(sources(*PACKAGES), tree_of)
    for row in table:
        print(row)
    print("\nwhy not:")
    for what, why in _WHY_NOT.items():
        print(f"  {what}: {why}")
    for row in table:
        if row.places:
            more = len(row.places) - _SHOWN
            print(f"\n{row.what}:")
            print("\n".join(f"  {place}" for place in row.places[:_SHOWN]))
            if more > 0:
                print(f"  and {more} more")


if __name__ == "__main__":
    main()
