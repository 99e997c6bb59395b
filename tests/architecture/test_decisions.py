"""Pages on decisions have the numbers, titles and status of the index, and name the later pages that replace them."""

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
NUMBER = re.compile(r"\[(\d{4})\]")
STATUS = re.compile(r"\*((?:Replaced|Partly replaced|Extended) by) \[.*")
#: A row of the index: number, file, title, later decisions.
ROW = re.compile(r"^\| \[(\d{4})\]\(([^)]+)\) \| (.+?) \|(?: (.+))? \|$", re.MULTILINE)


def title(file: str) -> str:
    """The title of a page without its number."""
    return DECISIONS[file].partition("\n")[0].removeprefix(f"# {file[:4]}: ")


def status(text: str) -> str:
    """What the index says of a page's later decisions: "Partly replaced by 0026, 0098", or nothing."""
    notes = [STATUS.match(note) for note in LATER.findall(text)]
    return ", ".join(f"{note[1]} {', '.join(NUMBER.findall(note[0]))}" for note in notes if note)


def test_the_index_has_every_page_once_with_its_title_and_status_in_the_order_of_their_numbers() -> None:
    index = ROW.findall(pages()[f"{FOLDER}README.md"])
    assert index == [(file[:4], file, title(file), status(text)) for file, text in DECISIONS.items()]


@pytest.mark.parametrize("file", DECISIONS)
def test_a_file_is_named_after_the_first_clause_of_its_title(file: str) -> None:
    clause = re.split("[,;:]", title(file))[0].lower().replace("'", "")
    slug = re.sub(r"[^a-z0-9]+", "-", clause).strip("-")
    assert file == f"{file[:4]}-{slug}.md"


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
