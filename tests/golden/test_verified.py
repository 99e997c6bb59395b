"""A worker that computes wrongly is found, and training ends as if it had never been there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.golden.driver import Driver
from tests.golden.test_interrupted import undisturbed
from tests.golden.worker import BitFlip, Job

pytestmark = [pytest.mark.timeout(600)]

EVERY = 6
VERIFIED = Job("resnet", verify_every=EVERY)


def accusations(driver: Driver) -> list[dict[str, Any]]:
    return [one for worker in driver.workers for one in worker.heard if one["type"] == "miscomputed"]


@pytest.mark.parametrize("is_once", [False, True], ids=["from then on", "once"])
@pytest.mark.parametrize("slot", [0, 2])
def test_a_worker_that_flips_a_bit_is_named_and_leaves_no_trace(
    slot: int, is_once: bool, tmp_path: Path
) -> None:
    step = 2 * EVERY
    # One shard for each worker: the one that is checked is the one that is wrong, also where that happens once.
    job = replace(VERIFIED, shards=3)
    flip = BitFlip((slot,), step, is_once=is_once)
    with Driver(job, tmp_path, mishap=flip, REMORA_VERIFY_EVERY=str(EVERY)) as driver:
        driver.start(3)
        driver.reach(step - 1)
        driver.wait(lambda: len(accusations(driver)) == 3, "all workers have found it")
        for one in accusations(driver):
            assert (one["ranks"], one["step"]) == ([slot], step)
        driver.kill(slot)
        driver.recover()
        driver.finish()
        assert driver.world_sizes == [3, 2]
        weights, _ = undisturbed(replace(job, verify_every=None), 1)
        assert all(torch.equal(one, weights[name]) for name, one in driver.weights().items())
        assert sorted(driver.losses) == list(range(1, job.steps + 1))


def test_a_fault_that_begins_between_two_checks_is_found_by_the_next_one(tmp_path: Path) -> None:
    """The steps since it began were made with wrong gradients, and stay in the model."""
    began, found = EVERY + 2, 2 * EVERY
    job = replace(VERIFIED, shards=3)
    with Driver(job, tmp_path, mishap=BitFlip((1,), began, bit=22), REMORA_VERIFY_EVERY=str(EVERY)) as driver:
        driver.start(3)
        driver.reach(found - 1)
        driver.wait(lambda: len(accusations(driver)) == 3, "all workers have found it")
        for one in accusations(driver):
            assert (one["ranks"], one["step"]) == ([1], found)
        driver.kill(1)
        driver.recover()
        driver.finish()
        assert sorted(driver.losses) == list(range(1, job.steps + 1)), "no step is done again"
        weights, _ = undisturbed(replace(job, verify_every=None), 1)
        assert not all(torch.equal(one, weights[name]) for name, one in driver.weights().items())


def test_where_both_workers_of_one_of_two_nodes_are_wrong_alike_none_is_called_wrong(tmp_path: Path) -> None:
    job, step = replace(VERIFIED, shards=4), EVERY
    with Driver(job, tmp_path, mishap=BitFlip((0, 1), step), REMORA_VERIFY_EVERY=str(EVERY)) as driver:
        driver.start(4, nodes=2)
        driver.await_ends()
        said = accusations(driver)
        assert [(one["ranks"], one["is_known"]) for one in said] == [([0, 1, 2, 3], False)] * 4
        assert {one["step"] for one in said} == {step}
        ends = [one for worker in driver.workers for one in worker.heard if one["type"] == "diverged"]
        assert all("takes three nodes to find out" in one["text"] for one in ends)
        assert len(ends) == 4


def test_a_third_node_says_which_of_two_is_wrong(tmp_path: Path) -> None:
    job, step = replace(VERIFIED, shards=6), EVERY
    with Driver(job, tmp_path, mishap=BitFlip((0, 1), step), REMORA_VERIFY_EVERY=str(EVERY)) as driver:
        driver.start(6, nodes=3)
        driver.reach(step - 1)
        driver.wait(lambda: len(accusations(driver)) == 6, "all workers have found it")
        for one in accusations(driver):
            assert (one["ranks"], one["is_known"], one["step"]) == ([0, 1], True, step)


@pytest.mark.parametrize("network", ["mlp", "resnet"])
def test_checks_change_nothing(network: str, tmp_path: Path) -> None:
    job = Job(network, verify_every=3, micro_batch=2)
    with Driver(job, tmp_path) as driver:
        driver.start(3)
        driver.finish()
        assert accusations(driver) == []
        weights, _ = undisturbed(replace(job, verify_every=None), 1)
        assert all(torch.equal(one, weights[name]) for name, one in driver.weights().items())
