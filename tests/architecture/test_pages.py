"""What the pages point at exists: files, headings, `make` targets, commands, events."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from remora.cli.main import app
from tests.architecture.repository import ROOT, pages, texts

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
#: A file of ours in running text, such as `service/queue/lifecycle/`.
PATH = re.compile(
    r"`((?:remora|service|cluster|trainers|tests|docs|examples|deploy|benchmarks|requirements)/[\w./-]*)`"
)


@pytest.mark.parametrize("page", sorted(pages()))
def test_every_link_of_a_page_leads_somewhere(page: str) -> None:
    folder = (ROOT / page).parent
    for target in LINK.findall(pages()[page]):
        path, _, heading = target.partition("#")
        if re.match(r"[a-z]+:", target):
            continue
        assert (folder / path).resolve().exists(), f"{page} links to {target}"
        if heading:
            assert heading in headings(folder / path if path else ROOT / page), f"{page} links to {target}"


def headings(page: Path) -> set[str]:
    """Anchors of a page's headings."""
    found = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in found}


@pytest.mark.parametrize("page", sorted(pages()))
def test_every_file_that_a_page_names_is_there(page: str) -> None:
    missing = [name for name in PATH.findall(pages()[page]) if not (ROOT / name).exists()]
    assert missing == []


def test_every_make_target_that_a_page_names_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", texts()["Makefile"], re.MULTILINE))
    for page, text in pages().items():
        code = " ".join(re.findall(r"```.*?```|`[^`]+`", text, re.DOTALL))
        named = set(re.findall(r"(?<![\w/])make ([a-z][a-z-]+)", code))
        assert named <= targets, f"{page} names make targets that do not exist"
    assert {"demo", "test", "check"} <= targets


def test_every_command_that_a_page_shows_exists() -> None:
    commands = {one.name or one.callback.__name__ for one in app.registered_commands if one.callback}
    commands |= {group.name for group in app.registered_groups if group.name}
    for page, text in pages().items():
        code = "\n".join(re.findall(r"```.*?```|`[^`\n]+`", text, re.DOTALL))
        shown = set(re.findall(r"(?<!from )(?:^|(?<=[`(/ ]))remora (?!import)([a-z]+)", code, re.MULTILINE))
        assert shown <= commands, f"{page} shows commands that do not exist"


def test_every_page_is_reachable_from_the_readme() -> None:
    seen: set[Path] = set()
    waiting = [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        if page in seen or page.suffix != ".md":
            continue
        seen.add(page)
        for target in LINK.findall(page.read_text()):
            if not re.match(r"[a-z]+:", target):
                found = (page.parent / target.partition("#")[0]).resolve()
                waiting.extend(found.glob("README.md") if found.is_dir() else [found])
    assert sorted(set(pages()) - {path.relative_to(ROOT).as_posix() for path in seen}) == []
