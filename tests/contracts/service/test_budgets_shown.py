"""Budgets over HTTP and on the command line, on SQLite and on PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from remora import Client
from remora.budget_views import Budget
from remora.cli.exits import ExitCode
from service.queue.lifecycle import NodeDecision
from service.queue.rows import NodeRow
from service.store import nodes, spending
from service.store.database import Database
from service.store.ids import new_id
from tests.command_line import Cli
from tests.contracts.service.two_projects import Service, service_of
from tests.statements import statements

pytestmark = pytest.mark.postgresql_in_soak

#: Noon of a day in the middle of a month, in which no token has expired yet by the clock of the machine.
NOW = datetime(2099, 7, 15, 12, tzinfo=UTC).timestamp()
DOCUMENT = """
pools:
  local: {sizes: [local], capacity: on-demand, max_nodes: 4}
budget: {usd_per_month: 100, steps: {stop-growing: 0.01}}
projects:
"""
RED = "  red: {usd_per_month: 42, usd_per_day: 0}\n"
BLUE = "  blue: {usd_per_month: 9}\n"


@pytest.fixture
def service(database: Database, database_url: str, tmp_path: Path) -> Iterator[Service]:
    with service_of(database, database_url, tmp_path / "home") as opened:
        state = opened.client.app.state  # type: ignore[attr-defined]
        state.remora = replace(state.remora, clock=lambda: NOW)
        yield opened


def apply(service: Service, document: str) -> None:
    based_on = service.made("GET", "/v1/policies/newest")["version"]
    service.made("POST", "/v1/policies", json={"document": document, "based_on": based_on})


def spend(service: Service, usd: float, project: str | None) -> None:
    """A node has cost that in the last hour."""
    node = NodeRow(
        id=new_id("node", NOW), pool="local", created_at=NOW - 3600.0, launched_at=NOW - 3600.0, ended_at=NOW,
        price_per_hour=usd, project=project,
    )  # fmt: skip
    service.database.transact(lambda connection: nodes.insert_node(connection, NodeDecision(node, ())))


def budgets(service: Service, who: str | None = None, **query: Any) -> list[dict[str, Any]]:
    answer = service.ask(who or service.operator, "GET", "/v1/budgets", params=query)
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["items"]
    return found


def names(found: list[dict[str, Any]]) -> list[tuple[str | None, str]]:
    return [(one["project"], one["period"]) for one in found]


def test_without_a_budget_there_is_none(service: Service) -> None:
    assert budgets(service) == []


def test_what_is_spent_is_what_the_planner_counts(service: Service) -> None:
    apply(service, DOCUMENT + RED)
    spend(service, 21.0, "red")
    spend(service, 63.0, None)
    whole, red_day, red = budgets(service)
    counted, of_projects = service.database.query(lambda c: spending.spent(c, NOW))
    assert whole["spent"] == counted.this_month == pytest.approx(84.0)
    assert red["spent"] == of_projects["red"].this_month == pytest.approx(21.0)
    assert whole["fraction"] == pytest.approx(whole["spent"] / 100.0)
    assert whole["course"][-1]["spent"] == pytest.approx(whole["spent"])
    assert (whole["step"], whole["next_step"], whole["next_step_at"]) == ("stop-growing", "pause", 100.0)
    assert (whole["usd_per_hour"], whole["pace_s"]) == (pytest.approx(0.5), 7 * 86_400.0)
    assert whole["runs_out_at"] == pytest.approx(NOW + 32 * 3600.0)
    assert red["usd_per_hour"] == pytest.approx(21.0 / 168)
    assert (red_day["limit"], red_day["fraction"], red_day["step"]) == (0.0, None, "stop-growing")
    assert red_day["runs_out_at"] == NOW


def test_a_role_shows_budgets_of_its_projects_alone(service: Service) -> None:
    apply(service, DOCUMENT + RED + BLUE)
    every = [(None, "month"), ("blue", "month"), ("red", "day"), ("red", "month")]
    assert names(budgets(service)) == every
    submitter = service.token({"red": "submitter", "blue": "viewer"})
    assert names(budgets(service, submitter)) == [("red", "day"), ("red", "month")]
    viewer = service.token({"red": "viewer"})
    assert service.ask(viewer, "GET", "/v1/budgets").status_code == 403
    first = service.made("GET", "/v1/budgets", params={"limit": 3})
    assert names(first["items"]) == every[:3]
    rest = service.made("GET", "/v1/budgets", params={"limit": 3, "cursor": first["next_cursor"]})
    assert (names(rest["items"]), rest["next_cursor"]) == (every[3:], None)


def test_statements_do_not_grow_with_the_projects(service: Service) -> None:
    sent: list[int] = []
    for count in (3, 30):
        apply(service, DOCUMENT + "".join(f"  of-{n}: {{usd_per_month: 9}}\n" for n in range(count)))
        for number in range(count):
            spend(service, 1.0, f"of-{number}")
        assert len(budgets(service)) == count + 1
        with statements(service.client.app.state.remora.database) as found:  # type: ignore[attr-defined]
            budgets(service)
        sent.append(len(found))
    assert sent[0] == sent[1] > 0


def test_the_command_prints_them(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    day = Budget(
        project=None, period="day", begins_at=0.0, ends_at=86_400.0, limit=10.0, spent=6.0, fraction=0.6,
        step="stop-growing", step_in_force="shrink", next_step="pause", next_step_at=10.0, usd_per_hour=0.5,
        pace_s=21_600.0, runs_out_at=70_000.0, course=[],
    )  # fmt: skip
    spent = day.model_copy(update={"project": "red", "limit": 0.0, "spent": 0.0, "fraction": None})
    lasts = day.model_copy(update={"period": "month", "runs_out_at": None, "next_step": None})
    found: list[Budget] = []
    monkeypatch.setattr(Client, "budgets", lambda _: found)
    monkeypatch.setenv("REMORA_SERVER", "http://127.0.0.1:1")
    command = Cli(capsys, "budgets")
    assert command() == ExitCode.OK
    assert "no budget" in command.err
    found += [day, spent, lasts]
    assert command() == ExitCode.OK
    first, second, third = command.out.splitlines()[-3:]
    for words in ("(the cluster)", "6.00 of 10.00", "60 %", "shrink", "pause at 10.00", "0.50", "1970-01-01"):
        assert words in first
    assert "red" in second
    assert "used up" in second
    assert "the month ends" in third
    assert command("--json") == ExitCode.OK
    assert [one["project"] for one in command.json] == [None, "red", None]
