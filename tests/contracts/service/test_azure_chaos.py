"""The whole controller over Azure's own clients buys for jobs, while an emulated cloud does everything that clouds do.

Each seed leads with one thing that goes wrong, which has to happen in it; all others come as they come.  What holds at
every turn stands in `Storm.check`, and what people can read afterwards in `Storm.check_words`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from remora.states import JobState
from service.settings import Settings
from service.store.database import Database
from service.store.migrate import migrate
from tests.contracts.cluster.azure_rig import AzureRig
from tests.contracts.service.azure_storm import DAY_S, FAULTS, Storm

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

OTHERS = (
    "an eviction",
    "an eviction of all",
    "a notice",
    "a machine that breaks",
    "a machine that never joins",
    "a machine that joins twice",
    "clocks that go wrong",
    "a death in the middle",
    "a controller that stands still",
)
LEADERS = (*FAULTS, *OTHERS)
#: What happens, and how often: half of it is no refused request.
MIXED = (*LEADERS, *OTHERS, *OTHERS, "slow operations", "machines that join late")
TURNS = 28
GROUPS = ((1, 4), (2, 2), (2, 6), (1, 1), (3, 3))


@pytest.fixture
def rig() -> Iterator[AzureRig]:
    with AzureRig(own_time=True) as rig:
        rig.knobs(page_size=2)
        yield rig


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    # What differs between databases is not struck here.
    opened = Database(f"sqlite:///{tmp_path / 'remora.db'}")
    migrate(opened)
    yield opened
    opened.close()


@pytest.mark.parametrize("seed", range(len(LEADERS)), ids=lambda at: LEADERS[at].replace(" ", "-"))
def test_after_any_weather_all_jobs_are_done_nothing_is_left_and_it_was_told(
    rig: AzureRig, database: Database, tmp_path: Path, caplog: pytest.LogCaptureFixture, seed: int
) -> None:
    storm = Storm(rig, database, Settings(home=tmp_path, nodes=0), seed)
    rig.knobs(limits={"lowPriorityCores": 20, "standardDSv5Family": 12, "cores": 8})
    storm.follow(max_nodes=6)
    storm.submit(2, 6, steps=120)
    rage(storm, LEADERS[seed])
    assert storm.has_happened(LEADERS[seed])
    storm.calm()
    # The next day: what was refused, or spent, is so no more.
    storm.turn((30.0 - rig.clock()) % DAY_S)
    until(storm, storm.is_quiet, seconds=30.0)
    assert {storm.job(job_id).state for job_id in storm.crew.length} == {JobState.SUCCEEDED}
    storm.check_words()
    assert not [one for one in caplog.records if one.exc_info and one.levelno >= logging.ERROR]


def rage(storm: Storm, leader: str) -> None:
    """Things go wrong, jobs come, and operators change their minds, until the leader has happened too."""
    choose = storm.random
    lowers = choose.choice(["money", "nodes", "nothing"])
    for number in range(200):
        if number >= TURNS and storm.has_happened(leader):
            return
        if number % 8 == 0:
            storm.submit(*choose.choice(GROUPS), steps=90)
        if number % 4 == 0 and not storm.has_happened(leader):
            storm.happen(leader)
        elif choose.random() < 0.5:
            storm.happen(choose.choice(MIXED))
        if number == 14 and lowers == "money":
            storm.follow(max_nodes=6, usd=1.05 * storm.cost + storm.rate() * 200.0 / 3600.0)
        elif number == 14 and lowers == "nodes":
            storm.follow(max_nodes=3)
        # Where nothing is to be had, there is an hour later.
        is_sold_out = number > 10 and not storm.rig.cloud.machines and choose.random() < 0.3
        storm.turn(3700.0 if is_sold_out else choose.uniform(0.2, 8.0))


def test_a_hundred_nodes_that_are_taken_at_once_are_bought_again_within_the_limits_and_their_jobs_resume(
    rig: AzureRig, database: Database, tmp_path: Path
) -> None:
    storm = Storm(rig, database, Settings(home=tmp_path, nodes=0), seed=1)
    rig.knobs(page_size=50, create_s=6, limits={"lowPriorityCores": 400, "standardDSv5Family": 0})
    storm.follow(max_nodes=120, pace=1000.0)
    for _ in range(5):
        storm.submit(20, 50, steps=60)
    until(storm, lambda: storm.workers() == 200, seconds=2.0)
    before = set(storm.ray.running())
    storm.take(list(rig.cloud.machines.values()))
    assert not rig.cloud.machines
    until(storm, lambda: storm.workers() == 200, seconds=2.0)
    assert len(before) == len(storm.evicted) == 100
    assert not before & set(storm.ray.running())
    rig.knobs(create_s=0)
    until(storm, storm.is_quiet, seconds=5.0)
    assert {storm.job(job_id).state for job_id in storm.crew.length} == {JobState.SUCCEEDED}
    storm.check_words()


def until(storm: Storm, is_so: Callable[[], bool], seconds: float) -> None:
    """Turns so many seconds apart, sixty at most."""
    for _ in range(60):
        storm.turn(seconds)
        if is_so():
            return
    raise AssertionError("it did not come to be so within sixty turns")
