"""A sharded model survives lost workers from the memory of those who are left."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch

from remora.torch import read_checkpoint
from tests.golden.driver import Driver
from tests.golden.sharded_worker import TOO_LARGE_AT, ShardedJob, work

pytestmark = [pytest.mark.timeout(600)]


class ShardedDriver(Driver):
    body = staticmethod(work)
    #: Most steps that a loss costs; None: those of the job's snapshots.
    repeated: int | None = None

    def regroup(self) -> None:
        before = self.step
        super().regroup()
        (after,) = {self.hear(worker, "joined")["step"] for worker in self.living}
        is_planned = set(self.causes[-len(self.living) :]) <= {"planned", "joining"}
        most = self.job.snapshot_every + 1 if self.repeated is None else self.repeated
        assert 0 <= before - after <= (0 if is_planned else most)


#: Two replicas of a model that is cut over two workers, and layers that two workers compute together.
HYBRID = ShardedJob("plain", shard=2)
TENSOR = ShardedJob("plain", tensor=2)


@lru_cache
def undisturbed(job: ShardedJob) -> tuple[dict[str, torch.Tensor], dict[int, list[int]]]:
    with TemporaryDirectory() as folder, ShardedDriver(job, Path(folder)) as driver:
        driver.start(1)
        driver.finish()
        return driver.weights(), driver.record()


def steps_of(job: ShardedJob) -> int:
    """Without a batch of each epoch where one of its samples is damaged."""
    return job.steps - (0 if job.damaged is None else job.epochs)


def assert_same(job: ShardedJob, driver: Driver) -> None:
    weights, record = undisturbed(replace(job, style="loop", shard=None, tensor=None))
    assert list(record) == list(range(1, steps_of(job) + 1))
    assert driver.record() == record
    for name, value in driver.weights().items():
        torch.testing.assert_close(value, weights[name], rtol=1e-5, atol=1e-5, msg=f"{name} differs")


@pytest.mark.framework("FSDP2 with ShardedLoop", "in place")
@pytest.mark.framework("FSDP2 with ShardedLoop", "exact samples")
@pytest.mark.parametrize("victim", [pytest.param(1, marks=pytest.mark.soak), 0])
def test_a_killed_worker_costs_no_state(victim: int, tmp_path: Path) -> None:
    job = ShardedJob()
    with ShardedDriver(job, tmp_path) as driver:
        driver.start(3)
        driver.reach(7)
        driver.kill(victim)
        driver.recover()
        driver.finish()
        assert driver.world_sizes == [3, 2]
        assert_same(job, driver)


@pytest.mark.parametrize(
    "job",
    [
        pytest.param(
            ShardedJob("resnet", micro_batch=2), id="BatchNorm and micro-batches", marks=pytest.mark.soak
        ),
        pytest.param(
            ShardedJob(samples=22, shards=5),
            id="workers without samples keep the others company",
            marks=pytest.mark.soak,
        ),
        pytest.param(
            ShardedJob(is_stream=True, snapshot_every=3),
            id="a stream, a snapshot every third step",
            marks=pytest.mark.soak,
        ),
        pytest.param(
            ShardedJob(stream="placed", samples=22, shards=5, snapshot_every=3),
            id="a stream that knows its place, and workers without samples",
            marks=pytest.mark.soak,
        ),
    ],
)
def test_other_shapes_of_training(job: ShardedJob, tmp_path: Path) -> None:
    with ShardedDriver(job, tmp_path) as driver:
        driver.start(3)
        driver.reach(5)
        driver.kill(2)
        driver.recover()
        driver.finish()
        assert_same(job, driver)


@pytest.mark.soak
def test_streams_of_shards_move_with_a_sharded_model(tmp_path: Path) -> None:
    job = ShardedJob(stream="sharded")
    with ShardedDriver(job, tmp_path) as driver:
        driver.start(3)
        joiner = driver.add()
        driver.reach(5)
        driver.kill(2)
        driver.recover()
        driver.reach(driver.step + 3)
        driver.admit(joiner)
        driver.finish()
        weights, _ = undisturbed(job)
        for name, value in driver.weights().items():
            torch.testing.assert_close(value, weights[name], rtol=1e-5, atol=1e-5, msg=f"{name} differs")


def test_a_joiner_gets_its_part_and_one_that_leaves_takes_nothing_along(tmp_path: Path) -> None:
    job = ShardedJob()
    with ShardedDriver(job, tmp_path) as driver:
        driver.start(2)
        joiner = driver.add()
        driver.reach(4)
        driver.admit(joiner)
        driver.reach(driver.step + 3)
        driver.hold_and_part()
        driver.kill(0)
        driver.regroup()
        driver.reach(driver.step + 3)
        driver.kill(1)
        driver.recover()
        driver.finish()
        assert driver.world_sizes == [2, 3, 2, 1]
        assert_same(job, driver)


def test_a_frozen_peer_holds_no_other_worker(tmp_path: Path) -> None:
    job = ShardedJob()
    with ShardedDriver(job, tmp_path) as driver:
        driver.start(3)
        driver.reach(5)
        driver.freeze(1)
        driver.recover()
        driver.finish()
        assert_same(job, driver)


def test_two_lost_neighbours_leave_it_to_the_checkpoint(tmp_path: Path) -> None:
    """No worker says that it has a state any more, so the worker group is started again from the storage."""
    with ShardedDriver(ShardedJob(), tmp_path) as driver:
        driver.start(4)
        driver.reach(5)
        driver.kill(1)
        driver.kill(2)
        driver.part()
        left = driver.assign()
        driver.wait(lambda: all(worker.parked is not None for worker in left), "they give up")
        assert [worker.parked for worker in left] == [-1, -1]
        assert "no worker holds the shards of rank 1" in driver.causes[-1]


@pytest.mark.parametrize(
    "job",
    [
        pytest.param(HYBRID, id="hybrid", marks=pytest.mark.soak),
        pytest.param(TENSOR, id="tensor parallel"),
        pytest.param(replace(HYBRID, damaged=17), id="hybrid, a batch left out", marks=pytest.mark.soak),
        pytest.param(
            replace(TENSOR, damaged=17), id="tensor parallel, a batch left out", marks=pytest.mark.soak
        ),
    ],
)
def test_other_layouts_lose_and_win_workers_along_the_data_parallel_dimension(
    job: ShardedJob, tmp_path: Path
) -> None:
    with ShardedDriver(job, tmp_path) as driver:
        driver.start(4)
        driver.reach(5)
        driver.kill(1)
        driver.kill(3)
        driver.recover()
        assert driver.world_sizes == [4, 2]
        driver.reach(driver.step + 3)
        driver.finish()
        assert_same(job, driver)


@pytest.mark.parametrize("snapshot_every", [1, pytest.param(4, marks=pytest.mark.soak)])
def test_a_batch_that_is_left_out_stays_so_for_those_who_go_on_and_those_who_join(
    snapshot_every: int, tmp_path: Path
) -> None:
    job = ShardedJob("resnet", damaged=17, snapshot_every=snapshot_every)
    with ShardedDriver(job, tmp_path) as driver:
        driver.start(3)
        driver.reach(7)
        joiner = driver.add()
        driver.kill(1)
        driver.recover()
        driver.reach(driver.step + 3)
        driver.admit(joiner)
        driver.finish()
        assert driver.world_sizes == [3, 2, 3]
        assert all(value.isfinite().all() for value in driver.weights().values())
        assert_same(job, driver)


@pytest.mark.soak
def test_a_checkpoint_knows_what_is_left_out(tmp_path: Path) -> None:
    job = ShardedJob(damaged=17)
    with ShardedDriver(job, tmp_path / "first") as first:
        first.start(2)
        first.reach(8)
        saved = first.checkpoint()
        for worker in first.living:
            first.kill(worker.slot)
    state = read_checkpoint(tmp_path / "first" / f"checkpoint-{saved}")
    left_out, per_epoch = state["left_out"], job.steps // job.epochs
    assert [epoch for epoch, _ in left_out] == list(range(len(left_out))), (
        "its sample comes once in each epoch"
    )
    steps_before = [epoch * per_epoch + place - epoch for epoch, place in left_out]
    assert len(left_out) >= 2
    assert max(steps_before) <= saved < len(left_out) * per_epoch + per_epoch - len(left_out)
    with ShardedDriver(
        job, tmp_path / "second", REMORA_RESUME_DIR=str(tmp_path / "first" / f"checkpoint-{saved}")
    ) as second:
        second.start(3)
        second.finish()
        assert max(second.record()) == steps_of(job)
        weights, _ = undisturbed(job)
        for name, value in second.weights().items():
            torch.testing.assert_close(value, weights[name], rtol=1e-5, atol=1e-5)


@pytest.mark.soak
def test_a_checkpoint_of_as_many_workers_with_other_ranks_than_before(tmp_path: Path) -> None:
    """The third worker becomes the second one, and a joiner the third."""
    with ShardedDriver(ShardedJob(), tmp_path / "first") as first:
        first.start(3)
        first.reach(3)
        joiner = first.add()
        first.kill(1)
        first.recover()
        first.reach(first.step + 1)
        first.admit(joiner)
        first.reach(first.step + 1)
        saved = first.checkpoint()
        for worker in first.living:
            first.kill(worker.slot)
    folder = tmp_path / "first" / f"checkpoint-{saved}"
    with ShardedDriver(ShardedJob(), tmp_path / "second", REMORA_RESUME_DIR=str(folder)) as second:
        second.start(2)
        second.finish()
        weights, _ = undisturbed(ShardedJob())
        for name, value in second.weights().items():
            torch.testing.assert_close(value, weights[name], rtol=1e-5, atol=1e-5)


@pytest.mark.soak
def test_scaled_losses(tmp_path: Path) -> None:
    """A step with infinite gradients is skipped by all workers, and the scale survives a loss."""
    job = ShardedJob(is_scaled=True)
    with ShardedDriver(job, tmp_path) as driver:
        driver.start(3)
        driver.reach(TOO_LARGE_AT + 2)
        driver.kill(1)
        driver.recover()
        driver.finish()
        assert_same(job, driver)
        scales = [driver.norms[step] for step in (TOO_LARGE_AT, TOO_LARGE_AT + 1, job.steps)]
        assert scales == [65536.0, 32768.0, 32768.0]


@pytest.mark.framework("FSDP2 with ShardedLoop", "resumes")
@pytest.mark.parametrize(
    ("job", "before", "other", "after"),
    [
        pytest.param(
            ShardedJob("resnet"), 2, ShardedJob("resnet"), 1, id="sharded 2 to 1", marks=pytest.mark.soak
        ),
        pytest.param(ShardedJob("resnet"), 2, ShardedJob("resnet"), 3, id="sharded 2 to 3"),
        pytest.param(HYBRID, 4, HYBRID, 2, id="hybrid 4 to 2", marks=pytest.mark.soak),
        pytest.param(TENSOR, 4, TENSOR, 2, id="tensor parallel 4 to 2", marks=pytest.mark.soak),
        pytest.param(
            TENSOR, 2, ShardedJob("plain"), 3, id="tensor parallel 2 to sharded 3", marks=pytest.mark.soak
        ),
    ],
)
def test_a_checkpoint_resumes_with_other_workers(
    job: ShardedJob, before: int, other: ShardedJob, after: int, tmp_path: Path
) -> None:
    with ShardedDriver(job, tmp_path / "first") as first:
        first.start(before)
        first.reach(3)
        saved = first.checkpoint()
        for worker in first.living:
            first.kill(worker.slot)
    folder = tmp_path / "first" / f"checkpoint-{saved}"
    if job.network == "resnet":
        assert len(list(folder.glob("sharded-*.safetensors"))) == before, "every worker wrote a part"
    with ShardedDriver(other, tmp_path / "second", REMORA_RESUME_DIR=str(folder)) as second:
        second.start(after)
        second.finish()
        assert min(second.record()) == saved + 1
        weights, _ = undisturbed(replace(job, style="loop", shard=None, tensor=None))
        for name, value in second.weights().items():
            torch.testing.assert_close(value, weights[name], rtol=1e-5, atol=1e-5)
