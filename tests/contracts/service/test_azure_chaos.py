"""The whole controller over Azure's own clients buys for jobs, while an emulated cloud does everything that clouds do.

Each seed names things that go wrong and a limit, which have to happen and to be reached in it; all others come as they
come.  What holds at every tick stands in `Books.check`, and what people can read afterwards in `Books.check_words`.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from remora.states import JobState
from service.settings import Settings
from service.store.database import Database
from service.store.migrate import migrate
from tests.contracts.cluster.azure_rig import AzureRig
from tests.contracts.service.azure_storm import Storm
from tests.contracts.service.storm_cloud import NEIGHBOURS_VCPUS, machines_of
from tests.contracts.service.storm_limits import BUDGET, LIMITS, PLENTY, Limit
from tests.contracts.service.storm_weather import LEADERS, MIXED, WEATHER

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

TICKS = 28
#: Ticks for which a limit has to hold jobs up.
BOUND_TICKS = 3
GROUPS = ((1, 4), (2, 2), (2, 6), (1, 1), (3, 3))


@dataclass(frozen=True)
class Seed:
    """What has to happen in a storm: things that go wrong, the leader first, and a limit that is reached."""

    number: int

    @property
    def faults(self) -> tuple[str, ...]:
        n = self.number
        return LEADERS[n], WEATHER[(n + 11) % len(WEATHER)], WEATHER[(n + 23) % len(WEATHER)]

    @property
    def limit(self) -> Limit:
        return LIMITS[self.number % len(LIMITS)]

    def __str__(self) -> str:
        return LEADERS[self.number].replace(" ", "-")


SEEDS = tuple(map(Seed, range(len(LEADERS))))


@pytest.fixture
def rig() -> Iterator[AzureRig]:
    with AzureRig(manual_clock=True) as rig:
        rig.knobs(page_size=2)
        yield rig


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    # What differs between databases is not struck here.
    opened = Database(f"sqlite:///{tmp_path / 'remora.db'}")
    migrate(opened)
    yield opened
    opened.close()


def test_every_thing_that_goes_wrong_has_seeds_in_which_it_must_and_so_has_every_limit() -> None:
    faults = Counter(name for seed in SEEDS for name in seed.faults)
    limits = Counter(seed.limit.name for seed in SEEDS)
    assert faults.keys() == set(WEATHER)
    assert min(faults.values()) >= 2
    assert limits.keys() == {limit.name for limit in LIMITS}
    assert min(limits.values()) >= 6


#: Of the storms each sixteenth is among the other tests, and all are in `make soak`.
STORMS = [pytest.param(seed, marks=pytest.mark.soak if seed.number % 16 else ()) for seed in SEEDS]


@pytest.mark.parametrize("seed", STORMS, ids=str)
def test_after_any_weather_all_jobs_are_done_nothing_is_left_and_it_was_reported(
    rig: AzureRig, database: Database, tmp_path: Path, caplog: pytest.LogCaptureFixture, seed: Seed
) -> None:
    storm = Storm(rig, database, Settings(home=tmp_path, nodes=0), seed.number)
    rig.knobs(limits=dict(seed.limit.quotas))
    storm.follow(max_nodes=seed.limit.max_nodes)
    storm.submit(2, 10, steps=120)
    bound = rage(storm, seed)
    assert not storm.weather.missing(seed.faults)
    assert bound >= BOUND_TICKS, f"{seed.limit.name} was not reached"
    storm.calm()
    storm.next_day()
    until(storm, storm.books.is_quiet, seconds=30.0)
    assert {job.state for job in storm.books.all_jobs()} == {JobState.SUCCEEDED}
    storm.books.check_words()
    assert not [one for one in caplog.records if one.exc_info and one.levelno >= logging.ERROR]


def rage(storm: Storm, seed: Seed) -> int:
    """Things go wrong, jobs come, and operators change their minds, until all has happened that must.

    Returns at how many ticks the limit held jobs up.
    """
    choose, limit, bound = storm.random, seed.limit, 0
    lowers = limit is not BUDGET and choose.random() < 0.5
    for number in range(200):
        missing = storm.weather.missing(seed.faults)
        if number >= TICKS and not missing and bound >= BOUND_TICKS:
            break
        if number % 8 == 0:
            storm.submit(*choose.choice(GROUPS), steps=90)
        if number % 4 == 0 and missing:
            storm.weather.happen(missing[0])
        elif choose.random() < 0.5:
            storm.weather.happen(choose.choice(MIXED))
        if lowers and number in (14, 22):
            storm.follow(max_nodes=2 if number == 14 else limit.max_nodes)
        if limit is BUDGET and number >= 14:
            spend_little(storm, is_over=bound >= BOUND_TICKS)
        is_saving = storm.usd < PLENTY
        # Where nothing is to be had, there is an hour later.
        is_sold_out = number > 10 and not machines_of(storm.rig) and choose.random() < 0.3
        is_late = number > TICKS and number % 8 == 7 and not storm.rig.cloud.evictions
        waits = not is_saving and (is_sold_out or is_late)
        storm.tick(3700.0 if waits else choose.uniform(0.2, 12.0 if is_saving else 8.0))
        bound += limit.binds(storm)
    return bound


def spend_little(storm: Storm, *, is_over: bool) -> None:
    """The operators give money for some minutes more, and plenty from the next day on once it `is_over`."""
    if is_over and storm.usd < PLENTY:
        storm.follow(storm.max_nodes)
        storm.next_day()
    elif not is_over and storm.usd == PLENTY and storm.books.workers() > 0:
        storm.follow(storm.max_nodes, usd=1.05 * storm.cost + storm.rate() * 150.0 / 3600.0)


def test_a_hundred_nodes_that_are_taken_at_once_are_bought_again_within_the_limits_and_their_jobs_resume(
    rig: AzureRig, database: Database, tmp_path: Path
) -> None:
    storm = Storm(rig, database, Settings(home=tmp_path, nodes=0), seed=1)
    rig.knobs(
        page_size=50, create_s=6, limits={"lowPriorityCores": 400 + NEIGHBOURS_VCPUS, "standardDSv5Family": 0}
    )
    storm.follow(max_nodes=120, pace=1000.0)
    for _ in range(5):
        storm.submit(20, 50, steps=60)
    until(storm, lambda: storm.books.workers() == 200, seconds=2.0)
    before = set(storm.ray.running())
    storm.take(machines_of(rig))
    assert not machines_of(rig)
    until(storm, lambda: storm.books.workers() == 200, seconds=2.0)
    assert len(before) == len(storm.books.evicted) == 100
    assert not before & set(storm.ray.running())
    rig.knobs(create_s=0)
    until(storm, storm.books.is_quiet, seconds=5.0)
    assert {job.state for job in storm.books.all_jobs()} == {JobState.SUCCEEDED}
    storm.books.check_words()


def until(storm: Storm, is_so: Callable[[], bool], seconds: float) -> None:
    """Ticks `seconds` seconds apart, sixty at most."""
    for _ in range(60):
        storm.tick(seconds)
        if is_so():
            return
    raise AssertionError("it did not come to be so within sixty ticks")
