"""Loops that are not ours end where `Loop` does, bit for bit, also when workers are lost and join meanwhile."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch

from tests.golden.driver import Driver
from tests.golden.steps_worker import StepsJob, work
from tests.golden.test_interrupted import undisturbed
from tests.golden.worker import Job

pytestmark = [pytest.mark.timeout(600)]


class StepsDriver(Driver):
    body: Callable[..., None] = staticmethod(work)


def assert_as_with_loop(job: StepsJob, driver: Driver) -> None:
    """Weights, samples of every step, and its report."""
    same = Job(**{one.name: getattr(job, one.name) for one in fields(Job)})
    weights, record = undisturbed(same, 1)
    assert driver.record() == record
    assert all(torch.equal(one, weights[name]) for name, one in driver.weights().items())
    assert sorted(driver.losses) == list(range(1, job.steps + 1))


@pytest.mark.framework("PyTorch with Steps", "runs")
@pytest.mark.framework("PyTorch with Steps", "in place")
@pytest.mark.framework("PyTorch with Steps", "exact samples")
@pytest.mark.framework("PyTorch with Steps", "metrics")
@pytest.mark.parametrize(
    "job",
    [
        pytest.param(StepsJob(), id="plain"),
        pytest.param(StepsJob("resnet", style="trainer", micro_batch=2), id="trainer"),
    ],
)
def test_a_lost_rank_0_and_a_new_worker_change_nothing(job: StepsJob, tmp_path: Path) -> None:
    job = replace(job, epochs=6)
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
        assert_as_with_loop(job, driver)
        assert len(computed_again(driver)) <= 1, "at most the step under way"


def computed_again(driver: Driver) -> list[int]:
    """Steps of which a worker that lives has computed a micro-batch that was computed before."""
    counts = Counter(step for step, samples in driver.tries() for _ in samples)
    return [step for step, samples in driver.record().items() if counts[step] > len(samples)]


@pytest.mark.framework("PyTorch with Steps", "resumes")
def test_a_checkpoint_resumes_with_other_workers(tmp_path: Path) -> None:
    job = StepsJob(style="trainer", epochs=6)
    (tmp_path / "first").mkdir()
    with StepsDriver(job, tmp_path / "first") as first:
        first.start(2)
        first.reach(7)
        step = first.checkpoint()
        for worker in first.living:
            first.kill(worker.slot)
    folder = tmp_path / "first" / f"checkpoint-{step}"
    with StepsDriver(job, tmp_path / "second", REMORA_RESUME_DIR=str(folder)) as second:
        second.start(3)
        second.finish()
        weights, record = undisturbed(Job(epochs=6), 1)
        assert second.record() == {one: samples for one, samples in record.items() if one > step}
        assert all(torch.equal(one, weights[name]) for name, one in second.weights().items())
