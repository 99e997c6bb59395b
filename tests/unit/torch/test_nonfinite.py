"""A loss that is not finite: the script ends, the step is left out, or training goes back and leaves the batch out."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from remora.torch import Loop, NotFinite
from remora.torch.state_sync import SyncPlan, WorkerState, plan_sync

BAD = 13


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MASTER_ADDR", "REMORA_CHANNEL_FD", "REMORA_RESUME_DIR", "REMORA_NONFINITE"):
        monkeypatch.delenv(name, raising=False)


class Data(torch.utils.data.Dataset):
    """Samples, of which some are of no use."""

    def __init__(self, *bad: int) -> None:
        self.samples = torch.randn(32, 4, generator=torch.Generator().manual_seed(1))
        self.samples[list(bad)] = math.nan

    def __len__(self) -> int:
        return 32

    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        return self.samples[number], number


class Stream(torch.utils.data.IterableDataset):
    def __init__(self, data: Data) -> None:
        self.data = data

    def __iter__(self) -> Iterator[Any]:
        return (self.data[number] for number in range(len(self.data)))


def loss_of(model: nn.Module, batch: Any) -> torch.Tensor:
    return (model(batch[0])[:, 0] - 1.0).square().mean()


class Run:
    """A training of eight steps of four samples, in two epochs of 32 samples."""

    def __init__(
        self, data: Any, *, compute: Any = loss_of, loads: Path | None = None, **changed: Any
    ) -> None:
        torch.manual_seed(2)
        self.model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.1)
        schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, 3)
        fields = {"global_batch": 4, "shards": 2, "epochs": 2, "shuffle": False, "scheduler": schedule}
        self.loop = Loop(self.model, self.optimizer, data=data, **{**fields, **changed})
        if loads is not None:
            self.loop.load(loads)
        #: Number and samples of the steps that counted.
        self.steps: list[tuple[int, list[int]]] = []
        self.skipped: list[int] = []
        for step in self.loop:
            step.backward(compute)
            self.optimizer.step()
            schedule.step()
            self.steps.append((step.number, sorted(chain(*step.samples.values()))))
            if step.was_skipped:
                self.skipped.append(step.number)

    @property
    def weights(self) -> list[torch.Tensor]:
        return [one.detach() for one in self.model.parameters()]


def same(one: Run, other: Run) -> bool:
    return all(torch.equal(ours, theirs) for ours, theirs in zip(one.weights, other.weights, strict=True))


def test_without_a_word_the_script_decides() -> None:
    assert not torch.isfinite(Run(Data(BAD)).weights[0]).all()


def test_stop_ends_with_the_step() -> None:
    with pytest.raises(NotFinite, match="the loss of step 4 is not finite"):
        Run(Data(BAD), nonfinite="stop")


def test_gradients_are_looked_at_too() -> None:
    def compute(model: nn.Module, batch: Any) -> torch.Tensor:
        # The root of zero is zero, and steep.
        return (
            loss_of(model, batch) + (model(batch[0]) * (batch[1] == BAD)[:, None]).abs().sum().mul(0.0).sqrt()
        )

    with pytest.raises(NotFinite, match="the gradient of step 1 is not finite"):
        Run(Data(), compute=compute, nonfinite="stop")


def test_skip_leaves_the_step_out(caplog: pytest.LogCaptureFixture) -> None:
    run = Run(Data(BAD), nonfinite="skip")
    assert run.skipped == [4, 12]
    assert [number for number, _ in run.steps] == list(range(1, 17))
    assert torch.isfinite(torch.cat([one.reshape(-1) for one in run.weights])).all()
    assert "the loss of step 4 is not finite: its gradients are left out" in caplog.text


def test_skips_without_end_end() -> None:
    with pytest.raises(NotFinite, match="the loss of step 21 is not finite, like 20 before it"):
        Run(Data(*range(32)), nonfinite="skip", epochs=9)


@pytest.mark.parametrize("kind", [lambda data: data, Stream])
@pytest.mark.parametrize("every", [50, 2])
def test_a_rollback_ends_where_a_training_without_the_batch_does(
    kind: Any, every: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("remora.torch.replicated.SNAPSHOT_EVERY", every)
    run = Run(kind(Data(BAD)), nonfinite="rollback")
    # Batch 3 of either epoch is left out; the others are trained in order, under the numbers of the steps before.
    counted = dict(run.steps)
    assert sorted(counted) == list(range(1, 15))
    assert all(BAD not in samples for _, samples in run.steps)
    assert [counted[number][0] for number in sorted(counted)] == [0, 4, 8, 16, 20, 24, 28] * 2
    assert (
        f"training goes back to step {0 if every == 50 else 2} and leaves out batch 3 of epoch 0"
        in caplog.text
    )
    clean = Data()
    clean.samples = torch.cat([clean.samples[:12], clean.samples[16:], clean.samples[12:16]])

    class Without(Data):
        def __len__(self) -> int:
            return 28

    without = Without()
    without.samples = clean.samples
    if kind is Stream:
        stream = Stream(without)
        expected = Run(stream)
    else:
        expected = Run(without)
    assert len(expected.steps) == 14
    assert same(run, expected)


def test_what_was_left_out_stays_so_after_a_resume(tmp_path: Path) -> None:
    run = Run(Data(BAD), nonfinite="rollback", total_steps=6)
    run.loop.save(tmp_path)
    resumed = Run(Data(BAD), nonfinite="rollback", loads=tmp_path)
    assert resumed.steps[0] == (7, [28, 29, 30, 31])
    assert same(resumed, Run(Data(BAD), nonfinite="rollback"))


def test_the_last_batch_is_left_out_too() -> None:
    run = Run(Data(31), nonfinite="rollback", epochs=1)
    assert torch.isfinite(torch.cat([one.reshape(-1) for one in run.weights])).all()


def test_rollbacks_without_end_end() -> None:
    with pytest.raises(NotFinite, match="is not finite, after 10 batches were left out"):
        Run(Data(*range(32)), nonfinite="rollback", epochs=9)


def test_what_the_job_says_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REMORA_NONFINITE", "stop")
    with pytest.raises(NotFinite):
        Run(Data(BAD))
    with pytest.raises(ValueError, match=r"elastic\.nonfinite is 'stop'"):
        Run(Data(BAD), nonfinite="skip")
    monkeypatch.setenv("REMORA_NONFINITE", "no")
    with pytest.raises(ValueError, match="nonfinite is 'stop', 'skip' or 'rollback', not 'no'"):
        Run(Data(BAD))


def test_who_went_back_gets_the_state_of_who_did_not() -> None:
    worker_states = [
        WorkerState(3, False, 7, is_rolled_back=True),
        WorkerState(8, False, 7),
        WorkerState(7, False, 7),
    ]
    assert plan_sync(worker_states) == SyncPlan(step=8, root=1, behind=(2,), joining=(0,))
    everybody = [WorkerState(3, False, 7, is_rolled_back=True)] * 2
    assert plan_sync(everybody) == SyncPlan(step=3, root=0, behind=(), joining=())
