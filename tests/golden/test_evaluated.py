"""Evaluations give the same numbers whatever the workers are, and when one of them is lost in the middle of one."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.golden.driver import Driver
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
