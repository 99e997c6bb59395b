"""`docs/page.md` shows the pictures that the tests in Chromium make, and no others."""

from __future__ import annotations

import re

from tests.architecture.repository import ROOT, pages, texts

MADE = re.compile(r"\.picture\(\"([\w-]+)\"")
SHOWN = re.compile(r"!\[[^\]]+\]\(page-([\w-]+)\.png\)")


def test_every_picture_of_the_page_is_made_by_a_test_and_every_one_made_is_shown() -> None:
    made = {
        name
        for path, text in texts().items()
        if path.startswith("tests/browser/")
        for name in MADE.findall(text)
    }
    shown = set(SHOWN.findall(pages()["docs/page.md"]))
    assert made == shown
    assert len(shown) >= 6
    assert {path.name for path in (ROOT / "docs").glob("page-*.png")} == {
        f"page-{name}.png" for name in shown
    }
