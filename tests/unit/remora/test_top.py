"""What `remora top` shows of jobs and pools (pure)."""

from __future__ import annotations

from typing import Any

import pytest

from remora.cli.top import JOB_COLUMNS, POOL_COLUMNS, Overview, job_rows, left, pool_rows
from remora.views import Job, Node, Pool, PoolWait


def job(**fields: Any) -> Job:
    values = {
        "id": "job_1",
        "name": "digits",
        "project": "vision",
        "state": "running",
        "terminal": False,
        "priority": 50,
        "spec": {"workers": {"min": 1, "max": 4}},
        "created_at": 900.0,
        "started_at": 1000.0,
        "version": 1,
        "world_size": 2,
        "step": 100,
        "total_steps": 400,
    }
    return Job.model_validate({**values, **fields})


def row_of(found: Job, now: float = 1050.0) -> dict[str, str]:
    (row,) = job_rows([found], now)
    return dict(zip(JOB_COLUMNS, row, strict=True))


def test_a_running_job_says_how_long_it_still_takes() -> None:
    row = row_of(job())
    assert (row["left"], row["workers"]) == ("2m 30s", "2 of 4")


@pytest.mark.parametrize(
    "fields",
    [{"state": "queued"}, {"step": 0}, {"step": None}, {"total_steps": None}, {"started_at": None}],
)
def test_what_is_not_known_is_not_guessed(fields: dict[str, Any]) -> None:
    assert left(job(**fields), 1050.0) == ""


def test_a_job_beyond_its_last_step_has_no_time_left() -> None:
    assert left(job(step=500), 1050.0) == "0s"


def test_why_it_has_few_workers_comes_before_its_message() -> None:
    assert row_of(job(why_short="1 node is starting", message="fine"))["why"] == "1 node is starting"
    assert row_of(job(message="fine"))["why"] == "fine"
    assert row_of(job(state="queued", reason="waiting_for_nodes"))["why"] == "waiting_for_nodes"


def test_a_pool_shows_its_nodes_their_price_and_what_delays_it() -> None:
    pool = Pool(
        name="gpu",
        max_nodes=8,
        nodes={"ready": 2, "launched": 1},
        waits=[PoolWait(reason="the budget is spent", since=1000.0)],
    )
    nodes = [
        Node(id=f"node_{n}", pool=which, state="ready", price_per_hour=0.5, created_at=1.0)
        for n, which in enumerate(("gpu", "gpu", "cpu"))
    ]
    (row,) = pool_rows(Overview(jobs=[], pools=[pool], nodes=nodes), 1060.0)
    assert dict(zip(POOL_COLUMNS, row, strict=True)) == {
        "pool": "gpu",
        "nodes": "1 launched, 2 ready of 8",
        "USD/h": "1.00",
        "why not more": "the budget is spent (1m 00s)",
    }
