"""A sharded model trains on while a checkpoint is written, and one that is not whole never counts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.golden.driver import LEAD
from tests.golden.sharded_worker import ShardedJob, let_write
from tests.golden.test_sharded import ShardedDriver, assert_same, undisturbed
from tests.golden.test_sharded_steps import StepsDriver

pytestmark = [pytest.mark.timeout(600)]

PROMPT, HELD = ShardedJob(), ShardedJob(writes_wait=True)


def reach_together(driver: ShardedDriver) -> None:
    """All workers stand in step 1 + LEAD, so that the next checkpoint is the one of this step."""
    driver.reach(1)
    driver.wait(lambda: driver.step == 1 + LEAD, "all stand at the gate")


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("snapshot_every", [1, 3])
def test_a_checkpoint_that_is_written_late_has_the_bits_of_its_step(
    snapshot_every: int, tmp_path: Path
) -> None:
    files = []
    for job in (replace(PROMPT, snapshot_every=snapshot_every), replace(HELD, snapshot_every=snapshot_every)):
        out = tmp_path / str(job.writes_wait)
        with ShardedDriver(job, out) as driver:
            driver.start(2)
            reach_together(driver)
            saved = driver.ask_for_checkpoint()
            if job.writes_wait:
                driver.reach(saved + 5)
                assert not driver.written(saved), "training goes on before anything is written"
                let_write(out)
            driver.await_written(saved)
            driver.reach(saved + 1)
            for worker in driver.living:
                assert driver.hear(worker, "stalled")["step"] == saved
        files.append(files_of(out / f"checkpoint-{saved}"))
    assert len([name for name in files[0] if name.startswith("sharded-")]) == 2
    assert files[0] == files[1]


def test_the_next_checkpoint_begins_when_the_one_before_is_written(tmp_path: Path) -> None:
    with ShardedDriver(HELD, tmp_path) as driver:
        driver.start(2)
        driver.reach(2)
        first = driver.ask_for_checkpoint()
        driver.reach(first + 2)
        second = driver.ask_for_checkpoint()
        driver.wait(lambda: driver.step >= second, "the step of the second one is done")
        assert not driver.written(first)
        let_write(tmp_path)
        driver.await_written(second)
        began = [
            [one["step"] for one in worker.heard if one["type"] == "checkpoint"] for worker in driver.living
        ]
        assert began == [[first, second]] * 2
        driver.finish()
        assert_same(PROMPT, driver)
        assert driver.written(HELD.steps) == {0, 1}, "the end of training waits for the last one"


@pytest.mark.parametrize("style", ["loop", "plain"])
def test_a_worker_lost_while_a_checkpoint_is_written_leaves_it_incomplete(style: str, tmp_path: Path) -> None:
    job = replace(HELD, style=style)
    with (ShardedDriver if style == "loop" else StepsDriver)(job, tmp_path) as driver:
        driver.start(3)
        driver.reach(4)
        saved = driver.ask_for_checkpoint()
        driver.reach(saved + 2)
        driver.kill(1)
        driver.recover()
        driver.reach(driver.step + 2)
        let_write(tmp_path)
        driver.finish()
        assert driver.world_sizes == [3, 2]
        assert driver.written(saved) == {0, 2}
        of_group = {
            one["generation"]
            for worker in driver.living
            for one in worker.heard
            if one["type"] == "checkpoint" and one["step"] == saved
        }
        assert of_group == {1}, "it never completes one of the next group"
        assert driver.written(job.steps) == {0, 2}
        assert_same(replace(job, writes_wait=False), driver)


def test_the_checkpoint_before_is_resumed_where_all_are_lost_while_one_is_written(tmp_path: Path) -> None:
    out = tmp_path / "first"
    with ShardedDriver(HELD, out) as first:
        first.start(2)
        first.reach(2)
        let_write(out)
        saved = first.checkpoint()
        (out / "may-write").unlink()
        incomplete = first.ask_for_checkpoint()
        first.reach(incomplete + 2)
        for worker in first.living:
            first.kill(worker.slot)
        assert not first.written(incomplete)
    folder = out / f"checkpoint-{saved}"
    with ShardedDriver(PROMPT, tmp_path / "second", REMORA_RESUME_DIR=str(folder)) as second:
        second.start(3)
        second.finish()
        assert min(second.record()) == saved + 1
        weights, _ = undisturbed(PROMPT)
        for name, value in second.weights().items():
            torch.testing.assert_close(value, weights[name], rtol=1e-5, atol=1e-5)
