"""`docs/architecture.md` names files that are there, and its pictures show the imports of the code."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import PurePosixPath

import pytest

from tests.architecture.repository import PACKAGES, ROOT, blocks, pages, sources, texts, tree_of

PAGE = "docs/architecture.md"
#: What the table of changes has a row for.
CHANGES = (
    "a backend", "a provider", "a policy field", "an end reason", "an event", "a route",
    "a CLI command", "a span", "a metric", "a setting", "a migration", "a trace format", "an integration",
    "a format of jobs",
)  # fmt: skip

PICTURES = [block for page, block in blocks("mermaid") if page == PAGE]
#: A file by each name that it can be imported by.
MODULES = {
    name.removesuffix(".py").removesuffix("/__init__").replace("/", "."): name for name in sources(*PACKAGES)
}

Edges = set[tuple[str, str]]


def test_there_is_a_picture_of_every_package_and_one_of_all_of_them() -> None:
    drawn = [{path.split("/")[0] for path in paths_of(picture)} for picture in PICTURES]
    assert drawn == [set(PACKAGES), *({package} for package in ("remora", "service", "cluster", "trainers"))]


@pytest.mark.parametrize("picture", PICTURES)
def test_every_path_of_a_picture_is_there(picture: str) -> None:
    missing = [path for path in paths_of(picture) if not (ROOT / path).exists()]
    assert missing == []


@pytest.mark.parametrize("picture", PICTURES)
def test_arrows_of_a_picture_are_imports_and_imports_follow_arrows(picture: str) -> None:
    arrows, imports = arrows_of(picture), imports_between(paths_of(picture))
    assert imports - followed(arrows) == set(), "imports that no way along the arrows allows"
    assert arrows - imports == set(), "arrows without an import"


def test_every_folder_at_the_top_is_on_the_page() -> None:
    folders = {name.split("/")[0] for name in texts() if "/" in name}
    rows = set(re.findall(r"^\| `([\w.]+)/` \|", pages()[PAGE], re.MULTILINE))
    assert rows == folders


def test_every_folder_of_tests_is_on_the_page() -> None:
    folders = {"/".join(name.split("/")[:2]) for name in texts() if re.match(r"tests/\w+/", name)}
    assert set(re.findall(r"^(tests/\w+)/ ", pages()[PAGE], re.MULTILINE)) == folders


def test_each_of_the_commonest_changes_has_a_row_with_files_tests_and_pages() -> None:
    table = pages()[PAGE].partition("## To change something")[2]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| a")]
    assert [what.partition(" (")[0] for what, _, _ in rows] == list(CHANGES)
    for what, files, tests in rows:
        assert re.search(r"`(remora|service|cluster|trainers)/", files), what
        assert re.search(r"`tests/", tests), what


def test_the_page_is_linked_from_the_readme_and_from_the_life_of_a_job() -> None:
    assert "(docs/architecture.md)" in pages()["README.md"]
    assert "(architecture.md)" in pages()["docs/life-of-a-job.md"]


def test_what_a_picture_says_wrongly_is_seen() -> None:
    paths = paths_of(
        'flowchart TD\n a["cluster/scheduling/planner.py"] --> b["cluster/azure/"]\n c["cluster/scheduling/"]'
    )
    assert ("cluster/scheduling/planner.py", "cluster/scheduling/") in imports_between(paths)
    assert ("cluster/scheduling/planner.py", "cluster/azure/") not in imports_between(paths)
    assert followed({("a", "b"), ("b", "c")}) == {("a", "b"), ("b", "c"), ("a", "c")}


# --- pictures


def boxes_of(picture: str) -> dict[str, list[str]]:
    """Paths in each box, by the box's name."""
    return {name: label.split("<br>") for name, label in re.findall(r'(\w+)\["([^"]+)"\]', picture)}


def paths_of(picture: str) -> dict[str, str]:
    """The first path of the box that each path is in."""
    return {path: paths[0] for paths in boxes_of(picture).values() for path in paths}


def arrows_of(picture: str) -> Edges:
    """Pairs of boxes, each by its first path; an arrow with two heads is two."""
    first = {name: paths[0] for name, paths in boxes_of(picture).items()}
    found: Edges = set()
    for old, back, new in re.findall(r"(\w+) (<?)--> (\w+)", re.sub(r'\["[^"]+"\]', "", picture)):
        found |= {(first[old], first[new])} | ({(first[new], first[old])} if back else set())
    return found


def followed(arrows: Edges) -> Edges:
    """Every pair of boxes that is joined by a way along the arrows."""
    ways = set(arrows)
    while further := {(a, d) for a, b in ways for c, d in arrows if b == c} - ways:
        ways |= further
    return ways


# --- the code


def imports_between(paths: dict[str, str]) -> Edges:
    """Pairs of boxes of which the first imports something of the second; files in no box are left out."""
    found: Edges = set()
    for name in sources(*PACKAGES):
        old = box_of(name, paths)
        if old is not None:
            news = {box_of(MODULES[module], paths) for module in imported_by(name)}
            found |= {(old, new) for new in news if new not in (None, old)}
    return found


def box_of(name: str, paths: dict[str, str]) -> str | None:
    """The box with the longest path that leads to this file."""
    above = [name, *(f"{folder}/" for folder in PurePosixPath(name).parents)]
    return next((paths[path] for path in above if path in paths), None)


@cache
def imported_by(name: str) -> frozenset[str]:
    """Modules of ours that a file imports, also inside of functions."""
    return frozenset(imports_of(tree_of(name)))


def imports_of(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from (one.name for one in names if one.name in MODULES)
            case ast.ImportFrom(module=str(module), names=names):
                for one in names:
                    inner = f"{module}.{one.name}"
                    if inner in MODULES:
                        yield inner
                    elif module in MODULES:
                        yield module
