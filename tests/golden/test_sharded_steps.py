"""Loops that are not ours go on in place with a sharded model, and end where `ShardedLoop` does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.golden.sharded_worker import ShardedJob
from tests.golden.test_sharded import ShardedDriver, assert_same

pytestmark = [pytest.mark.timeout(600)]

PLAIN, TRAINER = ShardedJob(style="plain"), ShardedJob("resnet", style="trainer", micro_batch=2)


class StepsDriver(ShardedDriver):
    #: A step that is reported and not committed is computed again.
    repeated = 1


@pytest.mark.framework("FSDP2 with ShardedSteps", "runs")
@pytest.mark.framework("FSDP2 with ShardedSteps", "in place")
@pytest.mark.framework("FSDP2 with ShardedSteps", "exact samples")
@pytest.mark.framework("FSDP2 with ShardedSteps", "metrics")
@pytest.mark.parametrize("job", [pytest.param(PLAIN, id="plain"), pytest.param(TRAINER, id="trainer")])
def test_a_lost_rank_0_and_a_new_worker_repeat_no_committed_step(job: ShardedJob, tmp_path: Path) -> None:
    with StepsDriver(job, tmp_path) as driver:
        driver.start(3)
        joiner = driver.add()
        driver.reach(7)
        driver.kill(0)
        driver.recover()
        driver.reach(driver.step + 4)
        driver.admit(joiner)
        driver.finish()
        assert driver.world_sizes == [3, 2, 3]
        assert_same(job, driver)
        assert sorted(driver.losses) == list(range(1, job.steps + 1))


@pytest.mark.soak
@pytest.mark.parametrize(
    "job",
    [
        pytest.param(replace(PLAIN, samples=22, shards=5), id="workers without samples of their own"),
        pytest.param(replace(PLAIN, damaged=17), id="a batch that is left out"),
    ],
)
def test_other_shapes_of_training(job: ShardedJob, tmp_path: Path) -> None:
    with StepsDriver(job, tmp_path) as driver:
        driver.start(3)
        driver.reach(5)
        driver.kill(2)
        driver.recover()
        driver.finish()
        assert_same(job, driver)
