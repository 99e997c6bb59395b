"""A loop alone: it trains what the plain loop trains, resumes in mid-epoch, and refuses what cannot be."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, IterableDataset

from remora.torch import CheckpointUnusable, Loop, Step, linear_scaling
from remora.torch.layout import FILE
from remora.torch.randomness import seed_everything

SAMPLES = 22
ASKED = ("REMORA_EXACTNESS", "REMORA_GLOBAL_BATCH", "REMORA_SHARDS")


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("REMORA_CHANNEL_FD", "MASTER_ADDR", "REMORA_RESUME_DIR", "RANK", "WORLD_SIZE", *ASKED):
        monkeypatch.delenv(name, raising=False)
    threads = torch.get_num_threads()
    yield
    torch.use_deterministic_algorithms(False)
    torch.set_num_threads(threads)


class Numbers(Dataset):
    """Sample i is (features, target, i)."""

    def __init__(self, size: int = SAMPLES) -> None:
        generator = torch.Generator().manual_seed(1)
        self.features = torch.randn(size, 4, generator=generator, dtype=torch.float64)

    def __len__(self) -> int:
        return len(self.features)

    def __getitem__(self, number: int) -> tuple[torch.Tensor, torch.Tensor, int]:
        return self.features[number], self.features[number].sum(), number


def make(dropout: float = 0.0) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(dropout), nn.Linear(8, 1)).double()
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def error(model: nn.Module, batch: Any) -> torch.Tensor:
    return (model(batch[0])[:, 0] - batch[1]).square().mean()


def loop_of(model: nn.Module, optimizer: Any, **changed: Any) -> Loop:
    fields: dict[str, Any] = {"data": Numbers(), "global_batch": 8, "shards": 3, "epochs": 2, "seed": 4}
    return Loop(model, optimizer, **{**fields, **changed})


def run(
    loop: Loop, optimizer: Any, compute: Callable[..., Any] = error, steps: int | None = None
) -> list[float]:
    losses = []
    for step in loop:
        losses.append(step.backward(compute).item())
        optimizer.step()
        if step.number == steps:
            break
    return losses


def each(loop: Loop, optimizer: Any) -> Iterator[Step]:
    for step in loop:
        step.backward(error)
        optimizer.step()
        yield step


@pytest.mark.parametrize("exactness", ["sample-exact", "bitwise"])
@pytest.mark.parametrize("micro_batch", [None, 2])
def test_it_trains_what_a_plain_loop_over_global_batches_trains(
    exactness: Any, micro_batch: int | None
) -> None:
    model, optimizer = make()
    batches: list[list[int]] = []
    losses = []
    for step in loop_of(model, optimizer, exactness=exactness, micro_batch=micro_batch):
        losses.append(step.backward(error).item())
        optimizer.step()
        batches.append([number for numbers in step.samples.values() for number in numbers])
        assert (step.number, step.epoch, step.place) == (len(batches), *divmod(len(batches) - 1, 3))
    assert [len(batch) for batch in batches] == [8, 8, 6] * 2

    plain, plain_optimizer = make()
    data = Numbers()
    for batch, loss in zip(batches, losses, strict=True):
        plain_optimizer.zero_grad()
        expected = error(plain, (data.features[batch], data.features[batch].sum(1)))
        expected.backward()
        plain_optimizer.step()
        assert loss == pytest.approx(expected.item(), rel=1e-5)
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)


def test_metrics_are_means_over_the_samples_of_the_global_batch() -> None:
    model, optimizer = make()
    step = next(iter(loop_of(model, optimizer)))
    step.backward(lambda model, batch: (error(model, batch), {"number": batch[2].double().mean()}))
    numbers = [number for shard in step.samples.values() for number in shard]
    assert step.metrics["number"] == pytest.approx(sum(numbers) / len(numbers), rel=1e-6)


@pytest.mark.parametrize("exactness", ["sample-exact", "bitwise"])
@pytest.mark.parametrize("scale", [None, 8.0])
def test_sums_and_their_counts_are_divided_over_the_whole_global_batch(
    exactness: Any, scale: float | None
) -> None:
    """Samples have 1 to 5 tokens, which all count the same."""

    def lengths(numbers: torch.Tensor) -> torch.Tensor:
        return (numbers % 5 + 1).double()

    def summed(model: nn.Module, batch: Any) -> Any:
        features, target, numbers = batch
        each = (model(features)[:, 0] - target).square() * lengths(numbers)
        tokens = lengths(numbers).sum()
        right = (numbers % 2 * lengths(numbers)).sum()
        return (each.sum(), tokens), {"odd": (right, int(tokens)), "number": numbers.double().mean()}

    model, optimizer = make()
    scaler = None if scale is None else torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=100)
    plain, plain_optimizer = make()
    data = Numbers()
    for step in loop_of(model, optimizer, exactness=exactness, micro_batch=2, scaler=scaler):
        loss = step.backward(summed)
        if scaler is None:
            optimizer.step()
        else:
            scaler.step(optimizer)
            scaler.update()
        numbers = torch.tensor([number for shard in step.samples.values() for number in shard])
        plain_optimizer.zero_grad()
        (total, tokens), means = summed(
            plain, (data.features[numbers], data.features[numbers].sum(1), numbers)
        )
        (total / tokens).backward()
        plain_optimizer.step()
        assert loss.item() == pytest.approx((total / tokens).item(), rel=1e-5)
        assert step.metrics["odd"] == pytest.approx((means["odd"][0] / tokens).item(), rel=1e-5)
        assert step.metrics["number"] == pytest.approx(numbers.double().mean().item(), rel=1e-5)
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        # The whole count travels as a float32.
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-8)


def test_sums_at_one_time_and_means_at_another_are_refused() -> None:
    calls: list[int] = []

    def compute(model: nn.Module, batch: Any) -> Any:
        calls.append(1)
        loss = error(model, batch)
        return loss if len(calls) % 2 else (loss * len(batch[0]), len(batch[0]))

    with pytest.raises(TypeError, match="for every batch, or for none"):
        next(iter(loop_of(*make()))).backward(compute)


def test_it_resumes_in_mid_epoch_with_the_same_random_numbers(tmp_path: Path) -> None:
    whole, whole_optimizer = make(dropout=0.5)
    expected = run(loop_of(whole, whole_optimizer), whole_optimizer)

    model, optimizer = make(dropout=0.5)
    loop = loop_of(model, optimizer)
    begun = []
    for step in loop:
        begun.append(step.backward(error).item())
        optimizer.step()
        if loop.steps_done == 3:
            break
    loop.save(tmp_path)
    other, other_optimizer = make(dropout=0.5)
    resumed = loop_of(other, other_optimizer)
    resumed.load(tmp_path)
    assert resumed.steps_done == 3
    assert begun + run(resumed, other_optimizer) == expected


def test_a_resume_from_the_last_step_has_nothing_left_to_do(tmp_path: Path) -> None:
    model, optimizer = make()
    loop = loop_of(model, optimizer, total_steps=4, epochs=None)
    assert len(run(loop, optimizer)) == 4
    loop.save(tmp_path)
    again = loop_of(model, optimizer, total_steps=4, epochs=None)
    again.load(tmp_path)
    assert run(again, optimizer) == []


def test_epochs_and_total_steps_end_at_whichever_comes_first() -> None:
    for limits, steps in (({"epochs": 1, "total_steps": 50}, 3), ({"epochs": 9, "total_steps": 5}, 5)):
        model, optimizer = make()
        assert len(run(loop_of(model, optimizer, **limits), optimizer)) == steps


def test_a_script_may_stop_after_the_step_that_it_is_in() -> None:
    model, optimizer = make()
    loop = loop_of(model, optimizer)
    numbers = []
    for step in each(loop, optimizer):
        numbers.append(step.number)
        if step.number == 3:
            loop.stop()
    assert (numbers, loop.steps_done) == ([1, 2, 3], 3)


def test_parameters_that_no_sample_used_keep_no_gradient() -> None:
    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.idle = nn.Linear(4, 1).double(), nn.Linear(4, 1).double()

        def forward(self, features: torch.Tensor) -> torch.Tensor:
            return self.used(features)

    for exactness in ("sample-exact", "bitwise"):
        model = Half()
        optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.5)
        before = model.idle.weight.clone()
        run(loop_of(model, optimizer, exactness=exactness), optimizer)
        assert torch.equal(model.idle.weight, before), "AdamW would have decayed it"


def test_a_gradient_scaler_of_the_user_works_and_is_saved(tmp_path: Path) -> None:
    plain, plain_optimizer = make()
    expected = run(loop_of(plain, plain_optimizer), plain_optimizer)
    model, optimizer = make()
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=2)
    loop = loop_of(model, optimizer, scaler=scaler)
    losses = []
    for step in loop:
        losses.append(step.backward(error).item())
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
    assert losses == pytest.approx(expected, rel=1e-6)
    loop.save(tmp_path)
    assert torch.load(tmp_path / FILE, weights_only=True)["parts"]["scaler"]["scale"] == 32.0


def test_bfloat16_and_autocast_work() -> None:
    model = nn.Linear(4, 1).to(torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def compute(model: nn.Module, batch: Any) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return (model(batch[0].float())[:, 0].float() - batch[1]).square().mean()

    for exactness in ("sample-exact", "bitwise"):
        assert all(
            loss == loss for loss in run(loop_of(model, optimizer, exactness=exactness), optimizer, compute)
        )


def test_random_numbers_of_all_kinds_follow_the_seed() -> None:
    def drawn() -> list[float]:
        seed_everything(2**62)
        return [torch.rand(()).item(), random.random(), float(numpy.random.rand())]

    assert "numpy" in sys.modules
    assert drawn() == drawn()


def test_augmentations_draw_the_same_whatever_the_script_draws() -> None:
    class Noisy(Numbers):
        def __getitem__(self, number: int) -> tuple[torch.Tensor, torch.Tensor, int]:
            features, target, _ = super().__getitem__(number)
            return features + torch.rand(4) + random.random() + numpy.random.rand(), target, number

    seen: list[list[float]] = []
    for disturbs in (False, True):
        model, optimizer = make()
        losses = []
        for step in loop_of(model, optimizer, data=Noisy()):
            losses.append(step.backward(error).item())
            optimizer.step()
            if disturbs:
                torch.rand(3), random.random(), numpy.random.rand()
        seen.append(losses)
    assert seen[0] == seen[1]


class Endless(IterableDataset):
    """Random numbers of its own making, `size` per epoch; reports which epoch it is in."""

    def __init__(self, size: int) -> None:
        self.size, self.epochs = size, []

    def set_epoch(self, epoch: int) -> None:
        self.epochs.append(epoch)

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for _ in range(self.size):
            features = torch.rand(4, dtype=torch.float64)
            yield features, features.sum()


def test_a_stream_resumes_where_it_was(tmp_path: Path) -> None:
    whole, whole_optimizer = make(dropout=0.3)
    expected = run(loop_of(whole, whole_optimizer, data=Endless(20)), whole_optimizer)
    assert len(expected) == 6
    model, optimizer = make(dropout=0.3)
    loop = loop_of(model, optimizer, data=Endless(20))
    for step in loop:
        if step.number == 5:
            loop.save(tmp_path)
            break
        step.backward(error)
        optimizer.step()
    stream = Endless(20)
    resumed = loop_of(model, optimizer, data=stream)
    resumed.load(tmp_path)
    assert run(resumed, optimizer) == expected[4:]
    assert stream.epochs[0] == 1, "only the epoch at hand is read again"


@pytest.mark.parametrize("size", [0, 3])
def test_a_stream_that_makes_no_step_is_refused_and_not_read_for_ever(size: int) -> None:
    model, optimizer = make()
    with pytest.raises(ValueError, match="makes no step of 8 samples"):
        run(loop_of(model, optimizer, data=Endless(size), drop_last=True), optimizer)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"exactness": "nearly"}, "exactness is 'sample-exact' or 'bitwise'"),
        ({"epochs": None}, "say when training ends"),
        ({"epochs": 0}, "epochs is at least 1"),
        ({"shards": 9}, "shards is a number from 1 to global_batch"),
        ({"global_batch": 0}, "global_batch"),
        ({"state": {"model": nn.Linear(1, 1)}}, "is a name that Loop uses itself"),
        ({"state": {"ema": object()}}, "needs the methods state_dict"),
    ],
)
def test_arguments_that_cannot_work_are_refused_by_name(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        loop_of(*make(), **changed)


def test_models_that_cannot_work_are_refused() -> None:
    frozen = nn.Linear(4, 1).requires_grad_(False)
    optimizer = torch.optim.SGD(nn.Linear(1, 1).parameters())
    with pytest.raises(ValueError, match="no parameter to train"):
        loop_of(frozen, optimizer)
    with pytest.raises(ValueError, match="SyncBatchNorm"):
        loop_of(nn.Sequential(nn.Linear(4, 4), nn.SyncBatchNorm(4)), optimizer)


def test_more_workers_than_shards_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "1",
        "RANK": "0",
        "WORLD_SIZE": "4",
    }.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match="4 workers cannot share 3 shards"):
        next(iter(loop_of(*make())))


@pytest.mark.parametrize(
    ("compute", "message"),
    [
        (lambda model, batch: 3.0, "returns the mean loss"),
        (lambda model, batch: model(batch[0]), "returns the mean loss"),
        (lambda model, batch: error(model, batch).detach(), "the loss has no graph"),
        (lambda model, batch: (error(model, batch), [1]), "returns the mean loss"),
    ],
)
def test_a_function_that_returns_something_else_is_refused(compute: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        next(iter(loop_of(*make()))).backward(compute)


def test_too_many_metrics_are_refused() -> None:
    with pytest.raises(ValueError, match="at most 15 metrics, and got 16"):
        next(iter(loop_of(*make()))).backward(
            lambda model, batch: (error(model, batch), {str(n): n for n in range(16)})
        )


def test_a_step_without_backward_and_one_with_two_are_refused_by_name() -> None:
    with pytest.raises(RuntimeError, match="once in every step"):
        for _ in loop_of(*make()):
            pass
    step = next(iter(loop_of(*make())))
    step.backward(error)
    with pytest.raises(RuntimeError, match="called once per step"):
        step.backward(error)


def test_an_error_of_the_user_comes_through_as_it_is() -> None:
    with pytest.raises(ZeroDivisionError):
        next(iter(loop_of(*make()))).backward(lambda model, batch: 1 / 0)


def ask(monkeypatch: pytest.MonkeyPatch, **elastic: Any) -> None:
    """The job's specification says so."""
    for name, value in elastic.items():
        monkeypatch.setenv(f"REMORA_{name.upper()}", str(value))


def test_what_the_script_leaves_out_the_job_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    ask(monkeypatch, global_batch=11, shards=2, exactness="bitwise")
    model, optimizer = make()
    loop = Loop(model, optimizer, data=Numbers(), epochs=1)
    samples = [step.samples for step in each(loop, optimizer)]
    assert [sorted(one) for one in samples] == [[0, 1], [0, 1]]
    assert torch.are_deterministic_algorithms_enabled()


def test_a_script_may_repeat_what_the_job_says(monkeypatch: pytest.MonkeyPatch) -> None:
    ask(monkeypatch, global_batch=8, shards=3, exactness="sample-exact")
    loop_of(*make(), exactness="sample-exact")


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"exactness": "bitwise"}, "exactness='sample-exact' and the job's elastic.exactness is 'bitwise'"),
        ({"global_batch": 16}, "global_batch=8 and the job's elastic.global_batch is 16"),
        ({"shards": 4}, "shards=3 and the job's elastic.shards is 4"),
    ],
)
def test_a_script_that_contradicts_its_job_is_refused(
    said: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask(monkeypatch, **said)
    with pytest.raises(ValueError, match=message):
        loop_of(*make(), exactness="sample-exact")


def test_a_loop_without_a_batch_says_how() -> None:
    with pytest.raises(ValueError, match=r"global_batch=\.\.\. to Loop, or write elastic\.global_batch"):
        Loop(*make(), data=Numbers(), epochs=1, shards=1)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"global_batch": 6}, "written with global_batch=8"),
        ({"seed": 5}, "written with seed=4"),
        ({"state": {"ema": nn.Linear(1, 1)}}, "hand over the same parts"),
    ],
)
def test_a_checkpoint_of_another_order_is_refused_by_name(
    changed: dict[str, Any], message: str, tmp_path: Path
) -> None:
    loop_of(*make()).save(tmp_path)
    with pytest.raises(CheckpointUnusable, match=message):
        loop_of(*make(), **changed).load(tmp_path)


def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path) -> None:
    loop_of(*make()).save(tmp_path)
    other = nn.Linear(4, 1).double()
    with pytest.raises(CheckpointUnusable, match="the saved model does not fit"):
        loop_of(other, torch.optim.SGD(other.parameters())).load(tmp_path)


@pytest.mark.parametrize("content", [None, b"", b"not a checkpoint", "torn"])
def test_files_that_are_no_checkpoint_are_refused(content: bytes | str | None, tmp_path: Path) -> None:
    loop = loop_of(*make())
    if content == "torn":
        loop.save(tmp_path)
        whole = (tmp_path / FILE).read_bytes()
        (tmp_path / FILE).write_bytes(whole[: len(whole) // 2])
    elif isinstance(content, bytes):
        (tmp_path / FILE).write_bytes(content)
    with pytest.raises(CheckpointUnusable, match=r"remora\.pt"):
        loop.load(tmp_path)


def test_a_foreign_file_of_torch_is_refused(tmp_path: Path) -> None:
    torch.save({"weights": torch.zeros(2)}, tmp_path / FILE)
    with pytest.raises(CheckpointUnusable, match=r"not written by this version of remora\.torch"):
        loop_of(*make()).load(tmp_path)


def test_the_learning_rate_grows_with_the_batch_after_a_warm_up() -> None:
    factor = linear_scaling(1024, tuned_for=256, warmup_steps=10, steps_done=100)
    assert [factor(step) for step in (100, 105, 110, 500)] == [1.0, 2.5, 4.0, 4.0]
    assert linear_scaling(128, tuned_for=256)(0) == 0.5
    with pytest.raises(ValueError, match="at least 1 sample"):
        linear_scaling(0, tuned_for=256)
    with pytest.raises(ValueError, match="number of steps is at least 0"):
        linear_scaling(1, tuned_for=1, warmup_steps=-1)
