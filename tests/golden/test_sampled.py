"""A run with a sampler of its own that loses and gains workers draws the samples of an undisturbed one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.golden.driver import Driver
from tests.golden.worker import Job

pytestmark = [pytest.mark.timeout(600)]


def test_a_loss_and_a_joiner_in_the_middle_of_an_epoch_change_no_sample(tmp_path: Path) -> None:
    job = Job(is_weighted=True)
    ends = []
    for workers in (1, 2, 3):
        with Driver(job, tmp_path / str(workers)) as driver:
            driver.start(workers)
            if workers == 3:
                joiner = driver.add()
                driver.reach(7)
                driver.kill(0)
                driver.recover()
                driver.reach(driver.step + 4)
                driver.admit(joiner)
            driver.finish()
            ends.append((driver.weights(), driver.record(), driver.losses))
    assert driver.world_sizes == [3, 2, 3]
    (weights, record, losses), *others = ends
    epoch = {number for step in range(1, 6) for number in record[step]}
    assert len(epoch) < job.samples, "it draws with replacement"
    for other_weights, other_record, other_losses in others:
        assert other_record == record
        assert other_losses == losses
        for name, value in weights.items():
            assert torch.equal(value, other_weights[name]), name
