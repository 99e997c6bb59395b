"""Evaluations give the same numbers whatever the workers are, and when one of them is lost in the middle of one."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.golden.driver import Driver
from tests.golden.sharded_worker import ShardedJob
from tests.golden.test_sharded import ShardedDriver
from tests.golden.worker import Job

pytestmark = [pytest.mark.timeout(600)]

JOB = Job(epochs=3, evaluates=6)


def evaluations(folder: Path, slots: range) -> list[list[str]]:
    """What each worker has found, in order."""
    return [(folder / f"evaluations-{slot}.jsonl").read_text().splitlines() for slot in slots]


def test_a_worker_that_is_lost_in_an_evaluation_and_one_that_joins_change_nothing(tmp_path: Path) -> None:
    with Driver(JOB, tmp_path / "alone") as driver:
        driver.start(1)
        driver.finish()
        expected, weights = evaluations(driver.out, range(1))[0], driver.weights()
    assert [json.loads(line)[:2] for line in expected] == [
        *([6, "Samples"], [6, "Stream"]),
        *([12, "Samples"], [12, "Stream"]),
    ]
    with Driver(replace(JOB, dies_evaluating=1), tmp_path / "lost") as driver:
        driver.start(3)
        joiner = driver.add()
        driver.workers[1].is_gone = True
        driver.reach(6)
        driver.workers[1].process.join(60)
        assert driver.workers[1].process.exitcode == -9
        # It joins in the middle of the evaluation of the others, and has no part in that.
        joiner.waits = False
        driver.recover()
        driver.finish()
        assert driver.world_sizes == [3, 3]
        first, third, joined = (evaluations(driver.out, range(slot, slot + 1))[0] for slot in (0, 2, 3))
        assert first == third == expected
        assert joined == expected[2:], "it joined after step 6"
        for name, value in driver.weights().items():
            assert torch.equal(value, weights[name]), name


#: Two workers, of three at first: each must make as many passes as the one with the most batches.
SHARDED = ShardedJob(epochs=3, evaluates=6)


@pytest.mark.parametrize(
    "job",
    [
        pytest.param(SHARDED, id="loop"),
        pytest.param(replace(SHARDED, style="plain"), id="steps"),
    ],
)
def test_a_sharded_model_is_evaluated_in_the_step_that_is_done_again_after_a_loss(
    job: ShardedJob, tmp_path: Path
) -> None:
    with ShardedDriver(job, tmp_path / "alone") as driver:
        driver.start(1)
        driver.finish()
        (expected,) = evaluations(driver.out, range(1))
    with ShardedDriver(replace(job, dies_evaluating=1), tmp_path / "lost") as driver:
        driver.start(3)
        driver.workers[1].is_gone = True
        driver.reach(5)
        driver.workers[1].process.join(60)
        assert driver.workers[1].process.exitcode == -9
        driver.recover()
        driver.finish()
        assert driver.world_sizes == [3, 2]
        first, third = (evaluations(driver.out, range(slot, slot + 1))[0] for slot in (0, 2))
    assert first == third, "the same bits on every worker"
    assert_close(first, expected)


@pytest.mark.parametrize(
    ("job", "workers"),
    [
        pytest.param(replace(SHARDED, network="plain", tensor=2), 2, id="tensor parallel"),
        pytest.param(replace(SHARDED, network="plain", shard=2), 4, id="two copies", marks=pytest.mark.soak),
    ],
)
def test_each_sample_counts_once_however_the_workers_are_arranged(
    job: ShardedJob, workers: int, tmp_path: Path
) -> None:
    found = {}
    for name, one, count in (("alone", replace(job, tensor=None, shard=None), 1), ("all", job, workers)):
        with ShardedDriver(one, tmp_path / name) as driver:
            driver.start(count)
            driver.finish()
            found[name] = evaluations(driver.out, range(count))
    assert all(one == found["all"][0] for one in found["all"])
    assert_close(found["all"][0], found["alone"][0])


def assert_close(found: list[str], expected: list[str]) -> None:
    """Two lists of evaluations, of weights that differ in their last bits."""
    assert [json.loads(line)[:2] for line in found] == [json.loads(line)[:2] for line in expected]
    for one, other in zip(found, expected, strict=True):
        assert json.loads(one)[2] == pytest.approx(json.loads(other)[2], rel=1e-4)
