"""Loops that are not ours go on in place with a sharded model, and end where `ShardedLoop` does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from remora.torch.sharded import ShardedSteps
from tests.golden.sharded_worker import ShardedJob
from tests.golden.test_sharded import ShardedDriver, assert_same, undisturbed

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


@pytest.mark.framework("FSDP2 with ShardedSteps", "resumes")
def test_a_checkpoint_resumes_with_other_workers(tmp_path: Path) -> None:
    with StepsDriver(PLAIN, tmp_path / "first") as first:
        first.start(2)
        first.reach(3)
        saved = first.checkpoint()
        for worker in first.living:
            first.kill(worker.slot)
    folder = tmp_path / "first" / f"checkpoint-{saved}"
    with StepsDriver(PLAIN, tmp_path / "second", REMORA_RESUME_DIR=str(folder)) as second:
        second.start(1)
        second.finish()
        assert min(second.record()) == saved + 1
        weights, _ = undisturbed(replace(PLAIN, style="loop"))
        for name, value in second.weights().items():
            torch.testing.assert_close(value, weights[name], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"snapshot_every": 2}, "leave out snapshot_every"),
        ({"state": {"scheduler": object()}}, "is a name that ShardedSteps uses itself"),
        ({"state": {"mine": object()}}, "needs the methods state_dict"),
    ],
)
def test_arguments_that_cannot_work_are_refused(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        ShardedSteps(lambda _mesh: (), data=range(8), global_batch=4, shards=2, total_steps=2, **arguments)


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
