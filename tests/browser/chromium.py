"""The web page in Chromium: what it shows, what it says on its console, and what axe-core finds."""

from __future__ import annotations

import os
import shutil
import site
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.needed import is_missing

ROOT = Path(__file__).parents[2]
#: Milliseconds in which the page shows what a test expects of it.
PATIENCE_MS = 60_000
#: How bad a finding of axe-core is that no view may have.
SERIOUS = {"serious", "critical"}


@dataclass
class Tab:
    """One page of the browser, and what went wrong in it."""

    page: Any
    base: str
    complaints: list[str] = field(default_factory=list)
    #: Requests without an answer, and why.
    failed: list[str] = field(default_factory=list)

    def open(self, view: str) -> None:
        """Show a view, such as `jobs`."""
        self.page.goto(f"{self.base}/#/{view}")

    def shows(self, text: str) -> None:
        """Wait until a text is to be seen."""
        self.page.get_by_text(text).first.wait_for(timeout=PATIENCE_MS)

    def findings(self) -> list[str]:
        """What axe-core finds serious in what is shown now."""
        from axe_playwright_python.sync_playwright import Axe

        violations = Axe().run(self.page).response["violations"]
        return [
            f"{one['id']}: {node['html'][:200]}"
            for one in violations
            if one["impact"] in SERIOUS
            for node in one["nodes"]
        ]

    def picture(self, name: str, part: Any = None) -> None:
        """Keep a picture of the view, or of a part of it, in the folder that PAGE_PICTURES names, or in build/page."""
        path = str(Path(os.environ.get("PAGE_PICTURES") or ROOT / "build" / "page") / f"page-{name}.png")
        if part is None:
            self.page.screenshot(path=path, full_page=True)
        else:
            part.screenshot(path=path)


@contextmanager
def chromium() -> Iterator[Any]:
    """Debian's Chromium, driven by Playwright."""
    packages = list((ROOT / ".venv-browser" / "lib").glob("python*/site-packages"))
    program = shutil.which("chromium")
    if not packages or program is None:
        is_missing("the page is tested in Chromium: make test-tools browser")
    site.addsitedir(str(packages[0]))
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def tab(browser: Any, base: str, width: int = 1280, scheme: str = "light") -> Iterator[Tab]:
    """A page with cookies of its own; at the end it must have said nothing on its console."""
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    opened = Tab(context.new_page(), base)
    opened.page.on(
        "console", lambda said: said.type in ("error", "warning") and opened.complaints.append(said.text)
    )
    opened.page.on("pageerror", lambda error: opened.complaints.append(str(error)))
    opened.page.on("requestfailed", lambda request: opened.failed.append(f"{request.url}: {request.failure}"))
    try:
        yield opened
        assert opened.complaints == []
    except BaseException as error:
        error.add_note(f"its console: {opened.complaints}; requests that failed: {opened.failed}")
        raise
    finally:
        context.close()
