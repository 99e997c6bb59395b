"""A replay keeps what operators let each project have, as the service does."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.policies.offerings import CapacityType, Offering
from cluster.policies.policies import Policies
from cluster.scheduling.planner import plan
from cluster.simulator.assumptions import Assumptions
from cluster.simulator.jobs import SimJob
from cluster.simulator.replay import Replay
from cluster.simulator.report import report_of
from cluster.traces.trace import Trace, TraceJob
from remora.spec.worker_sizes import WorkerSizes
from service.what_if.answer import backoff_in_a_replay, replayed

DAY_S, PRICE = 86_400.0, 2.0
OFFERINGS = (
    Offering(
        size="gpu1", zone="1", capacity=CapacityType.ON_DEMAND, resources={"GPU": 1.0}, price_per_hour=PRICE
    ),
)  # fmt: skip


def job(project: str, number: int, at_s: float, workers: int = 1, hours: float = 1.0) -> TraceJob:
    return TraceJob(
        id=f"{project}-{number:02d}",
        at_s=at_s,
        sizes=WorkerSizes(workers, workers),
        resources={"GPU": 1.0},
        work_s=workers * hours * 3600.0,
        project=project,
    )


def policies(nodes: int = 8, min_nodes: int = 0, **projects: dict[str, float]) -> Policies:
    pool = {"sizes": ["gpu1"], "zones": ["1"], "capacity": "on-demand", "max_nodes": nodes, "idle_s": 600}
    pool["min_nodes"] = min_nodes
    return Policies.model_validate({"pools": {"gpu": pool}, "projects": projects})


def run(jobs: list[TraceJob], rule: Policies) -> dict[str, SimJob]:
    trace = Trace(offerings=OFFERINGS, jobs=tuple(sorted(jobs, key=lambda one: one.at_s)))
    return {sim.job.id: sim for sim in replayed(trace, rule, Assumptions()).work.ended}


def most_at_once(sims: list[SimJob]) -> int:
    """Workers that ran side by side."""
    changes = [(sim.started_s or 0.0, sim.job.min_workers) for sim in sims]
    changes += [(sim.ended_s or 0.0, -sim.job.min_workers) for sim in sims]
    most = now = 0
    for _, change in sorted(changes):
        now += change
        most = max(most, now)
    return most


def test_a_project_at_its_quota_holds_up_itself_and_no_other() -> None:
    jobs = [*(job("v", n, 0.0, 2) for n in range(5)), *(job("s", n, 60.0) for n in range(4))]
    ended = run(jobs, policies(v={"gpus": 4}))
    assert len(ended) == len(jobs)
    assert most_at_once([sim for sim in ended.values() if sim.job.project == "v"]) == 4
    starts = [ended[f"s-{n:02d}"].started_s or 0.0 for n in range(4)]
    assert max(starts) < 600.0, "there are nodes for them at once"


def test_a_job_larger_than_the_quota_is_given_up_at_once() -> None:
    trace = Trace(offerings=OFFERINGS, jobs=(job("v", 0, 0.0, 3), job("v", 1, 1.0, 2)))
    report = report_of(replayed(trace, policies(v={"gpus": 2}), Assumptions()))
    assert (report.succeeded, report.failed) == (1, 1)
    assert report.makespan_s < DAY_S


def test_a_project_without_money_goes_on_the_next_day() -> None:
    jobs = [
        *(job("v", n, 0.0 if n < 2 else 4 * 3600.0, hours=3.0) for n in range(4)),
        job("s", 0, 5 * 3600.0),
    ]
    ended = run(jobs, policies(v={"usd_per_day": 3 * PRICE}))
    assert {name: (sim.started_s or 0.0) < DAY_S for name, sim in ended.items()} == {
        "v-00": True, "v-01": True, "v-02": False, "v-03": False, "s-00": True
    }  # fmt: skip
    assert (ended["s-00"].started_s or 0.0) < 5 * 3600.0 + 600.0


def test_days_and_months_in_which_a_project_spends_more_than_it_may_are_counted() -> None:
    # Each project's job holds a node for ten hours of the first day, and for ten of the second, at 2 USD an hour.
    jobs = [job(project, day, day * DAY_S, hours=10.0) for project in "vs" for day in range(2)]
    trace = Trace(offerings=OFFERINGS, jobs=tuple(sorted(jobs, key=lambda one: one.at_s)))

    def violations(budget: dict[str, float], **projects: dict[str, float]) -> tuple[int, int]:
        rule = Policies.model_validate({**policies(**projects).model_dump(), "budget": budget})
        report = report_of(replayed(trace, rule, Assumptions()))
        assert report.succeeded == 4
        return report.project_budget_violations, report.budget_violations

    assert violations({}) == violations({}, v={"usd_per_day": 25.0, "usd_per_month": 50.0}) == (0, 0)
    assert violations({}, v={"usd_per_day": 5.0}) == (2, 0)
    assert violations({}, v={"usd_per_day": 5.0, "usd_per_month": 30.0}, s={"usd_per_day": 5.0}) == (5, 0)
    free = {"steps": {"stop-growing": 10, "spot-only": 10, "shrink": 10, "pause": 10}}
    assert violations({"usd_per_day": 30.0, "usd_per_month": 100.0, **free}, v={"usd_per_day": 5.0}) == (2, 2)


def test_nodes_that_stand_free_are_for_any_job_and_for_the_project_once_it_has_money() -> None:
    jobs = [job("v", 0, 3600.0, hours=3.0), job("v", 1, 3600.0, hours=3.0), job("v", 2, 10 * 3600.0)]
    jobs.append(job("s", 0, 11 * 3600.0))
    ended = run(jobs, policies(min_nodes=1, v={"usd_per_day": 3 * PRICE}))
    assert ended["s-00"].started_s == 11 * 3600.0
    assert DAY_S <= (ended["v-02"].started_s or 0.0) <= DAY_S + 60.0


def test_money_that_is_spent_while_nodes_boot_does_not_take_them_from_their_job() -> None:
    ended = run([job("v", 0, 0.0, 8)], policies(v={"usd_per_day": 8 * PRICE * 200.0 / 3600.0}))
    assert (ended["v-00"].started_s or 0.0) < 600.0


def test_more_jobs_than_a_look_at_the_line_sees_keep_the_quota() -> None:
    ended = run([job("v", n, 0.0) for n in range(60)], policies(60, 60, v={"gpus": 55}))
    assert most_at_once(list(ended.values())) == 55


def test_the_lines_of_projects_at_their_quota_hide_no_job() -> None:
    names = ("a", "b", "c", "d")
    jobs = [job(name, n, 0.0, hours=10.0) for name in names for n in range(60)]
    jobs.append(job("z", 0, 10.0))
    trace = Trace(offerings=OFFERINGS, jobs=tuple(jobs))
    replay = replayed(
        trace, policies(20, **{name: {"gpus": 1} for name in names}), Assumptions(stuck_s=3600.0)
    )
    (sim,) = [sim for sim in replay.work.ended if sim.job.project == "z"]
    assert (sim.started_s or 0.0) < 600.0


class AlwaysAsking(Replay):
    """Asks the planner at every look, also when its answer is known."""

    def _is_plan_empty(self, now: float) -> bool:
        return False


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_every_job_ends_within_the_quota_and_what_is_known_without_the_planner_is_what_it_says(
    seed: int,
) -> None:
    random = Random(seed)
    jobs = [
        job(random.choice("vvs"), n, 400.0 * n * random.random(), random.randint(1, 3), random.random())
        for n in range(25)
    ]
    trace = Trace(offerings=OFFERINGS, jobs=tuple(sorted(jobs, key=lambda one: one.at_s)))
    rule = policies(5, v={"gpus": 3})
    replay = replayed(trace, rule, Assumptions(seed=seed))
    asking = AlwaysAsking(trace, rule, plan, backoff_in_a_replay, Assumptions(seed=seed))
    asking.run()
    assert report_of(replay) == report_of(asking)
    assert len(replay.work.ended) == len(jobs)
    assert most_at_once([sim for sim in replay.work.ended if sim.job.project == "v"]) <= 3
