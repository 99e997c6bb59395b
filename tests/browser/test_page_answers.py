"""What the page shows in Chromium of lists that go on, of jobs that have ended, and of requests that are refused."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from service.settings import Settings
from tests.browser.api_server import api_server
from tests.browser.chromium import PATIENCE_MS, Tab, chromium, tab

pytestmark = pytest.mark.slow

HOUR = 3600.0


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as browser:
        yield browser


@pytest.fixture
def service(tmp_path: Path) -> Iterator[str]:
    """An API without a controller: its jobs wait."""
    settings = Settings(home=tmp_path / "home")
    settings.home.mkdir()
    with api_server(settings) as address:
        yield address


@pytest.fixture
def page(browser: Any, service: str) -> Iterator[Tab]:
    with tab(browser, service) as opened:
        yield opened
        # The browser reports each answer that is an error on its console: they are meant here.
        opened.complaints[:] = [said for said in opened.complaints if "the server responded with" not in said]


def submit(service: str, name: str) -> str:
    """The id of a job that waits."""
    answer = httpx2.post(f"{service}/v1/jobs", json={"name": name, "command": "python train.py"})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def answer(page: Tab, path: str, status: int, body: dict[str, Any]) -> None:
    """The page gets that answer of each request whose path and query match a pattern."""
    page.page.route(
        re.compile(path),
        lambda route: route.fulfill(status=status, content_type="application/json", body=json.dumps(body)),
    )


def test_all_pages_of_jobs_stay_complete_and_are_read_again(page: Tab, service: str) -> None:
    ids = [submit(service, f"train-{number:03}") for number in range(103)]
    page.open("jobs")
    rows = page.page.locator("tbody tr")
    page.page.get_by_role("button", name="Older jobs").click(timeout=PATIENCE_MS)
    page.page.get_by_role("link", name="train-000").wait_for(timeout=PATIENCE_MS)
    assert rows.count() == 103
    submit(service, "newest")
    assert httpx2.post(f"{service}/v1/jobs/{ids[0]}/cancel").status_code == 202
    page.page.get_by_role("link", name="newest").wait_for(timeout=PATIENCE_MS)
    oldest = rows.filter(has_text="train-000")
    oldest.locator(".state.cancelled").wait_for(timeout=PATIENCE_MS)
    assert rows.filter(has_text="train-003").count() == 1, "it was the last one of the first page"
    assert rows.count() == 104


def test_one_job_that_has_ended_does_not_keep_others_from_being_cancelled(page: Tab, service: str) -> None:
    ids = {name: submit(service, name) for name in ("first", "ended", "last")}
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


def test_a_picture_that_ends_before_the_job_says_so(page: Tab, service: str) -> None:
    job_id = submit(service, "watched")
    assert httpx2.post(f"{service}/v1/jobs/{job_id}/cancel").status_code == 202
    job = httpx2.get(f"{service}/v1/jobs/{job_id}").json()
    began = job["created_at"] - 2 * HOUR
    answer(page, f"/v1/jobs/{job_id}$", 200, {**job, "created_at": began, "started_at": began})
    kinds = ["job.queued", "attempt.created", "worker_group.started", "attempt.started"]

    def events(route: Any) -> None:
        """A thousand events, ten in a second, of a list that goes on."""
        (first,) = re.findall(r"cursor=(\d+)", route.request.url) or [0]
        items = [
            {
                "seq": seq,
                "at": began + seq / 10,
                "message": f"Event {seq}.",
                "data": {},
                "kind": kinds[seq - 1] if seq <= len(kinds) else "checkpoint.committed",
            }
            for seq in range(int(first) + 1, int(first) + 1001)
        ]
        route.fulfill(json={"items": items, "next_cursor": str(items[-1]["seq"])})

    page.page.route(re.compile(f"/v1/jobs/{job_id}/events"), events)
    page.open(f"jobs/{job_id}")
    page.shows("The picture ends with event 20,000, on ")
    page.shows("when it was submitted; the first 33 min 20 s are shown.")
    page.page.get_by_text("The first 20,000 events").click()
    page.page.get_by_role("cell", name="Event 20000.", exact=True).wait_for(timeout=PATIENCE_MS)
    spans = page.page.locator("svg.life rect.fill-training title").all_text_contents()
    assert any("training for 33 min" in span for span in spans), "the two hours are not known to be training"
    assert not any("training for 1 h" in span or "training for 2 h" in span for span in spans)
    page.shows("It has lost no worker to a preemption or failure until then.")
    assert page.findings() == []


#: An hour of training and an hour of Ray programs.
GOODPUT = {
    "job_id": None, "since": 0, "until": 1, "scheduling": 1.0, "runtime": 1.0, "program": None, "goodput": 1.0,
    "trained_node_s": 3600.0, "node_s": 7200.0, "gpu_s": 0.0, "cost": 2.0, "losses": [],
    "sentence": "50% of 2.00 USD trained.",
}  # fmt: skip


def test_an_account_that_is_refused_leaves_the_others(page: Tab, service: str) -> None:
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


def test_the_part_of_the_paid_time_that_trained_counts_ray_programs(page: Tab, service: str) -> None:
    answer(page, r"/v1/goodput", 200, GOODPUT)
    page.open("costs")
    goodput = page.page.locator(".card", has=page.page.get_by_role("heading", name="Goodput"))
    goodput.get_by_text("50.0 % of the paid time trained").wait_for(timeout=PATIENCE_MS)


def test_the_cost_of_a_job_counts_what_was_paid_while_machines_started(page: Tab, service: str) -> None:
    job_id = submit(service, "paid")
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
