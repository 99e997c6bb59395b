"""The figures of `make house`, on sources whose figures are known."""

from __future__ import annotations

import ast

from tests.architecture import house
from tests.architecture.repository import PACKAGES, sources, tree_of

LONG = "def long():\n" + "    print()\n" * 61
SOURCES = {
    "cluster/__init__.py": "",
    "cluster/one.py": 'from cluster import two\n\n\nclass Place:\n    """A place."""\n',
    "cluster/two.py": "import cluster.three\n\n\nclass Place:\n    pass\n\n\nclass _Own:\n    pass\n",
    "cluster/three.py": LONG,
    "trainers/four.py": "from cluster.three import long\n\n\nclass Place:\n    pass\n\n\nclass _Own:\n    pass\n",
}


def figures(texts: dict[str, str]) -> dict[str, house.Row]:
    return {row.what: row for row in house.rows(texts, lambda name: ast.parse(texts[name]))}


def test_a_long_function_is_named_with_its_line() -> None:
    row = figures(SOURCES)["functions above 60 lines"]
    assert (row.figure, row.places) == (1, ("cluster/three.py:1 long",))


def test_a_docstring_is_no_length() -> None:
    spoken = 'def long():\n    """' + "word\n" * 100 + '    """\n    return 1\n'
    assert figures({"cluster/one.py": spoken})["functions above 60 lines"].figure == 0


def test_a_module_with_one_importer_is_counted_however_it_is_imported() -> None:
    row = figures(SOURCES)["modules with one importer, per cent"]
    assert row.places == ("cluster/two.py",)  # three has two importers, the others none
    assert row.figure == 25


def test_a_module_that_a_list_names_is_counted_apart() -> None:
    listing = {**SOURCES, "trainers/__init__.py": "import trainers.four"}
    row = figures(listing)["of them those that a list names"]
    assert row.figure == 25
    assert figures(SOURCES)["of them those that a list names"].figure == 0


def test_a_public_class_name_is_used_once_in_a_package() -> None:
    row = figures(SOURCES)["public class names used twice in one package"]
    assert row.places == ("Place: cluster/one.py, cluster/two.py",)


def test_a_percentile_is_a_value_that_stands_there() -> None:
    assert house.percentile(range(1, 11), 0.9) == 9
    assert house.percentile(range(1, 12), 0.9) == 10
    assert house.percentile([], 0.9) == 0


def test_the_table_of_this_repository_can_be_printed() -> None:
    printed = [str(row) for row in house.rows(sources(*PACKAGES), tree_of)]
    assert len(printed) == 11
    assert all(len(line) < 110 for line in printed)
