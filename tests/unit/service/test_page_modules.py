"""The files of the page: all modules are asked for at once, and what loads it again comes before them."""

from __future__ import annotations

import re

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
