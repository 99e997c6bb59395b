"""A run that was interrupted ends where an undisturbed one does."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch

from tests.golden.driver import Driver
from tests.golden.worker import Job, Mishap

pytestmark = [pytest.mark.timeout(600)]

Weights = dict[str, torch.Tensor]
Record = dict[int, list[int]]

NETWORKS = ["mlp", "transformer", "resnet"]


@lru_cache
def undisturbed(job: Job, workers: int) -> tuple[Weights, Record]:
    with TemporaryDirectory() as folder, Driver(job, Path(folder)) as driver:
        driver.start(workers)
        driver.finish()
        record = driver.record()
        check_samples(job, record)
        # One micro-batch of the second step is rehearsed.
        others = sum(len(samples) for step, samples in driver.tries() if step != 2)
        behind_first = max(0, job.samples - job.global_batch)
        of_second = min(behind_first or job.samples, job.global_batch)
        assert others == job.epochs * job.samples - of_second
        return driver.weights(), record


def check_samples(job: Job, record: Record) -> None:
    """Every epoch has each sample exactly once."""
    per_epoch = -(-job.samples // job.global_batch)
    assert list(record) == list(range(1, job.steps + 1)), "no step is missing"
    for epoch in range(job.epochs):
        steps = range(epoch * per_epoch + 1, (epoch + 1) * per_epoch + 1)
        seen = [number for step in steps for number in record[step]]
        assert sorted(seen) == list(range(job.samples))


def assert_same(job: Job, driver: Driver) -> None:
    weights, record = undisturbed(job, 1)
    assert driver.record() == record
    for name, value in driver.weights().items():
        if job.exactness == "bitwise":
            assert torch.equal(value, weights[name]), f"{name} differs"
        else:
            torch.testing.assert_close(value, weights[name], rtol=1e-5, atol=1e-6)


@pytest.mark.framework("PyTorch with Loop", "runs")
@pytest.mark.framework("PyTorch with Loop", "exact samples")
@pytest.mark.parametrize("exactness", ["bitwise", "sample-exact"])
@pytest.mark.parametrize("network", NETWORKS)
def test_three_workers_end_where_one_does(network: str, exactness: str, tmp_path: Path) -> None:
    job = Job(network, exactness)
    with Driver(job, tmp_path) as driver:
        driver.start(3)
        driver.finish()
        assert_same(job, driver)


@pytest.mark.framework("PyTorch with Loop", "in place")
@pytest.mark.framework("PyTorch with Loop", "exact samples")
@pytest.mark.parametrize("exactness", ["bitwise", "sample-exact"])
@pytest.mark.parametrize("network", NETWORKS)
def test_a_kill_a_planned_leave_and_a_joiner_change_nothing(
    network: str, exactness: str, tmp_path: Path
) -> None:
    """4 workers, one is killed, one leaves as planned, one joins: 4 -> 3 -> 2 -> 3, in mid-epoch."""
    job = Job(network, exactness)
    with Driver(job, tmp_path) as driver:
        driver.start(4)
        joiner = driver.add()
        driver.reach(7)
        driver.kill(2)
        driver.recover()
        driver.reach(driver.step + 4)
        driver.hold_and_part()
        driver.kill(0)
        driver.regroup()
        driver.reach(driver.step + 4)
        driver.admit(joiner)
        driver.finish()
        assert driver.world_sizes == [4, 3, 2, 3]
        assert_same(job, driver)


def test_a_frozen_peer_holds_no_other_worker(tmp_path: Path) -> None:
    job = Job()
    with Driver(job, tmp_path) as driver:
        driver.start(3)
        driver.reach(5)
        driver.freeze(1)
        driver.recover()
        driver.finish()
        assert driver.world_sizes == [3, 2]
        assert_same(job, driver)


@pytest.mark.parametrize("exactness", ["bitwise", "sample-exact"])
@pytest.mark.parametrize("step", [6, 40])
def test_a_worker_that_missed_a_result_gets_it_from_another_one(
    exactness: str, step: int, tmp_path: Path
) -> None:
    """The others may be one step ahead by then; at step 40 they have left their loops."""
    job = Job("resnet", exactness)
    assert job.steps == 40
    with Driver(job, tmp_path, mishap=Mishap(slot=1, step=step)) as driver:
        driver.start(3)
        driver.wait(lambda: driver.workers[1].parked is not None, "the worker parks")
        assert driver.workers[1].parked == step - 1
        driver.recover()
        driver.finish()
        assert "the result was missed on purpose" in driver.causes
        assert_same(job, driver)
