"""What the page shows in Chromium of lists that go on, of jobs that have ended, and of requests that are refused."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from tests.browser.chromium import PATIENCE_MS, Tab, tab

pytestmark = pytest.mark.slow


@pytest.fixture
def page(browser: Any, api: str) -> Iterator[Tab]:
    with tab(browser, api) as opened:
        yield opened
        # The browser reports each answer that is an error on its console: they are meant here.
        opened.complaints[:] = [said for said in opened.complaints if "the server responded with" not in said]


def submit(api: str, name: str) -> str:
    """The id of a job that waits."""
    answer = httpx2.post(f"{api}/v1/jobs", json={"name": name, "command": "python train.py"})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def answer(page: Tab, path: str, status: int, body: dict[str, Any]) -> None:
    """The page gets that answer of each request whose path and query match a pattern."""
    page.page.route(
        re.compile(path),
        lambda route: route.fulfill(status=status, content_type="application/json", body=json.dumps(body)),
    )


def test_all_pages_of_jobs_stay_complete_and_are_read_again(page: Tab, api: str) -> None:
    ids = [submit(api, f"train-{number:03}") for number in range(103)]
    page.open("jobs")
    rows = page.page.locator("tbody tr")
    page.page.get_by_role("button", name="Older jobs").click(timeout=PATIENCE_MS)
    page.page.get_by_role("link", name="train-000").wait_for(timeout=PATIENCE_MS)
    assert rows.count() == 103
    submit(api, "newest")
    assert httpx2.post(f"{api}/v1/jobs/{ids[0]}/cancel").status_code == 202
    page.page.get_by_role("link", name="newest").wait_for(timeout=PATIENCE_MS)
    oldest = rows.filter(has_text="train-000")
    oldest.locator(".state.cancelled").wait_for(timeout=PATIENCE_MS)
    assert rows.filter(has_text="train-003").count() == 1, "it was the last one of the first page"
    assert rows.count() == 104


def test_what_is_typed_into_a_filter_stays_while_the_table_updates_itself(page: Tab, api: str) -> None:
    submit(api, "waits")
    page.open("jobs")
    page.shows("waits")
    label = page.page.get_by_role("textbox", name="Label")
    label.press_sequentially("kind=no")
    newer = submit(api, "newer")
    page.page.get_by_text(newer).wait_for(timeout=PATIENCE_MS)
    assert label.input_value() == "kind=no"
    label.press_sequentially("ne")
    label.press("Enter")
    page.shows("No job matches.")
    assert page.page.url.endswith("#/jobs?label=kind%3Dnone")


def test_one_job_that_has_ended_does_not_keep_others_from_being_cancelled(page: Tab, api: str) -> None:
    ids = {name: submit(api, name) for name in ("first", "ended", "last")}
    detail = "the job has ended already: succeeded"
    answer(page, f"/v1/jobs/{ids['ended']}/cancel", 409, {"code": "not_cancellable", "detail": detail})
    page.page.on("dialog", lambda dialog: dialog.accept())
    page.open("jobs")
    for name in ids:
        page.page.get_by_role("checkbox", name=f"select {name}").check(timeout=PATIENCE_MS)
    page.page.get_by_role("button", name="Cancel 3 selected").click()
    page.shows(f"1 job was not cancelled: ended ({detail}).")
    page.page.locator(".state.cancelled").nth(1).wait_for(timeout=PATIENCE_MS)
    assert page.page.locator(".state.cancelled").count() == 2
    assert page.findings() == []


#: An hour of training and an hour of Ray programs.
GOODPUT = {
    "job_id": None, "since": 0, "until": 1, "scheduling": 1.0, "runtime": 1.0, "program": None, "goodput": 1.0,
    "trained_node_s": 3600.0, "node_s": 7200.0, "gpu_s": 0.0, "cost": 2.0, "losses": [],
    "sentence": "50% of 2.00 USD trained.",
}  # fmt: skip


def test_an_account_that_is_refused_leaves_the_others(page: Tab, api: str) -> None:
    detail = "the nodes and hours of this range are too many for one answer"
    answer(page, r"/v1/costs\?by=hour", 422, {"detail": detail, "hint": "ask for a shorter range of time"})
    answer(page, r"/v1/costs\?by=job", 422, {"detail": "the answer has more lines than the 10000"})
    project = {"of": {"project": "vision"}, "node_s": 7200.0, "gpu_s": 0.0, "cost": 2.0}
    report = {"lines": [project], "node_s": 7200.0, "cost": 2.0, "next_cursor": None}
    answer(page, r"/v1/costs\?by=project", 200, report)
    answer(page, r"/v1/goodput", 200, GOODPUT)
    page.open("costs?days=31")
    for title, text in [
        ("By cause", detail),
        ("Jobs", "more lines"),
        ("Projects", "vision"),
        ("Pools", "share"),
    ]:
        card = page.page.locator(".card", has=page.page.get_by_role("heading", name=title))
        card.get_by_text(re.compile(text)).first.wait_for(timeout=PATIENCE_MS)
    page.shows("50% of 2.00 USD trained.")
    page.shows("2.00 USD for 2 h of nodes")
    assert page.findings() == []


def test_the_part_of_the_paid_time_that_trained_counts_ray_programs(page: Tab, api: str) -> None:
    answer(page, r"/v1/goodput", 200, GOODPUT)
    page.open("costs")
    goodput = page.page.locator(".card", has=page.page.get_by_role("heading", name="Goodput"))
    goodput.get_by_text("50.0 % of the paid time trained").wait_for(timeout=PATIENCE_MS)


def test_the_cost_of_a_job_counts_what_was_paid_while_machines_started(page: Tab, api: str) -> None:
    job_id = submit(api, "paid")
    ledger = {
        "job_id": job_id,
        "at": 1_780_000_000.0,
        "lines": [],
        "node_s": 3600.0,
        "cost": 1.0,
        "start_up_s": 600.0,
        "start_up_cost": 0.25,
        "budget": 5.0,
    }
    answer(page, f"/v1/jobs/{job_id}/ledger", 200, ledger)
    page.open(f"jobs/{job_id}")
    card = page.page.locator(".cards .card", has_text=re.compile("^Cost"))
    card.get_by_text("1.25 USD").wait_for(timeout=PATIENCE_MS)
    assert "for 1 h 10 min of nodes, also while they started" in card.inner_text()
    assert "1.00 USD of its budget of 5.00 USD" in card.inner_text(), "it counts what workers held"
    page.page.get_by_text("Specification", exact=True).click()
    page.page.get_by_text('"command"').wait_for(timeout=PATIENCE_MS)
