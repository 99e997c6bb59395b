"""Pages on decisions have numbers and titles as the index has them, and name the later pages that replace them."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

import pytest

from tests.architecture.repository import pages

FOLDER = "docs/decisions/"
DECISIONS = {
    PurePosixPath(name).name: text
    for name, text in sorted(pages().items())
    if name.startswith(FOLDER) and name != f"{FOLDER}README.md"
}
#: "*Partly replaced by [0072](0072-....md): what of it.*", in the first lines of a page.
LATER = re.compile(r"^\*[A-Z][^*\n]*\[\d{4}\]\([^*\n]+\)[^*\n]*\.\*$", re.MULTILINE)


def test_the_index_has_every_page_once_with_its_title_in_the_order_of_their_numbers() -> None:
    index = re.findall(r"^\| \[(\d{4})\]\(([^)]+)\) \| (.+) \|$", pages()[f"{FOLDER}README.md"], re.MULTILINE)
    titled = [
        (file[:4], file, text.partition("\n")[0].removeprefix(f"# {file[:4]}: "))
        for file, text in DECISIONS.items()
    ]
    assert index == titled


@pytest.mark.parametrize("file", DECISIONS)
def test_a_title_begins_with_the_number_and_a_capital_letter(file: str) -> None:
    assert re.match(rf"# {file[:4]}: (?:[A-Z`]|mpirun )", DECISIONS[file])


@pytest.mark.parametrize("file", DECISIONS)
def test_what_replaces_a_page_at_its_top_is_a_later_page(file: str) -> None:
    for note in LATER.findall(DECISIONS[file]):
        assert all(later > file[:4] for later in re.findall(r"\[(\d{4})\]", note)), note


@pytest.mark.parametrize("file", DECISIONS)
def test_a_page_that_another_one_says_it_replaces_names_it_at_its_top(file: str) -> None:
    for old in re.findall(r"^Replaces .*?(\d{4})\.$", DECISIONS[file], re.MULTILINE):
        (page,) = [text for name, text in DECISIONS.items() if name.startswith(old)]
        assert any(f"[{file[:4]}]" in note for note in LATER.findall(page)), f"{old} does not name {file}"
