"""What the page shows of money in Chromium: budgets with their courses, prices, and shares of projects."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from cluster.policies.offerings import CapacityType, Offering
from service.queue.lifecycle import NodeDecision
from service.queue.market import to_data
from service.queue.rows import NewEvent, NodeRow
from service.settings import Settings
from service.store import nodes
from service.store.database import Database
from service.store.ids import new_id
from service.store.migrate import migrate
from service.store.policies import append_cluster_event
from tests.browser.api_server import api_server
from tests.browser.chromium import PATIENCE_MS, tab

pytestmark = pytest.mark.slow

DOCUMENT = """
pools:
  local: {sizes: [local], capacity: on-demand, max_nodes: 4}
budget: {usd_per_month: 100, usd_per_day: 50, steps: {stop-growing: 0.5, spot-only: 0.8}}
projects:
  vision: {usd_per_month: 30, share: 2, jobs: 8}
"""


@pytest.fixture
def service(tmp_path: Path) -> Iterator[str]:
    """Address of a service that has paid for nodes of a project on some days."""
    settings = Settings(home=tmp_path / "home")
    settings.home.mkdir()
    database = Database(settings.database)
    migrate(database)
    now = time.time()
    for days, hours, price in [(9, 8, 0.4), (6, 8, 0.5), (5, 8, 0.3), (4, 8, 0.6), (2, 20, 0.4), (0, 1, 9.0)]:
        begins_at = now - days * 86_400 - 3600.0
        node = NodeRow(
            id=new_id("node", now), pool="local", created_at=begins_at, launched_at=begins_at,
            ended_at=begins_at + hours * 3600.0 if days else None, price_per_hour=price, project="vision",
        )  # fmt: skip
        database.transact(lambda connection, node=node: nodes.insert_node(connection, NodeDecision(node, ())))
    at_home = Offering(
        size="local", zone=None, capacity=CapacityType.ON_DEMAND, resources={"CPU": 1.0}, price_per_hour=0.25
    )
    read = NewEvent(at=now, kind="offerings.read", message="read", data={"offerings": to_data([at_home])})
    database.transact(lambda connection: append_cluster_event(connection, read))
    database.close()
    with api_server(settings) as address:
        yield address


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "light"), (1280, "dark")])
def test_budgets_are_drawn_and_said_in_words(browser: Any, service: str, width: int, scheme: str) -> None:
    with tab(browser, service, width, scheme) as opened:
        opened.open("costs")
        opened.page.locator("main h1").wait_for(timeout=PATIENCE_MS)
        assert opened.page.get_by_role("heading", name="Budgets").count() == 0, "there is none"
        answer = httpx2.post(f"{service}/v1/policies", json={"document": DOCUMENT, "based_on": 0})
        assert answer.status_code == 201, answer.text
        opened.page.reload()
        opened.page.get_by_role("heading", name="Budgets").wait_for(timeout=PATIENCE_MS)
        card = opened.page.get_by_label("budgets", exact=True)
        card.get_by_role("heading", name="Project vision, this month").wait_for(timeout=PATIENCE_MS)
        assert card.get_by_role("img").count() == 3
        opened.shows("of 50 USD of this day are spent; at the pace of the last 6 h it lasts until")
        opened.shows("Next: stop-growing at 50 USD, when no more nodes are bought.")
        assert opened.findings() == []
        wide = opened.page.evaluate("document.documentElement.scrollWidth")
        assert wide <= width
        if (width, scheme) == (1280, "light"):
            opened.picture("budgets", card)


def test_the_cluster_shows_what_its_cloud_sells_and_shares_of_projects(browser: Any, service: str) -> None:
    answer = httpx2.post(f"{service}/v1/policies", json={"document": DOCUMENT, "based_on": 0})
    assert answer.status_code == 201, answer.text
    job = {"command": "python train.py", "project": "vision"}
    assert httpx2.post(f"{service}/v1/jobs", json=job).status_code == 201
    with tab(browser, service, 390) as opened:
        opened.open("cluster")
        row = opened.page.get_by_role("region", name="projects").get_by_role("row").filter(has_text="vision")
        row.get_by_text("1 of 8").wait_for(timeout=PATIENCE_MS)
        assert row.get_by_role("progressbar", name="jobs of vision").get_attribute("aria-valuenow") == "13"
        opened.page.get_by_text("1 offering, from 0.25 USD per hour").click()
        market = opened.page.get_by_role("region", name="offerings of local")
        market.get_by_text("sells it").wait_for(timeout=PATIENCE_MS)
        assert market.get_by_text("never").count() == 1, "the cloud does not take it back"
        assert opened.findings() == []
        wide = opened.page.evaluate("document.documentElement.scrollWidth")
        assert wide <= 390
