"""The batch that the first workers of a DeepSpeed job made of their configuration is that of all later groups."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from remora.spec.worker_sizes import WorkerSizes
from tests.attempt_plans import plan_of
from tests.unit.trainers.stage import Stage
from tests.unit.trainers.virtual_time import play
from trainers.driver.driver import Driver
from trainers.driver.global_batch import sizes_in, with_batch
from trainers.plan import AttemptPlan


def a_plan(**fields: Any) -> AttemptPlan:
    asked = {"min_workers": 1, "max_workers": 3, "backend": "deepspeed", **fields}
    return plan_of(
        job_id="job_a",
        attempt_id="att_a",
        attempt=1,
        command=["python", "train.py"],
        bundle=None,
        storage_url="/storage",
        checkpoint_url="/storage",
        resources={"CPU": 1.0},
        **asked,
    )


def test_only_sizes_that_divide_it_are_formed_from_then_on() -> None:
    plan = with_batch(a_plan(), 8, 2)
    assert plan is not None
    assert [size for size in range(5) if plan.sizes.allows(size)] == [1, 2]
    assert plan.sizes.fit(3) == 2, "capacity for a third worker is of no use"
    assert plan.elastic_variables == {"REMORA_GLOBAL_BATCH": "8"}


@pytest.mark.parametrize(
    ("plan", "samples", "workers"),
    [
        (a_plan(elastic_variables={"REMORA_GLOBAL_BATCH": "12"}), 8, 2),
        (a_plan(backend="ddp"), 8, 2),
        (a_plan(), 8, 3),
        (a_plan(min_workers=3), 8, 3),
        (a_plan(), 0, 1),
        (a_plan(), True, 1),
        (a_plan(), 2**31 + 1, 1),
        (a_plan(), "8", 2),
        (a_plan(), None, 2),
    ],
)
def test_what_the_job_names_stays_and_what_cannot_be_a_batch_is_left_out(
    plan: AttemptPlan, samples: object, workers: int
) -> None:
    assert with_batch(plan, samples, workers) is None


def test_copies_of_the_model_divide_it_and_not_workers() -> None:
    plan = with_batch(a_plan(min_workers=2, max_workers=8, multiple_of=2), 6, 4)
    assert plan is not None
    assert [size for size in range(10) if plan.sizes.allows(size)] == [2, 4, 6]


def test_other_sizes_of_the_service_are_those_that_divide_it() -> None:
    plan = with_batch(a_plan(), 8, 2)
    assert plan is not None
    assert sizes_in(plan, WorkerSizes(1, 7)) == WorkerSizes(1, 4, divided=8)
    assert sizes_in(plan, WorkerSizes(3, 3)) == WorkerSizes(3, 3), "the workers then say what is wrong"
    assert sizes_in(plan, WorkerSizes(1, 3, divided=9)) == WorkerSizes(1, 3, divided=9)
    assert sizes_in(a_plan(), WorkerSizes(1, 7)) == WorkerSizes(1, 7)
    assert sizes_in(replace(plan, backend="ddp"), WorkerSizes(1, 7)) == WorkerSizes(1, 7)


def test_the_driver_keeps_the_first_that_a_worker_of_the_present_group_reports() -> None:
    async def scene() -> None:
        stage, driver = Stage(2), Driver()
        driver.take(replace(stage.attempt.plan, backend="deepspeed", sizes=WorkerSizes(1, 3)))
        driver._account, driver._group_members = stage.account, stage.group_members
        driver._attempt, driver._in_place = stage.attempt, stage.in_place
        await driver.deliver(7, 0, [{"type": "batch", "samples": 6}])
        await driver.deliver(1, 5, [{"type": "batch", "samples": 6}])
        await driver.deliver(1, 0, [{"type": "batch"}])
        assert driver.sizes() == WorkerSizes(1, 3)
        for slot, samples in ((0, 8), (1, 4)):
            await driver.deliver(1, slot, [{"type": "batch", "samples": samples}])
        assert driver.sizes() == stage.attempt.plan.sizes == WorkerSizes(1, 2, divided=8)
        assert stage.events("attempt.batch_kept") == [{"global_batch": 8}]
        said = [one.body for one in stage.account.records(0, 100) if one.kind == "progress"]
        assert [body["global_batch"] for body in said if "global_batch" in body] == [8]
        await driver.resize(1.0, WorkerSizes(1, 9))
        assert driver.sizes() == WorkerSizes(1, 8, divided=8), "the service may not know it yet"

    play(scene())
