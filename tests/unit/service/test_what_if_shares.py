"""A replay lets projects share the queue by their shares, as the service does."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.policies.offerings import CapacityType, Offering
from cluster.policies.policies import Policies
from cluster.scheduling.planner import plan
from cluster.simulator.assumptions import Assumptions
from cluster.simulator.replay import Replay
from cluster.simulator.report import report_of
from cluster.traces.trace import Trace, TraceJob
from remora.spec.worker_sizes import WorkerSizes
from service.what_if.answer import backoff_in_a_replay, replayed

OFFERINGS = (
    Offering(
        size="gpu4", zone="1", capacity=CapacityType.ON_DEMAND, resources={"CPU": 16.0, "GPU": 4.0}, price_per_hour=9.0
    ),
)  # fmt: skip


def job(project: str, number: int, at_s: float, workers: tuple[int, int] = (4, 4)) -> TraceJob:
    return TraceJob(
        id=f"{project}-{number:02d}",
        at_s=at_s,
        sizes=WorkerSizes(workers[0], workers[1]),
        resources={"GPU": 1.0},
        work_s=4 * 3600.0,
        project=project,
    )


def policies(projects: dict[str, dict[str, float]], nodes: int = 2) -> Policies:
    pool = {"sizes": ["gpu4"], "zones": ["1"], "capacity": "on-demand", "max_nodes": nodes, "idle_s": 600}
    return Policies.model_validate({"pools": {"gpu": pool}, "projects": projects})


def starts(jobs: list[TraceJob], projects: dict[str, dict[str, float]], nodes: int = 2) -> list[str]:
    """Projects in the order in which their jobs started."""
    trace = Trace(offerings=OFFERINGS, jobs=tuple(jobs))
    ended = replayed(trace, policies(projects, nodes), Assumptions()).work.ended
    assert len(ended) == len(jobs)
    return [sim.job.project for sim in sorted(ended, key=lambda sim: (sim.started_s, sim.job.id))]


MANY_AND_FEW = [*(job("many", n, 0.0) for n in range(12)), *(job("few", n, 60.0) for n in range(4))]


def test_a_project_with_many_jobs_does_not_keep_another_waiting() -> None:
    assert starts(MANY_AND_FEW, {}) == ["many"] * 12 + ["few"] * 4
    fair = starts(MANY_AND_FEW, {"few": {"share": 1.0}})
    assert fair[:8].count("few") == 4, "one of two nodes is theirs as long as they have jobs"
    assert fair[8:] == ["many"] * 8


def test_a_larger_share_starts_more_often() -> None:
    jobs = [*(job("many", n, 0.0) for n in range(12)), *(job("few", n, 0.0) for n in range(9))]
    order = starts(jobs, {"few": {"share": 4.0}, "many": {"share": 1.0}}, nodes=5)
    assert order[:10].count("few") == 8, "four of five nodes are theirs"


def test_nodes_are_bought_for_the_job_that_is_next() -> None:
    large = job("many", 1, 1000.0, (8, 8))
    trace = Trace(offerings=OFFERINGS, jobs=(job("many", 0, 0.0), large, job("few", 0, 1001.0)))
    replay = replayed(trace, policies({"few": {"share": 1.0}}, nodes=3), Assumptions())
    first_end = min(sim.ended_s or 0.0 for sim in replay.work.ended)
    bought = [node.created_s for node in replay.fleet.every]
    # The large job is the older one, and its two nodes have no capacity beside one for the other project.
    assert sum(created_s < first_end for created_s in bought) == 2
    assert replay.work.sims["few-00"].started_s == pytest.approx(1080.0 + trace.provisioning_s, abs=60.0)


class AlwaysAsking(Replay):
    """Asks the planner at every look, also when its answer is known."""

    def _is_plan_empty(self, now: float) -> bool:
        return False


@pytest.mark.parametrize("elastic", [False, True])
@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_every_job_ends_and_what_is_known_without_the_planner_is_what_it_says(
    seed: int, elastic: bool
) -> None:
    random = Random(seed)
    jobs = []
    for n in range(25):
        most = random.randint(1, 6)
        least = random.randint(1, most) if elastic else most
        jobs.append(job(random.choice("aab"), n, 400.0 * n * random.random(), (least, most)))
    trace = Trace(offerings=OFFERINGS, jobs=tuple(sorted(jobs, key=lambda one: one.at_s)))
    rule = policies({"b": {"share": 2.0}}, nodes=3)
    replay = replayed(trace, rule, Assumptions(seed=seed))
    asking = AlwaysAsking(trace, rule, plan, backoff_in_a_replay, Assumptions(seed=seed))
    asking.run()
    assert report_of(replay) == report_of(asking)
    assert len(replay.work.ended) == len(jobs)
