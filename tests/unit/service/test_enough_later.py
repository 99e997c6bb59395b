"""The reason of the job that is next says when the ends of running jobs may leave enough, where they are known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from cluster.scheduling.free_later import Ends
from cluster.scheduling.pool_sizes import PoolSize
from cluster.scheduling.view import JobDemand, NodeView
from remora.spec.worker_sizes import WorkerSizes
from remora.states import AttemptState
from service.queue.demand import ends_at
from service.queue.rows import AttemptRow
from tests.service_fakes import job_row
from tests.unit.service.queue_worlds import decide, ready, running

GPU = {"GPU": 1.0}
POOL = PoolSize("p", 3, {"GPU": 2.0})
NOW = 100_000.0


def world(**gpus_of: int) -> tuple[list[JobDemand], list[NodeView]]:
    """Jobs by name that hold both GPUs of as many nodes each."""
    jobs = [running(WorkerSizes(2 * n, 2 * n), GPU, name=name) for name, n in gpus_of.items()]
    nodes = [
        ready(f"{name}{at}", "p", {"GPU": 2.0}, jobs={name: 2})
        for name, count in gpus_of.items()
        for at in range(count)
    ]
    return jobs, nodes


def said(workers: int, ends: Mapping[str, float], jobs: list[JobDemand], nodes: list[NodeView]) -> str:
    one = job_row(min_workers=workers, max_workers=workers, worker_resources=GPU)
    (wait,) = decide([one], jobs, nodes, [POOL], ends=Ends(NOW, ends)).waits
    assert wait.reason.startswith(f"is next: it needs {workers} worker")
    return wait.reason.partition("; ")[2]


def test_the_first_ends_that_are_enough_say_it() -> None:
    jobs, nodes = world(a=1, b=1, c=1)
    ends = {"a": NOW + 50.0, "b": NOW + 350.0, "c": NOW + 3000.0}
    assert said(1, ends, jobs, nodes).startswith("enough may be free at about 1970-01-02 03:48:00 UTC, if")
    assert said(4, ends, jobs, nodes).startswith("enough may be free at about 1970-01-02 03:53:00 UTC, if")
    assert said(5, ends, jobs, nodes).startswith("enough may be free at about 1970-01-02 04:40:00 UTC, if")


def test_nothing_is_said_where_the_ends_that_are_known_are_not_enough() -> None:
    jobs, nodes = world(a=1, b=1)
    assert said(3, {"a": NOW + 50.0}, jobs, nodes) == ""
    assert said(1, {}, jobs, nodes) == ""
    assert said(1, {"gone": NOW + 50.0}, jobs, nodes) == ""
    assert said(1, {"a": NOW - 1.0}, jobs, nodes) == "", "it is late, and nothing is known any more"


def test_what_another_group_may_grow_to_is_not_free() -> None:
    jobs, nodes = world(a=1, b=1)
    grows = replace(jobs[1], sizes=WorkerSizes(2, 4))
    assert said(1, {"a": NOW + 50.0}, [jobs[0], grows], nodes) == ""


def test_what_a_job_gives_back_is_free_on_nodes_of_which_free_resources_are_counted() -> None:
    jobs, nodes = world(a=1)
    counted = [replace(nodes[0], free={"GPU": 0.0})]
    assert said(2, {"a": NOW + 50.0}, jobs, counted) != ""


def test_a_time_is_rounded_so_that_an_estimate_that_moves_a_little_is_the_same() -> None:
    jobs, nodes = world(a=1)
    for left in (40_000.0, 40_400.0):
        assert "1970-01-02 15:00:00 UTC" in said(1, {"a": NOW + left}, jobs, nodes)


def attempt_row(started_at: float | None) -> AttemptRow:
    return AttemptRow(
        id="att_1",
        job_id="job_1",
        attempt=1,
        state=AttemptState.RUNNING,
        created_at=1.0,
        started_at=started_at,
    )


@pytest.mark.parametrize(
    ("steps", "run_time_s", "end"),
    [
        ((100, 400), None, 1300.0),
        ((100, 400), 250.0, 1150.0),
        ((100, 400), 5000.0, 1300.0),
        # Of what comes after the last step nothing is known.
        ((400, 400), None, None),
        # Too little was done to say it.
        ((1, 1000), None, None),
        ((None, None), None, None),
        ((None, None), 250.0, 1150.0),
        ((None, None), 50.0, None),
    ],
)
def test_a_job_ends_at_its_mean_pace_or_its_limit(
    steps: tuple[int | None, int | None], run_time_s: float | None, end: float | None
) -> None:
    job = job_row(step=steps[0], total_steps=steps[1], run_time_s=run_time_s)
    assert ends_at(job, attempt_row(started_at=900.0), 1000.0) == end
    assert ends_at(job, attempt_row(started_at=None), 1000.0) is None
    assert ends_at(replace(job, run_time_s=None), attempt_row(started_at=990.0), 1000.0) is None
