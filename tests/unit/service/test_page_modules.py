"""The files of the page: all modules are asked for at once, and what loads it again comes before them."""

from __future__ import annotations

import re

import pytest

from service.api.web_page import web_files
from tests.page_scripts import WEB

PAGE = (WEB / "index.html").read_text()


def imported(name: str) -> set[str]:
    """Names of the modules that a module imports, below the folder of the page."""
    found = re.findall(r'^import .* from "\./(.+)";$', (WEB / name).read_text(), re.MULTILINE)
    return set(found)


def reached(name: str) -> set[str]:
    """The module itself, and all that it needs."""
    known, waiting = set[str](), {name}
    while waiting:
        one = waiting.pop()
        known.add(one)
        waiting |= imported(one) - known
    return known


def test_the_page_names_each_module_that_it_needs_and_no_other() -> None:
    (listed,) = re.findall(r"const MODULES = (.+?);", (WEB / "start.js").read_text(), re.DOTALL)
    named = "".join(re.findall(r'"(.*?)"', listed)).split()
    assert sorted(f"{one}.js" for one in named) == sorted(reached("page.js") - {"page.js"})
    unused = {one.name for one in WEB.glob("*.js")} - reached("page.js") - {"start.js"}
    assert unused == set()


def test_the_script_that_loads_the_page_again_comes_before_every_other_file() -> None:
    files = re.findall(r'(?:src|href)="(/web/[^"]+)"', PAGE)
    assert files[0] == "/web/start.js"
    assert '<script src="/web/start.js">' in PAGE, "it is there before the next file is asked for"


def test_what_is_sent_has_no_comments_and_no_indentation_and_is_small() -> None:
    files = web_files()
    own = {name: found.content.decode() for name, found in files.items() if "/" not in name}
    for name, text in own.items():
        if name.endswith((".js", ".css")):
            lines = text.splitlines()
            assert [line for line in lines if line.startswith((" ", "//", "/**", " *"))] == [], name
    vendor = "vendor/htm-preact-3.1.1.js"
    assert files[vendor].content == (WEB / vendor).read_bytes(), "what is not ours stays as it is"
    assert sum(len(found.content) for found in files.values()) < 200_000


@pytest.mark.parametrize("name", sorted(one.name for one in WEB.glob("*.js")))
def test_what_is_sent_has_every_line_of_code(name: str) -> None:
    """Without comments, which here never stand behind code, nothing else is missing."""
    sent = web_files()[name].content.decode()
    code, is_comment = [], False
    for line in map(str.strip, (WEB / name).read_text().splitlines()):
        begins = is_comment or line.startswith("/**")
        if not begins and not line.startswith("//"):
            code.append(line)
        is_comment = begins and not line.endswith("*/")
    assert [line.rstrip() for line in sent.splitlines()] == code
