"""A stream that knows its place, and one for each shard: a run that loses and gains workers, and one that resumes."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch

from tests.golden.driver import Driver
from tests.golden.worker import Job

pytestmark = [pytest.mark.timeout(600)]

PLACED, SHARDED = Job(stream="placed"), Job(stream="sharded")
JOBS = [pytest.param(PLACED, id="placed"), pytest.param(SHARDED, id="sharded")]
End = tuple[dict[str, torch.Tensor], dict[int, list[int]]]


@lru_cache
def undisturbed(job: Job) -> End:
    with TemporaryDirectory() as folder, Driver(job, Path(folder)) as driver:
        driver.start(1)
        driver.finish()
        return driver.weights(), driver.record()


def assert_same(driver: Driver, expected: End) -> None:
    weights, record = expected
    assert {step: samples for step, samples in record.items() if step in driver.record()} == driver.record()
    assert all(torch.equal(one, weights[name]) for name, one in driver.weights().items())


def reads(driver: Driver, slot: int) -> int:
    """Samples that a worker's process has read."""
    return int((driver.out / f"reads-{slot}").read_text())


@pytest.mark.soak
@pytest.mark.parametrize("job", JOBS)
def test_a_loss_and_a_joiner_change_nothing_and_the_joiner_reads_from_its_place(
    job: Job, tmp_path: Path
) -> None:
    with Driver(job, tmp_path) as driver:
        driver.start(3)
        joiner = driver.add()
        driver.reach(7)
        driver.kill(0)
        driver.recover()
        driver.reach(17)
        driver.admit(joiner)
        joined_after = driver.step
        driver.finish()
        assert driver.world_sizes == [3, 2, 3]
        assert_same(driver, undisturbed(job))
        # Two of six shards have 8 of the 20 samples of a step, or fewer.
        per_step = job.global_batch if job == PLACED else 8
        assert reads(driver, joiner.slot) <= (job.steps - joined_after + 1) * per_step


@pytest.mark.parametrize("job", JOBS)
def test_a_checkpoint_resumes_at_its_place_with_other_workers(job: Job, tmp_path: Path) -> None:
    with Driver(job, tmp_path / "first") as first:
        first.start(3)
        first.reach(7)
        saved = first.checkpoint()
        for worker in first.living:
            first.kill(worker.slot)
    folder = tmp_path / "first" / f"checkpoint-{saved}"
    with Driver(job, tmp_path / "second", REMORA_RESUME_DIR=str(folder)) as second:
        second.start(2)
        second.finish()
        assert_same(second, undisturbed(job))
        assert min(second.record()) == saved + 1
        # Of six shards three have 11 of the 20 samples of a step, or 9.
        per_step = job.global_batch if job == PLACED else 11
        for slot in (0, 1):
            assert reads(second, slot) <= (job.steps - saved + 1) * per_step
