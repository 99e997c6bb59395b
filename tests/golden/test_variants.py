"""The same promise for other data, other sizes, other places to start from, and for whatever goes wrong when."""

from __future__ import annotations

import os
import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.golden.driver import Driver
from tests.golden.test_interrupted import assert_same, undisturbed
from tests.golden.worker import Job, Mishap

pytestmark = [pytest.mark.timeout(600)]


@pytest.mark.parametrize(
    "job",
    [
        pytest.param(Job("resnet", shards=3), id="one shard for each worker"),
        pytest.param(Job("transformer", micro_batch=2), id="micro-batches"),
        pytest.param(
            Job("resnet", samples=22, shards=5), id="a last batch that leaves workers without samples"
        ),
        pytest.param(
            Job("resnet", "sample-exact", samples=22, shards=5), id="the same without the same bits"
        ),
        pytest.param(Job("mlp", samples=5), id="a dataset smaller than a batch and than the shards"),
        pytest.param(Job("mlp", is_stream=True), id="a stream"),
        pytest.param(
            Job("mlp", samples=41, is_stream=True, num_workers=2), id="a stream read by two processes"
        ),
        pytest.param(Job("mlp", samples=41, num_workers=1), id="loader processes"),
    ],
)
def test_losing_a_worker_changes_nothing(job: Job, tmp_path: Path) -> None:
    job = replace(job, epochs=6)
    with Driver(job, tmp_path) as driver:
        driver.start(3)
        driver.reach(2)
        driver.kill(1)
        driver.recover()
        driver.finish()
        assert_same(job, driver)


@pytest.mark.parametrize("exactness", ["bitwise", "sample-exact"])
def test_layers_that_are_unfrozen_stay_so_for_those_who_go_on_and_those_who_join(
    exactness: str, tmp_path: Path
) -> None:
    job = Job("mlp", exactness, thaws_after=8)
    # The step after it is missed by one of them, who still needs what the others have as it was.
    with Driver(job, tmp_path, mishap=Mishap(slot=1, step=8)) as driver:
        driver.start(3)
        joiner = driver.add()
        driver.wait(lambda: driver.workers[1].parked is not None, "the worker parks")
        driver.recover()
        driver.reach(12)
        driver.kill(2)
        driver.recover()
        driver.admit(joiner)
        driver.finish()
        assert_same(job, driver)


def test_a_script_that_stops_ends_after_the_same_step_on_all_workers(tmp_path: Path) -> None:
    """Also where one of them has not got the result of that step."""
    job = Job("mlp", keeps=5, stops_after=9)
    expected, _ = undisturbed(Job("mlp", epochs=2), 1)
    with Driver(job, tmp_path / "alone") as alone:
        alone.start(1)
        alone.finish()
        assert list(alone.record()) == list(range(1, 10))
        weights = alone.weights()
        assert any(not torch.equal(one, expected[name]) for name, one in weights.items()), "one step less"
    with Driver(job, tmp_path / "several", mishap=Mishap(slot=1, step=9)) as driver:
        driver.start(3)
        driver.wait(lambda: driver.workers[1].parked is not None, "the worker parks")
        driver.recover()
        driver.finish()
        assert driver.world_sizes == [3, 3]
        assert driver.record() == alone.record()
        assert all(torch.equal(one, weights[name]) for name, one in driver.weights().items())
        checkpoints = {folder.name for folder in (tmp_path / "several").glob("checkpoint-*")}
        assert checkpoints == {"checkpoint-5", "checkpoint-9"}, "the one that was asked for, and the last"


def with_a_rollback(job: Job, folder: Path) -> tuple[dict[str, torch.Tensor], int]:
    """The weights with which one worker alone ends, and the step that it leaves out first."""
    with Driver(job, folder) as alone:
        alone.start(1)
        alone.finish()
        weights = alone.weights()
        assert all(one.isfinite().all() for one in weights.values())
        return weights, min(step for step, samples in alone.tries() if job.damaged in samples)


def test_no_worker_rolls_back_while_another_one_has_not_got_the_result(tmp_path: Path) -> None:
    """In the first step, whose begin is the last snapshot: the step alone does not show who has rolled back."""
    _, record = undisturbed(Job("mlp"), 1)
    job = Job("mlp", damaged=record[1][0])
    expected, step = with_a_rollback(job, tmp_path / "alone")
    assert step == 1
    with Driver(job, tmp_path / "several", mishap=Mishap(slot=1, step=1)) as driver:
        driver.start(3)
        driver.wait(lambda: driver.workers[1].parked is not None, "the worker parks")
        driver.recover()
        driver.finish()
        assert "the result was missed on purpose" in driver.causes
        assert all(torch.equal(one, expected[name]) for name, one in driver.weights().items())


def test_a_rollback_between_losses_ends_where_one_worker_alone_does(tmp_path: Path) -> None:
    job = Job("mlp", damaged=31)
    expected, _ = with_a_rollback(job, tmp_path / "alone")
    with Driver(job, tmp_path / "several") as driver:
        driver.start(3)
        joiner = driver.add()
        driver.reach(3)
        driver.kill(1)
        driver.recover()
        driver.reach(8)
        driver.admit(joiner)
        driver.reach(14)
        driver.kill(0)
        driver.recover()
        driver.finish()
        assert all(torch.equal(one, expected[name]) for name, one in driver.weights().items())


def test_the_number_of_loader_processes_changes_nothing() -> None:
    """Augmentations draw random numbers in the loader's processes; they follow the shard all the same."""
    for job in (Job(epochs=3), Job(epochs=3, is_stream=True)):
        weights, record = undisturbed(job, 1)
        others, other_record = undisturbed(replace(job, num_workers=2), 1)
        assert record == other_record
        assert all((weights[name] == others[name]).all() for name in weights)


@pytest.mark.framework("PyTorch with Loop", "resumes")
@pytest.mark.parametrize(("before", "after"), [(3, 2), (1, 4), (4, 1)])
def test_a_checkpoint_resumes_in_mid_epoch_with_other_workers(
    before: int, after: int, tmp_path: Path
) -> None:
    job = Job("resnet")
    with Driver(job, tmp_path / "first") as first:
        first.start(before)
        first.reach(3)
        # Steps go on meanwhile, and one in five is the last of its epoch.
        saved = next(step for step in iter(first.checkpoint, None) if step % 5)
        for worker in first.living:
            first.kill(worker.slot)
    folder = tmp_path / "first" / f"checkpoint-{saved}"
    assert (folder / "remora.pt").exists()
    assert len(list(folder.glob("*.safetensors"))) == before, "every worker wrote a part"
    with Driver(job, tmp_path / "second", REMORA_RESUME_DIR=str(folder)) as second:
        second.start(after)
        second.finish()
        record = {
            **{step: samples for step, samples in first.record().items() if step <= saved},
            **second.record(),
        }
        assert min(second.record()) == saved + 1
        weights, reference = undisturbed(job, 1)
        assert record == reference
        assert all((second.weights()[name] == weights[name]).all() for name in weights)


#: More seeds for a longer search, or one to see it again: REMORA_GOLDEN_SEEDS="17" or "0 1 2 3".
SEEDS = [int(seed) for seed in os.environ.get("REMORA_GOLDEN_SEEDS", "0 1 3 5").split()]


@pytest.mark.parametrize("seed", SEEDS)
def test_whatever_happens_when(seed: int, tmp_path: Path) -> None:
    """Kills, freezes, planned leaves and joins in a random order, without waiting for a good moment."""
    random_ = random.Random(seed)
    job = Job(
        random_.choice(["mlp", "transformer", "resnet"]), epochs=12, micro_batch=random_.choice([None, 2])
    )
    with Driver(job, tmp_path) as driver:
        driver.start(random_.randint(2, 4))
        acts = []
        while driver.step < job.steps - 12:
            act = random_.choice(["kill", "freeze", "leave", "join"])
            size = len(driver.living)
            if (act == "join" and size == job.shards) or (act != "join" and size == 1):
                continue
            acts.append(act)
            if act == "join":
                driver.admit(driver.add())
            elif act == "leave":
                driver.hold_and_part()
                driver.kill(random_.choice(driver.living).slot)
                driver.regroup()
            else:
                victim = random_.choice(driver.living).slot
                driver.kill(victim) if act == "kill" else driver.freeze(victim)
                driver.recover()
            driver.reach(min(driver.step + random_.randint(0, 6), job.steps))
        driver.finish()
        print(f"seed {seed}: {acts}, sizes {driver.world_sizes}")
        assert len(acts) >= 2
        assert_same(job, driver)
