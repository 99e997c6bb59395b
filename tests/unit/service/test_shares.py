"""Projects share the queue by their shares."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cluster.policies.policies import Policies
from cluster.scheduling.fitting import dominant_part
from cluster.scheduling.pool_sizes import PoolSize
from cluster.scheduling.queue_order import in_order
from cluster.scheduling.shares import Shares, shares_of
from cluster.scheduling.view import JobDemand
from tests.service_fakes import job_row
from tests.unit.service import queue_worlds

GPU = {"GPU": 1.0, "CPU": 4.0}
WHOLE = {"GPU": 16.0, "CPU": 128.0}


def waiting(
    project: str, count: int, at: float = 0.0, workers: int = 1, priority: int = 50
) -> list[JobDemand]:
    return [
        queue_worlds.waiting(
            job_row(
                at + number, project=project, min_workers=workers, max_workers=workers,
                worker_resources=GPU, priority=priority,
            )
        )
        for number in range(count)
    ]  # fmt: skip


def ordered(shares: Shares, jobs: list[JobDemand]) -> list[str]:
    return [job.project for job in shares.order(in_order(jobs))]


def test_a_project_with_twice_the_share_has_two_places_for_each_of_the_other() -> None:
    shares = Shares(shares={"vision": 2.0, "speech": 1.0}, whole=WHOLE)
    jobs = waiting("speech", 3, at=0.0) + waiting("vision", 6, at=100.0)
    order = ordered(shares, jobs)
    for count in (3, 6, 9):
        assert order[:count].count("vision") == 2 * order[:count].count("speech"), order


def test_who_holds_much_waits_until_the_others_hold_as_much() -> None:
    shares = Shares(shares={}, held={"old": 3 / 16}, whole=WHOLE)
    assert ordered(shares, waiting("old", 2, at=0.0) + waiting("new", 4, at=50.0)) == [
        "new", "new", "new", "old", "new", "old",
    ]  # fmt: skip


def test_priority_comes_before_shares_and_large_jobs_count_more() -> None:
    shares = Shares(shares={}, whole=WHOLE)
    urgent = waiting("a", 2, priority=90)
    jobs = urgent + waiting("a", 1) + waiting("b", 3, at=10.0, workers=2)
    assert ordered(shares, jobs)[:2] == ["a", "a"]
    assert ordered(shares, jobs)[2:] == ["b", "a", "b", "b"]


def test_without_shares_priority_and_age_alone_decide() -> None:
    limits = Policies.model_validate({"pools": {"p": {"sizes": ["a"]}}, "projects": {"x": {"gpus": 4}}})
    assert shares_of(limits, [], []) is None


def test_what_runs_is_held_by_its_project_as_a_part_of_the_complete_pools() -> None:
    policies = Policies.model_validate(
        {"pools": {"p": {"sizes": ["a"]}}, "projects": {"x": {"share": 2}, "y": {}}}
    )
    (job,) = waiting("x", 1)
    found = shares_of(policies, [PoolSize("p", 4, {"GPU": 4.0, "CPU": 32.0})], [(job, 4)])
    assert found == Shares(shares={"x": 2.0, "y": 1.0}, held={"x": 0.25}, whole=WHOLE)
    assert dominant_part({}, GPU, 3) is None


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 4), st.sampled_from((10, 50))), max_size=30),
    st.fixed_dictionaries({name: st.floats(0.5, 8.0) for name in "abc"}),
    st.fixed_dictionaries({name: st.floats(0.0, 1.0) for name in "abc"}),
)
def test_no_job_is_lost_priorities_hold_and_a_project_keeps_its_own_order(
    wanted: list[tuple[str, int, int]], weights: dict[str, float], held: dict[str, float]
) -> None:
    jobs = [
        waiting(project, 1, at=float(number), workers=workers, priority=priority)[0]
        for number, (project, workers, priority) in enumerate(wanted)
    ]
    line = in_order(jobs)
    order = Shares(shares=weights, held=held, whole=WHOLE).order(line)
    assert sorted(job.id for job in order) == sorted(job.id for job in jobs)
    assert [job.priority for job in order] == sorted((job.priority for job in order), reverse=True)
    for project in "abc":
        assert [job for job in order if job.project == project] == [j for j in line if j.project == project]
