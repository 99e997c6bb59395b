"""The page where requests of it fail, as they do when a laptop changes its network: it is never left empty."""

from __future__ import annotations

from typing import Any

import pytest

from tests.browser.chromium import PATIENCE_MS, Tab, tab

pytestmark = pytest.mark.slow

#: Requests of the page are given up twenty times as soon.
IMPATIENT = "const wait = AbortSignal.timeout; AbortSignal.timeout = (ms) => wait.call(AbortSignal, ms / 20);"


def lose_once(opened: Tab, path: str, *, silently: bool = False) -> None:
    """The first request to that path has no answer: its connection breaks, or nothing is ever said."""
    lost: list[str] = []

    def answer(route: Any) -> None:
        if lost:
            route.continue_()
            return
        lost.append(path)
        if not silently:
            route.abort("connectionreset")

    opened.page.route(f"**{path}", answer)


@pytest.mark.parametrize("file", ["page.js", "words.js", "page.css"])
def test_a_file_that_does_not_arrive_is_loaded_again(browser: Any, api: str, file: str) -> None:
    with tab(browser, api) as opened:
        lose_once(opened, f"/web/{file}")
        opened.page.goto(f"{api}/#/cluster", wait_until="commit")
        opened.page.get_by_role("heading", name="Cluster").wait_for(timeout=PATIENCE_MS)
        opened.page.wait_for_function("() => document.styleSheets.length === 2", timeout=PATIENCE_MS)
        assert [one for one in opened.failed if f"/web/{file}" in one]
        # The browser says on its console what did not arrive: that was meant.
        opened.complaints[:] = [said for said in opened.complaints if "ERR_CONNECTION_RESET" not in said]


def test_requests_that_break_or_are_never_answered_are_made_again(browser: Any, api: str) -> None:
    with tab(browser, api) as opened:
        opened.page.add_init_script(IMPATIENT)
        lose_once(opened, "/v1/sign-in")
        lose_once(opened, "/v1/whoami", silently=True)
        # The page reads it only once.
        lose_once(opened, "/v1/policies/newest")
        opened.page.goto(f"{api}/#/policies")
        opened.page.wait_for_function(
            "() => document.querySelector('textarea')?.value.includes('pools')", timeout=PATIENCE_MS
        )
        opened.complaints[:] = [said for said in opened.complaints if "ERR_CONNECTION_RESET" not in said]
