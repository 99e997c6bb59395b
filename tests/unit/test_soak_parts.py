"""Every test marked `soak` belongs to one part, and a part is stale when what it covers has changed."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.soak_parts import PARTS, ROOT, Choice, Part, Ran, choose, digest_of, stale


def test_every_file_with_tests_marked_soak_is_in_one_part() -> None:
    marked = [
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "tests").rglob("test_*.py")
        if any(f"mark.{name}" in path.read_text() for name in ("soak", "postgresql_in_soak"))
    ]
    assert len(marked) > 10, "this looks where such tests are"
    assert Counter(marked) == Counter(
        name for part in PARTS.values() if part.is_marked for name in part.tests
    )


@pytest.mark.parametrize("name", PARTS)
def test_what_a_part_covers_is_there(name: str) -> None:
    assert PARTS[name].digest() == PARTS[name].digest()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("covered/one.py", "covered/deep/two.py", "other.py", "test_it.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    return tmp_path


PART = Part(("test_it.py",), ("covered",))


def test_a_digest_is_that_of_contents_and_names(root: Path) -> None:
    before = PART.digest(root)
    (root / "covered/deep/two.py").write_text("changed")
    changed = PART.digest(root)
    (root / "covered/deep/two.py").rename(root / "covered/deep/three.py")
    renamed = PART.digest(root)
    (root / "covered/four.py").touch()
    added = PART.digest(root)
    (root / "test_it.py").write_text("another test")
    assert len({before, changed, renamed, added, PART.digest(root)}) == 5


def test_what_is_not_covered_and_what_python_leaves_changes_no_digest(root: Path) -> None:
    before = PART.digest(root)
    (root / "other.py").write_text("changed")
    (root / "covered/__pycache__").mkdir()
    (root / "covered/__pycache__/one.pyc").touch()
    (root / "covered/.one.py.swp").touch()
    assert PART.digest(root) == before


def test_a_digest_does_not_depend_on_the_order_or_on_names_that_overlap(root: Path) -> None:
    assert digest_of(("covered", "other.py"), root) == digest_of(("o*.py", "covered/deep", "covered"), root)


def test_a_name_that_nothing_has_is_an_error(root: Path) -> None:
    with pytest.raises(FileNotFoundError, match="gone"):
        digest_of(("covered", "gone.py"), root)


def test_stale_is_what_has_not_passed_on_these_files() -> None:
    ran = {"same": Ran("a", 0, 5), "changed": Ran("a", 0, 5), "failed": Ran("a", 1, 5)}
    digests = {"same": "a", "changed": "b", "failed": "a", "new": "a"}
    assert stale(digests, ran) == ("changed", "failed", "new")


@pytest.mark.parametrize(
    ("budget_s", "run", "left"),
    [
        (4, (), ("dear", "fair", "new", "cheap", "same")),
        (5, ("cheap",), ("dear", "fair", "new", "same")),
        (10, ("cheap", "same"), ("dear", "fair", "new")),
        (30, ("cheap", "same", "fair"), ("dear", "new")),
        (1000, ("cheap", "same", "fair", "dear"), ("new",)),
    ],
)
def test_the_cheapest_run_first_within_the_budget(
    budget_s: int, run: tuple[str, ...], left: tuple[str, ...]
) -> None:
    ran = {"dear": Ran("a", 0, 100), "fair": Ran("a", 0, 20), "cheap": Ran("a", 0, 5), "same": Ran("a", 0, 5)}
    assert choose(("dear", "fair", "new", "cheap", "same"), ran, budget_s) == Choice(run, left)
