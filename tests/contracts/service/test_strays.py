"""Drivers of attempts that the database does not know, as it was put back to a time before they began."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.settings import Settings
from service.store.database import Database
from tests.service_fakes import World

pytestmark = pytest.mark.postgresql_in_soak


def test_the_driver_of_an_unknown_attempt_is_ended_and_no_other(database: Database, tmp_path: Path) -> None:
    world = World(database, Settings(home=tmp_path, nodes=2, node_cpus=1))
    known = world.submit()
    for _ in world.ticks_until("the job runs"):
        if any(driver.has_plan for driver in world.launcher.drivers.values()):
            break
    (attempt,) = world.attempts(known)
    world.launcher.lists_attempts = True
    # Another world, of which this database knows nothing.
    stray = "att_that_was_made_after_the_backup"
    world.launcher.drivers[stray] = world.launcher.drivers[attempt.id]
    world.launcher.failing["kill"] = RuntimeError("the cluster does not answer")
    world.tick()
    assert set(world.launcher.drivers) == {attempt.id, stray}
    del world.launcher.failing["kill"]
    world.tick()
    assert set(world.launcher.drivers) == {attempt.id}
    assert world.job(known).attempt == 1
